//! HTTP, gRPC and admin behind TLS, with and without asking clients who they are. The Redis transport has
//! tests of its own, by redis-cli.

use std::net::SocketAddr;

use tidegate_server::{Listen, RateLimitService, Server, Settings, serve};
use tidegate_tests::grpc::GrpcClient;
use tidegate_tests::http;
use tidegate_tests::rls::RateLimitRequest;
use tidegate_tests::servers::{Certificates, Identity};
use tidegate_tests::tls::TlsClient;

use super::*;

/// One server with three transports.
struct Transports(Server);

impl Transports {
    fn behind(listen: &Listen) -> Self {
        let service = RateLimitService::with_clock(ManualClock::new().into()).expect("memory");
        service.replace(policy(POLICY));
        let (http, grpc, admin) = (listen.clone(), listen.clone(), listen.clone());
        let (http, grpc, admin) = (Some(http), Some(grpc), Some(admin));
        let settings = Settings { http, grpc, admin, ..settings() };
        Self(serve(&settings, &service).unwrap_or_else(|error| panic!("{error}")))
    }

    /// Those that speak HTTP/1.1, with what to ask.
    fn pages(&self) -> [(SocketAddr, &'static str, &'static str); 2] {
        let (http, admin) = (self.0.http(), self.0.admin());
        [
            (http.expect("asked for"), "GET /healthz", "ok\n"),
            (admin.expect("asked for"), "GET /v1/kill-switch", "{\"kill_switch\":[]}\n"),
        ]
    }

    fn grpc(&self) -> SocketAddr {
        self.0.grpc().expect("asked for")
    }
}

fn page(client: &TlsClient, address: SocketAddr, call: &str) -> Option<Answer> {
    let request = http::request(call, "connection: close\r\n", "");
    let answer = client.exchange(address, request.as_bytes()).ok()?;
    (!answer.is_empty()).then(|| Answer::read(&String::from_utf8_lossy(&answer)))
}

/// All listeners answer a client that trusts this CA and has this certificate.
fn let_in(transports: &Transports, authority: &Certificates, shown: Option<&Identity>) {
    let client = TlsClient::new(&authority.authority, shown, "http/1.1");
    for (address, call, body) in transports.pages() {
        let answer = page(&client, address, call).expect(call);
        assert_eq!((answer.status, &*answer.body), (200, body), "{call}");
    }
    let client = TlsClient::new(&authority.authority, shown, "h2");
    let address = transports.grpc();
    let mut grpc = GrpcClient::over(async { client.connect(address).await.expect("let in") });
    let question = RateLimitRequest::one("api", "api_key", "k1");
    let answer = grpc.should_rate_limit(&question).expect("a decision");
    let limits: Vec<_> = answer.statuses.iter().filter_map(|it| it.current_limit.clone()).collect();
    assert_eq!((limits.len(), limits[0].requests_per_unit), (1, 2), "{answer:?}");
}

/// No transport answers them.
fn kept_out(transports: &Transports, authority: &Certificates, shown: Option<&Identity>) {
    let client = TlsClient::new(&authority.authority, shown, "http/1.1");
    for (address, call, _) in transports.pages() {
        assert!(page(&client, address, call).is_none(), "{call}");
    }
    let client = TlsClient::new(&authority.authority, shown, "h2");
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let answer = client.exchange(transports.grpc(), hello);
    assert!(answer.as_ref().is_ok_and(Vec::is_empty) || answer.is_err(), "{answer:?}");
}

#[test]
fn every_transport_requires_tls_if_configured() {
    let certificates = Certificates::fresh();
    let transports = Transports::behind(&certificates.transport());
    let_in(&transports, &certificates, None);
    // A client that trusts another CA refuses the connection.
    kept_out(&transports, &Certificates::fresh(), None);
    for (address, call, _) in transports.pages() {
        let mut socket = http::connect(address);
        let request = http::request(call, "connection: close\r\n", "");
        // It may be closed before all of it is sent.
        let _ = std::io::Write::write_all(&mut socket, request.as_bytes());
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut socket, &mut answer);
        assert!(!answer.starts_with(b"HTTP/"), "{}", answer.escape_ascii());
        // Inside, it is HTTP/1.1 that is spoken here.
        let client = TlsClient::new(&certificates.authority, None, "h2");
        assert!(page(&client, address, call).is_none(), "{call}");
    }
}

#[test]
fn every_transport_requires_client_certificates_if_configured() {
    let (certificates, strangers) = (Certificates::fresh(), Certificates::fresh());
    let authority = &certificates.authority;
    let known = Some(&certificates.client);
    for names in [&[][..], &["localhost"], &["envoy.example", "localhost"]] {
        let transports = Transports::behind(&certificates.transport_for(authority, names));
        let_in(&transports, &certificates, known);
        kept_out(&transports, &certificates, None);
        kept_out(&transports, &certificates, Some(&strangers.client));
    }
    let transports = Transports::behind(&certificates.transport_for(authority, &["envoy.example"]));
    kept_out(&transports, &certificates, known);
}
