//! How connections begin, live and end.

use std::io::ErrorKind::{TimedOut, WouldBlock};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use prost::Message;
use tidegate::policy::{Merging, Policy};
use tidegate::store::redis::RedisConfig;
use tidegate_server::{Address, Listen, RateLimitService, Settings, serve};
use tidegate_tests::grpc::{GrpcClient, SHOULD_RATE_LIMIT, framed};
use tidegate_tests::rls::RateLimitRequest;
use tidegate_tests::servers::{Folder, RedisServer};

use super::{POLICY, TIMEOUT, Transport, serve_grpc};

/// No request is lost when the server stops under load: whatever it has taken it answers.
#[test]
fn stopping_answers_what_was_asked() {
    const CLIENTS: usize = 4;
    for _ in 0..5 {
        let transport = Transport::open();
        let is_stopping = AtomicBool::new(false);
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let (mut client, is_stopping) = (transport.client(), &is_stopping);
                    scope.spawn(move || {
                        let request = RateLimitRequest::one("api", "user", &number.to_string());
                        let mut answered = 0_usize;
                        // Panics if an answer does not come that should have.
                        while client.is_open() {
                            let Some(answer) = client.ask_if_open(&request) else { break };
                            answer.expect("an answer");
                            answered += 1;
                        }
                        assert!(is_stopping.load(Ordering::SeqCst), "it broke off");
                        answered
                    })
                })
                .collect();
            let mut first = transport.client();
            for _ in 0..200 {
                first.should_rate_limit(&RateLimitRequest::one("api", "token", "x")).unwrap();
            }
            is_stopping.store(true, Ordering::SeqCst);
            drop(first);
            transport.server.stop();
            for client in clients {
                assert!(client.join().unwrap() > 0);
            }
        });
    }
}

#[test]
fn an_old_connection_is_asked_to_end() {
    let settings = Settings { max_age: Duration::from_secs(2), ..Settings::default() };
    let transport = Transport::with(&settings, POLICY);
    let mut client = transport.client();
    assert!(client.should_rate_limit(&RateLimitRequest::one("api", "user", "x")).is_ok());
    client.closed();
    assert!(
        transport.client().should_rate_limit(&RateLimitRequest::one("api", "user", "x")).is_ok()
    );
}

#[test]
fn an_idle_connection_is_closed() {
    let settings = Settings { idle_after: Duration::from_secs(2), ..Settings::default() };
    let transport = Transport::with(&settings, POLICY);
    let mut client = transport.client();
    assert!(client.should_rate_limit(&RateLimitRequest::one("api", "user", "x")).is_ok());
    client.closed();
    // A silent connection is closed, too.
    let mut silent = TcpStream::connect(transport.server.grpc().unwrap()).unwrap();
    silent.set_read_timeout(Some(TIMEOUT)).unwrap();
    let read = silent.read_to_end(&mut Vec::new());
    // Closed or reset; only to wait in vain would be wrong.
    let waited = |error: &std::io::Error| matches!(error.kind(), WouldBlock | TimedOut);
    assert!(!read.as_ref().is_err_and(waited), "{read:?}");
}

#[test]
fn a_client_without_http2_affects_no_other_client() {
    let transport = Transport::open();
    let mut client = transport.client();
    let request = RateLimitRequest::one("api", "unknown", "x");
    for garbage in [
        &b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        // A frame larger than any may be.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\xff\xff\xff\0\0\0\0\0\x01",
        // Data for a stream that was not opened.
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01x",
    ] {
        let mut socket = TcpStream::connect(transport.server.grpc().unwrap()).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        // It may be closed before all of it is sent.
        let _ = socket.write_all(garbage);
        let mut said = Vec::new();
        let _ = socket.read_to_end(&mut said);
        assert!(client.should_rate_limit(&request).unwrap().is_ok());
    }
}

/// A peer that opens streams only to reset them loses its connection, and no other peer is affected.
#[test]
fn resetting_streams_concerns_no_other_client() {
    let transport = Transport::open();
    let (mut rude, mut client) = (transport.client(), transport.client());
    let request = RateLimitRequest::one("api", "unknown", "x");
    for _ in 0..50 {
        if rude.ask_and_leave(&request, 100).is_err() {
            break;
        }
        assert!(client.should_rate_limit(&request).unwrap().is_ok());
    }
    assert!(client.should_rate_limit(&request).unwrap().is_ok());
}

#[test]
fn a_socket_in_the_file_system_is_as_good() {
    let folder = Folder::create();
    let path = folder.path().join("grpc.sock");
    let grpc = Some(Listen { address: Address::Unix(path.clone()), tls: None });
    let service = RateLimitService::new().expect("memory");
    let server = serve(&Settings { grpc, ..Settings::default() }, &service).expect("a socket");
    let connect = async { tokio::net::UnixStream::connect(path).await.expect("it listens") };
    let mut client = GrpcClient::over(connect);
    assert!(client.should_rate_limit(&RateLimitRequest::one("api", "user", "x")).unwrap().is_ok());
    server.stop();
}

/// A call has a timeout: a store that does not answer delays no call beyond it.
#[test]
fn a_call_ends_at_its_deadline() {
    let redis = RedisServer::start();
    let config = RedisConfig::new(&redis.url()).expect("a valid address");
    let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
    let service = RateLimitService::connect(config).expect("a fresh server");
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    let server = serve_grpc(&Settings::default(), &service);
    let mut client = GrpcClient::connect(server.grpc().unwrap());
    let request = RateLimitRequest::one("api", "user", "x");
    assert!(client.should_rate_limit(&request).unwrap().is_ok());
    redis.pause();
    let body = framed(&request.encode_to_vec());
    let (_, failed) = client.exchange(SHOULD_RATE_LIMIT, &body, &[("grpc-timeout", "50m")]);
    assert_eq!(failed.code, 4, "{failed:?}");
    redis.resume();
    assert!(client.should_rate_limit(&request).is_ok());
}
