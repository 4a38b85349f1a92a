//! WebSockets, and upgrades that the service or the gateway refuses.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tidegate_tests::http::{connect, get};
use tidegate_tests::servers::wait_until;

use super::{FIVE, Front, TIMEOUT};

const ASK: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";

fn head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && matches!(socket.read(&mut byte), Ok(1)) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).to_lowercase()
}

#[test]
fn a_websocket_is_a_tunnel_once_the_service_has_agreed() {
    let front = Front::open(FIVE);
    let mut socket = connect(front.address());
    let request = format!("GET /websocket HTTP/1.1\r\nHost: a\r\n{ASK}\r\n");
    socket.write_all(request.as_bytes()).expect("sent");
    let answer = head(&mut socket);
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    assert!(answer.contains("upgrade: websocket"), "{answer}");
    // These bytes look like an ambiguous request, and are none.
    for text in ["hello", "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"] {
        socket.write_all(text.as_bytes()).expect("sent");
        let mut echo = vec![0; text.len()];
        socket.read_exact(&mut echo).expect("the echo");
        assert_eq!(echo, text.as_bytes());
    }
}

#[test]
fn ov_43_requests_behind_a_refused_upgrade_are_limited_as_their_own() {
    let front = Front::open(FIVE);
    let mut socket = connect(front.address());
    let first = format!("GET / HTTP/1.1\r\nHost: a\r\nX-User: u\r\n{ASK}\r\n");
    let next = "GET / HTTP/1.1\r\nHost: a\r\nX-User: u\r\n\r\n".repeat(5);
    let last = "GET / HTTP/1.1\r\nHost: a\r\nX-User: other\r\nConnection: close\r\n\r\n";
    socket.write_all(format!("{first}{next}{last}").as_bytes()).expect("sent");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("answers");
    let statuses: Vec<_> = text.split("HTTP/1.1 ").skip(1).map(|head| &head[..3]).collect();
    assert_eq!(statuses, ["200", "200", "200", "200", "200", "429", "200"]);
    assert_eq!(front.service.heads().len(), 6);
}

#[test]
fn other_protocols_are_not_asked_for() {
    let front = Front::open("");
    let mut socket = connect(front.address());
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n";
    socket.write_all(request.as_bytes()).expect("sent");
    assert!(head(&mut socket).starts_with("http/1.1 200 "));
    assert!(!front.service.heads()[0].contains("upgrade"));
}

fn open(front: &Front, user: &str) -> TcpStream {
    let mut socket = connect(front.address());
    let request = format!("GET /websocket HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n{ASK}\r\n");
    socket.write_all(request.as_bytes()).expect("sent");
    assert!(head(&mut socket).starts_with("http/1.1 101 "));
    socket
}

fn echoes(socket: &mut TcpStream) -> bool {
    let mut echo = [0; 5];
    socket.write_all(b"hello").is_ok() && socket.read_exact(&mut echo).is_ok() && &echo == b"hello"
}

#[test]
fn ov_13_a_place_in_flight_is_held_until_the_tunnel_closes() {
    let policy = FIVE.replace("rate: 5/min", "in_flight: 1, ttl: 60s");
    let front = Front::open(&policy);
    let mut socket = open(&front, "u");
    assert_eq!(get(front.address(), "/", "x-user: u\r\n").status, 429);
    assert_eq!(get(front.address(), "/", "x-user: other\r\n").status, 200);
    assert!(echoes(&mut socket));
    drop(socket);
    wait_until("the place is free", TIMEOUT, || {
        get(front.address(), "/", "x-user: u\r\n").status == 200
    });
}

#[test]
fn a_tunnel_without_a_byte_ends() {
    let idle = Duration::from_millis(300);
    let front = Front::set("", |_| {}, |settings| settings.idle_after = idle);
    let mut socket = open(&front, "u");
    assert!(echoes(&mut socket));
    assert!(matches!(socket.read(&mut [0]), Ok(0) | Err(_)), "it ends");
    wait_until("its connection is counted no more", TIMEOUT, || {
        front.metric("tidegate_connections{listener=\"gateway\"}") == 0
    });
}

/// A tunnel goes on while the server stops, for as long as it drains.
#[test]
fn a_tunnel_may_end_by_itself_when_the_server_stops() {
    let front = Front::open("");
    let mut socket = open(&front, "u");
    let address = front.address();
    let Front { server, service, .. } = front;
    let stopping = thread::spawn(move || server.stop());
    wait_until("it accepts no more", TIMEOUT, || TcpStream::connect(address).is_err());
    assert!(echoes(&mut socket));
    assert!(!stopping.is_finished());
    drop(socket);
    stopping.join().expect("no panic");
    drop(service);
}
