//! The limits of the policy in front of the service.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tidegate_tests::http::{Answer, connect, get};
use tidegate_tests::servers::wait_until;

use super::{FIVE, Front, TIMEOUT};

#[test]
fn a_denied_request_gets_429_and_does_not_reach_the_service() {
    let front = Front::open(FIVE);
    for _ in 0..5 {
        let answer = get(front.address(), "/", "x-user: u\r\n");
        assert_eq!(
            (answer.status, answer.header("ratelimit-policy")),
            (200, Some("\"user\";q=5;w=60"))
        );
    }
    let denied = get(front.address(), "/", "x-user: u\r\n");
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("12")));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(front.service.heads().len(), 5);
    assert_eq!(get(front.address(), "/", "x-user: other\r\n").status, 200);
    front.clock.advance(tidegate::Span::from_secs(12));
    assert_eq!(get(front.address(), "/", "x-user: u\r\n").status, 200);
}

/// A thousand connections at once.
#[test]
fn a_storm_is_admitted_up_to_the_limit() {
    let front = Front::open(FIVE);
    let (address, served) = (front.address(), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let mut sockets: Vec<_> = (0..10).map(|_| connect(address)).collect();
                for socket in &mut sockets {
                    let request =
                        "GET / HTTP/1.1\r\nHost: a\r\nX-User: u\r\nConnection: close\r\n\r\n";
                    socket.write_all(request.as_bytes()).expect("sent");
                }
                for mut socket in sockets {
                    let mut text = String::new();
                    socket.read_to_string(&mut text).expect("an answer");
                    let status = Answer::read(&text).status;
                    assert!(matches!(status, 200 | 429), "{text}");
                    served.fetch_add(usize::from(status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((served.into_inner(), front.service.heads().len()), (5, 5));
}

/// A place in flight is free again when the response has ended, not when its head is there.
#[test]
fn requests_in_progress_are_limited_until_their_response_ends() {
    let policy = "
domain: api
requests:
  rules:
    - descriptors: [{entries: [{key: user, header: x-user}]}]
descriptors:
  - {key: user, in_flight: 2, ttl: 60s}
";
    let front = Front::open(policy);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut socket = connect(front.address());
            let request = "GET /held HTTP/1.1\r\nHost: a\r\nX-User: u\r\nConnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).expect("sent");
            let mut head = [0; 12];
            socket.read_exact(&mut head).expect("a head");
            assert_eq!(&head, b"HTTP/1.1 200");
            socket
        })
        .collect();
    let denied = get(front.address(), "/", "x-user: u\r\n");
    assert_eq!(denied.status, 429, "{denied:?}");
    front.service.release();
    for mut socket in held {
        let mut rest = String::new();
        socket.read_to_string(&mut rest).expect("the rest");
        assert!(rest.ends_with("held"), "{rest}");
    }
    wait_until("the places are free", TIMEOUT, || {
        get(front.address(), "/", "x-user: u\r\n").status == 200
    });
}

/// A hundred wrong guesses at once, and right ones in a row.
#[test]
fn ov_37_only_failed_logins_count() {
    let policy = "
domain: site
requests:
  rules:
    - {path: /login, descriptors: [{entries: [{key: login, header: x-user}]}]}
descriptors:
  - {key: login, rate: 5/15min, algorithm: sliding_log, count: [401]}
";
    let front = Front::open(policy);
    let address = front.address();
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(move || get(address, "/login", "x-user: eve\r\nx-password: wrong\r\n"));
        }
    });
    assert_eq!(front.service.heads().len(), 5, "guesses that reached the service");
    for _ in 0..30 {
        assert_eq!(get(address, "/login", "x-user: bob\r\nx-password: right\r\n").status, 200);
    }
}

/// Two requests in progress fill the limiter, which has no queue.
#[test]
fn requests_above_the_capacity_of_the_service_are_shed() {
    let policy = "
domain: site
protect: [{name: api, estimator: fixed, limit: 2, queue: 0%}]
requests:
  rules: [{protect: api, descriptors: []}]
descriptors: []
";
    let front = Front::open(policy);
    let held: Vec<_> = (0..2)
        .map(|_| {
            let mut socket = connect(front.address());
            let request = "GET /held HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
            socket.write_all(request.as_bytes()).expect("sent");
            let mut head = [0; 12];
            socket.read_exact(&mut head).expect("a head");
            socket
        })
        .collect();
    let shed = get(front.address(), "/", "");
    assert_eq!(shed.status, 503, "{shed:?}");
    assert!(shed.header("retry-after").is_some() && shed.header("ratelimit").is_none(), "{shed:?}");
    assert_eq!(front.service.heads().len(), 2);
    let admin = front.server.admin().expect("asked for");
    let metrics = get(admin, "/metrics", "").body;
    let is_counted =
        |line: &str| line.starts_with("tidegate_shed_requests_total{") && line.ends_with(" 1");
    assert!(metrics.lines().any(is_counted), "{metrics}");
    front.service.release();
    drop(held);
    wait_until("the permits are back", TIMEOUT, || get(front.address(), "/", "").status == 200);
}

/// The service gets the class that the policy decided, whatever the client sent.
#[test]
fn the_class_header_tells_what_the_policy_decided() {
    let policy = "
domain: site
classes: [{name: critical}, {name: read, default: true}, {name: test}]
class_header: {name: x-class, trusted: [10.0.0.0/8]}
protect: [{name: api, estimator: fixed, limit: 8}]
requests:
  rules:
    - {path: /free, descriptors: [{entries: [{key: path, value: free}]}]}
    - {protect: api, descriptors: []}
descriptors:
  - {key: path, rate: 100/s}
";
    let front = Front::open(policy);
    for (path, sent, expected) in [
        ("/", "x-class: critical\r\n", Some("read")),
        ("/", "x-class: test\r\n", Some("test")),
        ("/", "", Some("read")),
        ("/", "x-class: odd\r\nX-Class: critical\r\n", Some("read")),
        // The first limiter protects requests whose rules name no other one.
        ("/free", "x-class: critical\r\n", Some("read")),
    ] {
        assert_eq!(get(front.address(), path, sent).status, 200);
        let heads = front.service.heads();
        let head = heads.last().expect("a request");
        let found: Vec<_> =
            head.lines().filter_map(|line| line.strip_prefix("x-class: ")).collect();
        assert_eq!(found, Vec::from_iter(expected), "{path} {sent}");
    }
}
