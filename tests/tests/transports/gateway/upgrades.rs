//! WebSockets, and upgrades that the service or the gateway refuses.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_tests::http::connect;

use super::{FIVE, Front};

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
