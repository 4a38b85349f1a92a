//! Requests whose bodies do not arrive whole, or are not read.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use tidegate_server::{Gateway, Upstream};
use tidegate_tests::http::{Answer, connect, get, send};
use tidegate_tests::servers::wait_until;

use super::http2_client::{Http2Client, request, run, whole};
use super::service::Service;
use super::{FIVE, Front, TIMEOUT};

/// Begins a request with a body of ten bytes, and ends the connection's sending side after five.
fn cut(gateway: SocketAddr) -> Option<u16> {
    let mut socket = connect(gateway);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello";
    socket.write_all(head.as_bytes()).expect("sent");
    socket.shutdown(Shutdown::Write).expect("open");
    let mut text = String::new();
    let _ = socket.read_to_string(&mut text);
    (!text.is_empty()).then(|| Answer::read(&text).status)
}

/// The sum of a metric over all addresses.
fn sum(front: &Front, name: &str, label: &str) -> u64 {
    let page = get(front.server.admin().expect("asked for"), "/metrics", "").body;
    let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    let values: Vec<u64> = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse().ok()).collect();
    assert!(!values.is_empty(), "no {name} in {page}");
    values.iter().sum()
}

/// Otherwise a client could take a service offline.
#[test]
fn clients_that_cut_their_requests_eject_no_address() {
    let services = [Service::start(), Service::start()];
    let inner = Front::open("");
    let plain: Vec<_> =
        services.iter().map(|service| format!("http://{}", service.address())).collect();
    // Another gateway is a service of HTTP/2.
    let inner = format!("h2c://{}", inner.address());
    for urls in [plain, vec![inner.clone(), inner]] {
        let upstream = Upstream::new("api", &urls).expect("URLs");
        let front = Front::with("", |gateway| *gateway = Gateway::new(upstream));
        for _ in 0..20 {
            assert!(matches!(cut(front.address()), None | Some(400)));
        }
        let name = "tidegate_upstream_requests_total";
        let cut = || sum(&front, name, "outcome=\"client_gone\"");
        wait_until("all are counted", TIMEOUT, || cut() >= 20);
        assert_eq!(sum(&front, name, "outcome=\"no_response\""), 0, "{urls:?}");
        assert_eq!(sum(&front, "tidegate_upstream_ejections_total", ""), 0, "{urls:?}");
        assert_eq!(get(front.address(), "/", "").status, 200);
    }
}

#[test]
fn a_body_above_the_maximum_gets_413() {
    let front = Front::with("", |gateway| gateway.max_body = Some(10));
    let status = |fields: &str, body: &str| {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n\r\n");
        send(front.address(), format!("{head}{body}")).status
    };
    assert_eq!(status("Content-Length: 10", "0123456789"), 200);
    assert_eq!(status("Content-Length: 11", "0123456789a"), 413);
    assert_eq!(front.service.heads().len(), 1, "nothing was sent of it");
    let chunked = "Transfer-Encoding: chunked";
    assert_eq!(status(chunked, "5\r\n01234\r\n5\r\n56789\r\n0\r\n\r\n"), 200);
    assert_eq!(status(chunked, "5\r\n01234\r\n6\r\n56789a\r\n0\r\n\r\n"), 413);
    // It waits for no "100 Continue".
    assert_eq!(status("Content-Length: 11\r\nExpect: 100-continue", ""), 413);
    run(async {
        let client = Http2Client::connect(front.address()).await;
        for (body, expected) in [("0123456789", 200), ("0123456789a", 413)] {
            let answer = client.ask(request("POST", "/", &[], whole(body))).await;
            assert_eq!(answer.expect("a response").status, expected);
        }
    });
    let name = "tidegate_upstream_requests_total";
    assert_eq!(sum(&front, name, "outcome=\"no_response\""), 0, "no failure of the service");
}

/// The messages of a call may pause for the idle time of the upstream.
#[test]
fn a_call_whose_client_sends_nothing_is_cancelled() {
    let front = Front::with("", |gateway| {
        gateway.upstreams[0].idle_timeout = Duration::from_millis(300);
    });
    let mut socket = connect(front.address());
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\
                Content-Length: 10\r\n\r\nhello";
    socket.write_all(head.as_bytes()).expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    assert_eq!(Answer::read(&text).header("grpc-status"), Some("1"), "{text}");
}

/// The client has sent all of a large body before it reads: the denial is not lost in a reset of the connection.
#[test]
fn a_denied_upload_gets_its_429() {
    let front = Front::open(FIVE);
    for _ in 0..5 {
        assert_eq!(get(front.address(), "/", "x-user: u\r\n").status, 200);
    }
    let piece = vec![b'a'; 1 << 20];
    let mut socket = connect(front.address());
    let head = "POST / HTTP/1.1\r\nHost: a\r\nX-User: u\r\nContent-Length: 16777216\r\n\r\n";
    socket.write_all(head.as_bytes()).expect("sent");
    for _ in 0..16 {
        socket.write_all(&piece).expect("the gateway reads on");
    }
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    assert_eq!(Answer::read(&text).status, 429);
    assert_eq!(front.service.heads().len(), 5);
}

/// Clients that go while their request is sent, waits for a connection, or has a part of its response.
#[test]
fn clients_that_go_away_leave_no_connection_taken() {
    let front = Front::with("", |gateway| gateway.upstreams[0].max_connections = 1);
    let gauge = |name: &str| sum(&front, &format!("tidegate_upstream_{name}{{"), "");
    for round in 1..=3 {
        let clients: Vec<_> = (0..60)
            .map(|number| {
                let mut socket = connect(front.address());
                let path = ["/hang", "/held"][number % 2];
                let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
                socket.write_all(request.as_bytes()).expect("sent");
                socket
            })
            .collect();
        wait_until("requests are in progress", TIMEOUT, || gauge("requests_in_progress") > 0);
        assert!(gauge("connections") <= tidegate_server::Settings::default().threads.get() as u64);
        drop(clients);
        wait_until("all are free", TIMEOUT, || {
            gauge("requests_in_progress") + gauge("connections") == 0
        });
        // The service is asked by both workers.
        for number in 0..8 {
            assert_eq!(get(front.address(), "/", "").status, 200, "{round}.{number}");
        }
        wait_until("idle ones are closed", TIMEOUT, || gauge("connections") == 0);
    }
    front.service.release();
}
