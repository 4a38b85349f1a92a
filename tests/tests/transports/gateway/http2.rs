//! Clients of HTTP/2 in front of a service that speaks HTTP/1.1.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::body::Frame;
use tidegate_server::Listen;
use tidegate_tests::http::get;
use tidegate_tests::servers::{Certificates, wait_until};
use tidegate_tests::tls::TlsClient;

use super::http2_client::{Http2Client, pieces, request, run, whole};
use super::{FIVE, Front, TIMEOUT};

#[test]
fn requests_and_responses_are_forwarded_with_their_trailers() {
    let front = Front::open("");
    run(async {
        let client = Http2Client::connect(front.address()).await;
        let path = "/a//b/./c%2Fd%20e;x=1?q=%7e&r=a+b";
        let named = [("cookie", "a=1"), ("cookie", "b=2"), ("x-forwarded-for", "6.6.6.6")];
        let answer = client.ask(request("POST", path, &named, whole("hello"))).await;
        let answer = answer.expect("a response");
        assert_eq!((answer.status, &answer.body[..]), (200, &b"hello"[..]));
        let trailers = client.get("/trailers", &[("te", "trailers")]).await.expect("a response");
        assert_eq!((trailers.status, &trailers.body[..]), (200, &b"ok"[..]));
        assert_eq!(trailers.trailers.expect("trailers")["x-sum"], "7");
        let head = client.ask(request("HEAD", "/", &[], whole(""))).await.expect("a response");
        assert_eq!((head.status, &head.headers["content-length"]), (200, &"5".parse().unwrap()));
        let hop = client.get("/hop", &[]).await.expect("a response");
        assert_eq!((hop.status, hop.headers.get("x-own")), (200, None));
        for path in ["/two-lengths", "/both", "/garbage", "/switch"] {
            assert_eq!(client.get(path, &[]).await.expect("a response").status, 502, "{path}");
        }
        let (sender, body) = pieces();
        let posted = client.begin(request("POST", "/sum", &[("te", "trailers")], body));
        sender.send(Frame::data("piece".into())).expect("a client");
        let mut sum = HeaderMap::new();
        sum.insert("x-sum", "5".parse().expect("a value"));
        sender.send(Frame::trailers(sum)).expect("a client");
        drop(sender);
        assert_eq!(posted.await.expect("a response").status(), 200);
    });
    let heads = front.service.heads();
    let path = "/a//b/./c%2Fd%20e;x=1?q=%7e&r=a+b";
    assert!(heads[0].starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", heads[0]);
    for expected in [
        "\r\nhost: a\r\n",
        "\r\ncookie: a=1; b=2\r\n",
        "\r\nx-forwarded-for: 127.0.0.1\r\n",
        "\r\nx-forwarded-host: a\r\n",
        "\r\nforwarded: for=127.0.0.1;host=\"a\";proto=http\r\n",
        "\r\ncontent-length: 5\r\n",
    ] {
        assert!(heads[0].contains(expected), "{expected} in {}", heads[0]);
    }
    assert!(heads.last().expect("a head").contains("\r\ntransfer-encoding: chunked\r\n"));
}

#[test]
fn clients_choose_the_protocol_in_the_handshake() {
    let certificates = Certificates::fresh();
    let listen = certificates.transport();
    let front = Front::set("", |_| {}, |settings| settings.proxy = Some(listen));
    let client = TlsClient::new(&certificates.authority, None, "h2");
    run(async {
        let stream = client.connect(front.address()).await.expect("a handshake");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let answer = Http2Client::over(stream).await.get("/", &[]).await.expect("a response");
        assert_eq!(answer.status, 200);
    });
    let client = TlsClient::new(&certificates.authority, None, "http/1.1");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = client.exchange(front.address(), request).expect("a response");
    assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", answer.escape_ascii());
    assert!(front.service.heads()[0].contains("\r\nx-forwarded-proto: https\r\n"));
}

#[test]
fn a_unix_socket_has_both_protocols() {
    let folder = tidegate_tests::servers::Folder::create();
    let path = folder.write("gateway.sock", "");
    std::fs::remove_file(&path).expect("a file");
    let address = tidegate_server::Address::Unix(path.clone());
    let listen = Listen { address, tls: None };
    let _front = Front::set("", |_| {}, |settings| settings.proxy = Some(listen));
    run(async {
        let socket = tokio::net::UnixStream::connect(&path).await.expect("it listens");
        let client = Http2Client::over(socket).await;
        assert_eq!(client.get("/", &[]).await.expect("a response").status, 200);
    });
}

#[test]
fn a_denied_request_gets_429_and_other_streams_go_on() {
    let front = Front::open(FIVE);
    run(async {
        let client = Http2Client::connect(front.address()).await;
        let held = client.begin(request("GET", "/held", &[("x-user", "other")], whole("")));
        let held = held.await.expect("a head");
        for _ in 0..5 {
            let answer = client.get("/", &[("x-user", "u")]).await.expect("a response");
            assert_eq!(answer.headers["ratelimit-policy"], "\"user\";q=5;w=60");
        }
        let denied = client.get("/", &[("x-user", "u")]).await.expect("a response");
        assert_eq!((denied.status, &denied.headers["retry-after"]), (429, &"12".parse().unwrap()));
        assert_eq!(front.service.heads().len(), 6);
        front.service.release();
        let body = http_body_util::BodyExt::collect(held.into_body()).await.expect("a body");
        assert_eq!(&body.to_bytes()[..], b"held");
    });
}

/// Larger than every window.
#[test]
fn large_bodies_stream_both_ways() {
    let front = Front::open("");
    run(async {
        let client = Http2Client::connect(front.address()).await;
        let text = "0123456789abcdef".repeat(1 << 16);
        let posts = (0..4).map(|_| client.ask(request("POST", "/", &[], whole(text.clone()))));
        for answer in futures_util::future::join_all(posts).await {
            let answer = answer.expect("a response");
            assert!(answer.status == 200 && answer.body == text, "{}", answer.body.len());
        }
    });
}

/// A client that reads nothing of a response holds its stream for as long as a connection may be idle.
#[test]
fn a_response_that_is_not_read_is_given_up() {
    let idle = Duration::from_millis(500);
    let front = Front::set("", |_| {}, |settings| settings.idle_after = idle);
    run(async {
        let client = Http2Client::connect(front.address()).await;
        let text = "0123456789abcdef".repeat(1 << 18);
        let unread = client.begin(request("POST", "/", &[], whole(text))).await.expect("a head");
        let admin = front.server.admin().expect("asked for");
        let connections = move || {
            let metrics = get(admin, "/metrics", "").body;
            metrics.lines().any(|line| line == "tidegate_connections{listener=\"gateway\"} 0")
        };
        let waited = tokio::task::spawn_blocking(move || {
            wait_until("the connection has ended", TIMEOUT, connections);
        });
        waited.await.expect("no panic");
        let cut = http_body_util::BodyExt::collect(unread.into_body()).await;
        assert!(cut.is_err(), "the response was cut");
    });
}

#[test]
fn requests_in_progress_are_answered_when_the_server_stops() {
    let Front { server, service, .. } = Front::open("");
    let address = server.gateway().expect("asked for");
    run(async {
        let client = Http2Client::connect(address).await;
        let held = client.begin(request("GET", "/held", &[], whole(""))).await.expect("a head");
        let stopping = tokio::task::spawn_blocking(move || server.stop());
        let mut other = client.0.clone();
        // The connection ends once the client has been told.
        while other.ready().await.is_ok() {
            match other.send_request(request("GET", "/", &[], whole(""))).await {
                Ok(answer) => assert_eq!(answer.status(), 200),
                Err(_) => break,
            }
            tokio::task::yield_now().await;
        }
        service.release();
        let body = http_body_util::BodyExt::collect(held.into_body()).await.expect("a body");
        assert_eq!(&body.to_bytes()[..], b"held");
        stopping.await.expect("no panic");
    });
}
