//! Limits of the connections of one address, decided before TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use tidegate::{Rate, Span};
use tidegate_server::AddressLimits;
use tidegate_tests::http::{Answer, connect, get};
use tidegate_tests::servers::{Certificates, wait_until};
use tidegate_tests::tls::TlsClient;

use super::{Front, TIMEOUT};

const REFUSED: &str = "tidegate_refused_connections_total{listener=\"gateway\",reason=";

/// The status of one request after these bytes; `None` if the connection is reset.
fn status(front: &Front, before: &str) -> Option<u16> {
    let mut socket = connect(front.address());
    let request = format!("{before}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    // A reset may come before or after all of it is sent.
    let _ = socket.write_all(request.as_bytes());
    let mut text = String::new();
    match socket.read_to_string(&mut text) {
        // Without a text, the reset was told when the request was sent.
        Ok(_) => (!text.is_empty()).then(|| Answer::read(&text).status),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            None
        }
    }
}

fn is_reset(mut socket: TcpStream) -> bool {
    socket.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

/// A thousand connections within a second, each of another address of the /64. The load balancer of the test
/// is one more address, which has no limit.
#[test]
fn ov_45_a_64_gets_its_rate_and_burst_of_connections() {
    let front = Front::with("", |gateway| {
        let limits = AddressLimits::default().rate(Rate::per_second(50), Some(20));
        gateway.edge.per_address = limits.expect("a limit");
        gateway.edge.proxies = vec!["127.0.0.1".parse().expect("an address")];
    });
    let mut served = 0;
    for number in 0..1_000 {
        let header = format!("PROXY TCP6 2001:db8::{number:x}:1 ::1 1000 443\r\n");
        served += usize::from(status(&front, &header) == Some(200));
        front.clock.advance(Span::from_millis(1));
    }
    // The last millisecond of the second is not over when the last connection comes.
    assert_eq!((served, front.service.heads().len()), (69, 69));
    assert_eq!(front.metric(&format!("{REFUSED}\"address_rate\"}}")), 931);
    let other = "PROXY TCP6 2001:db8:0:1::1 ::1 1000 443\r\n";
    assert_eq!(status(&front, other), Some(200), "another /64");
}

#[test]
fn connections_above_the_rate_are_reset_before_tls() {
    let certificates = Certificates::fresh();
    let front = Front::at(certificates.transport(), "", |gateway| {
        let limits = AddressLimits::default().rate(Rate::per_second(1), Some(3));
        gateway.edge.per_address = limits.expect("a limit");
    });
    let client = TlsClient::new(&certificates.authority, None, "http/1.1");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for _ in 0..3 {
        let answer = client.exchange(front.address(), request).expect("an answer");
        assert!(answer.starts_with(b"HTTP/1.1 200 "));
    }
    // The reset comes although the client has sent nothing.
    assert!(is_reset(connect(front.address())));
    assert_eq!(front.metric(&format!("{REFUSED}\"address_rate\"}}")), 1);
    front.clock.advance(Span::from_secs(1));
    assert!(client.exchange(front.address(), request).is_ok());
}

#[test]
fn an_address_holds_so_many_connections() {
    let front = Front::with("", |gateway| {
        gateway.edge.per_address = AddressLimits::default().connections(2).expect("a limit");
    });
    let held = [connect(front.address()), connect(front.address())];
    assert!(is_reset(connect(front.address())));
    assert_eq!(front.metric(&format!("{REFUSED}\"address_connections\"}}")), 1);
    drop(held);
    wait_until("a place is free", TIMEOUT, || status(&front, "") == Some(200));
}

/// A WebSocket is a connection of its address until it ends.
#[test]
fn a_tunnel_counts_as_a_connection() {
    let front = Front::with("", |gateway| {
        gateway.edge.per_address = AddressLimits::default().connections(1).expect("a limit");
    });
    let mut socket = connect(front.address());
    let upgrade = "GET /websocket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\n\r\n";
    socket.write_all(upgrade.as_bytes()).expect("sent");
    let mut head = [0; 12];
    socket.read_exact(&mut head).expect("a head");
    assert_eq!(&head, b"HTTP/1.1 101");
    assert!(is_reset(connect(front.address())));
    drop(socket);
    wait_until("its place is free", TIMEOUT, || status(&front, "") == Some(200));
}

/// A proxy in front of the gateway has the connections of all its clients.
#[test]
fn trusted_peers_have_no_limit() {
    let front = Front::with("", |gateway| {
        let limits = AddressLimits::default().rate(Rate::per_minute(1), Some(1));
        gateway.edge.per_address = limits.expect("a limit");
        gateway.trusted = vec!["127.0.0.0/8".parse().expect("a network")];
    });
    for _ in 0..20 {
        assert_eq!(get(front.address(), "/", "").status, 200);
    }
}
