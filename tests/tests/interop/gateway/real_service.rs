//! What services in Node.js do.

use std::io::{Read, Write};

use tidegate_server::Gateway;
use tidegate_tests::http::{Connection, connect, get, send};
use tidegate_tests::servers::wait_until;

use super::backend::Backend;
use super::{TIMEOUT, address, gateway};

fn front(backend: &Backend) -> tidegate_server::Server {
    gateway(Gateway::new(backend.url().parse().expect("a URL")))
}

/// Node.js closes a connection after five idle seconds, perhaps just as a request is sent: the gateway closes it
/// before.
#[test]
fn idle_connections_are_closed_before_nodejs_does() {
    let backend = Backend::start();
    let server = front(&backend);
    let mut client = Connection::open(address(&server)).expect("a listener");
    assert_eq!(client.ask("POST /?id=1", "text").expect("an answer").body, "4");
    let admin = server.admin().expect("asked for");
    let name = format!(
        "tidegate_upstream_connections{{upstream=\"default\",address=\"{}\"}}",
        backend.address
    );
    let has = |count: &str| {
        let page = get(admin, "/metrics", "").body;
        page.lines().any(|line| line == format!("{name} {count}"))
    };
    assert!(has("1"));
    wait_until("the connection is closed", TIMEOUT, || has("0"));
    let timeouts = get(backend.address, "/timeouts", "").body;
    assert_eq!(timeouts, "0", "connections that Node.js closed");
    assert_eq!(client.ask("POST /?id=2", "text").expect("an answer").body, "4");
}

#[test]
fn events_arrive_as_they_are_sent() {
    let backend = Backend::start();
    let server = front(&backend);
    let mut socket = connect(address(&server));
    socket
        .write_all(b"GET /events HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut text = String::new();
    let mut piece = [0; 1_024];
    while !text.contains("data: first\n\n") {
        let length = socket.read(&mut piece).expect("an event");
        assert!(length > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&piece[..length]));
    }
    assert!(text.contains("content-type: text/event-stream"), "{text}");
    assert_eq!(get(address(&server), "/second", "").status, 200);
    socket.read_to_string(&mut text).expect("the rest");
    assert!(text.contains("data: second\n\n"), "{text}");
}

#[test]
fn trailers_pass_both_ways() {
    let backend = Backend::start();
    let server = front(&backend);
    let answer = send(
        address(&server),
        "POST /trailers HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTE: trailers\r\n\
         Transfer-Encoding: chunked\r\nTrailer: x-end\r\n\r\n4\r\ntext\r\n0\r\nx-end: done\r\n\r\n",
    );
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("4 bytes, then done"), "{answer:?}");
    assert!(answer.body.ends_with("0\r\nx-sum: 7\r\n\r\n"), "{answer:?}");
}

#[test]
fn a_websocket_echoes() {
    let backend = Backend::start();
    let server = front(&backend);
    let mut socket = connect(address(&server));
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).expect("sent");
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    // The answer to the key of RFC 6455.
    assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
    for text in ["hello", "again"] {
        let mask = [1, 2, 3, 4];
        let masked = text.bytes().enumerate().map(|(at, byte)| byte ^ mask[at % 4]);
        let mut frame = vec![0x81, 0x80 | text.len() as u8];
        frame.extend(mask);
        frame.extend(masked);
        socket.write_all(&frame).expect("sent");
        let mut echo = vec![0; 2 + text.len()];
        socket.read_exact(&mut echo).expect("the echo");
        assert_eq!((echo[0], &echo[2..]), (0x81, text.as_bytes()));
    }
}
