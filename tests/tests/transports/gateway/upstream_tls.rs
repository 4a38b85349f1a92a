//! Services over TLS: another gateway is the service, which speaks both protocols.

use std::path::Path;
use std::time::Duration;

use tidegate_server::{Gateway, Upstream};
use tidegate_tests::http::get;
use tidegate_tests::servers::Certificates;

use super::Front;
use super::http2_client::{Http2Client, request, run, whole};

/// A gateway in front of a gateway that needs TLS.
fn chain(inner: &Front, authority: Option<&Path>, change: impl FnOnce(&mut Upstream)) -> Front {
    let url = format!("https://127.0.0.1:{}", inner.address().port());
    let mut upstream: Upstream = url.parse().expect("a URL");
    upstream.tls.authority = authority.map(Into::into);
    upstream.connect_timeout = Duration::from_secs(10);
    change(&mut upstream);
    Front::with("", |gateway| *gateway = Gateway::new(upstream))
}

/// Connections of clients that speak HTTP/2, by the service's counter.
fn heads(inner: &Front) -> usize {
    inner.service.heads().len()
}

#[test]
fn a_service_over_tls_is_spoken_to_in_the_protocol_of_the_handshake() {
    let certificates = Certificates::fresh();
    let listen = certificates.transport();
    let inner = Front::set("", |_| {}, |settings| settings.proxy = Some(listen));
    let authority = Some(certificates.authority.as_path());
    for with_http2 in [true, false] {
        let outer = chain(&inner, authority, |upstream| upstream.tls.http2 = with_http2);
        run(async {
            let client = Http2Client::connect(outer.address()).await;
            let text = "0123456789abcdef".repeat(1 << 14);
            let posts = (0..8).map(|_| client.ask(request("POST", "/", &[], whole(text.clone()))));
            for answer in futures_util::future::join_all(posts).await {
                let answer = answer.expect("a response");
                assert!(answer.status == 200 && answer.body == text, "{}", answer.body.len());
            }
            let trailers = client.get("/trailers", &[("te", "trailers")]).await;
            assert_eq!(trailers.expect("a response").trailers.expect("trailers")["x-sum"], "7");
        });
        let admin = inner.server.admin().expect("asked for");
        let metrics = get(admin, "/metrics", "").body;
        let opened = "tidegate_connections{listener=\"gateway\"} ";
        let open = metrics.lines().find_map(|line| line.strip_prefix(opened)).expect("a gauge");
        // Eight requests at once share one connection of HTTP/2; over HTTP/1.1 each has its own.
        assert_eq!(open == "1", with_http2, "{open}");
        let forwarded = inner.service.heads();
        let last = forwarded.last().expect("a head");
        assert!(last.contains("\r\nx-forwarded-proto: https\r\n"), "{last}");
    }
}

#[test]
fn a_certificate_that_is_not_trusted_is_502() {
    let certificates = Certificates::fresh();
    let listen = certificates.transport();
    let inner = Front::set("", |_| {}, |settings| settings.proxy = Some(listen));
    let strangers = Certificates::fresh();
    let authority = Some(certificates.authority.as_path());
    let strange = chain(&inner, Some(&strangers.authority), |_| {});
    let misnamed = chain(&inner, authority, |upstream| {
        upstream.tls.server_name = Some("other.example".into());
    });
    for outer in [strange, misnamed] {
        let answer = get(outer.address(), "/", "");
        assert_eq!((answer.status, heads(&inner)), (502, 0), "{answer:?}");
    }
    let named = chain(&inner, authority, |upstream| {
        upstream.tls.server_name = Some("localhost".into());
    });
    assert_eq!(get(named.address(), "/", "").status, 200);
}

#[test]
fn certificates_that_cannot_be_read_are_named_at_the_start() {
    let mut upstream: Upstream = "https://127.0.0.1:1".parse().expect("a URL");
    upstream.tls.authority = Some("/no/such/file.pem".into());
    let settings = tidegate_server::Settings {
        proxy: Some(([127, 0, 0, 1], 0).into()),
        gateway: Some(Gateway::new(upstream)),
        ..Default::default()
    };
    let service = tidegate_server::RateLimitService::new().expect("memory");
    let why = tidegate_server::serve(&settings, &service).expect_err("no such file").to_string();
    assert!(why.contains("upstream default") && why.contains("/no/such/file.pem"), "{why}");
}
