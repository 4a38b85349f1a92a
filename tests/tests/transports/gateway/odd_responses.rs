//! Odd responses of services: the client of the gateway gets what a client of nginx gets, or less.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use tidegate_server::Gateway;
use tidegate_tests::http::{connect, get};

use super::Front;
use super::security::nginx;

/// Longer than a proxy takes for an answer.
const QUIET: Duration = Duration::from_secs(2);

/// What a client gets.
#[derive(Clone, Debug, PartialEq)]
enum Got {
    /// No response of the service.
    Refused,
    /// A part of one.
    Cut,
    /// A response with this status and body.
    Whole(u16, String),
}

/// A method; the bytes that the service answers with before it closes the connection; the status
/// and the body that the client of the gateway gets. Status 0 is a refusal, and no body a cut.
const RESPONSES: &[(&str, &str, u16, Option<&str>)] = &[
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, Some("ok")),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        Some("ok"),
    ),
    ("GET", "HTTP/1.1 200 OK\r\n\r\nok", 200, Some("ok")),
    ("GET", "HTTP/1.0 200 OK\r\n\r\nok", 200, Some("ok")),
    // Without a body.
    ("GET", "HTTP/1.1 204 No Content\r\n\r\nok", 204, Some("")),
    ("GET", "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok", 204, Some("")),
    ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\nok", 304, Some("")),
    (
        "GET",
        "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        304,
        Some(""),
    ),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, Some("")),
    (
        "HEAD",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        200,
        Some(""),
    ),
    // Bytes behind a response.
    (
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad",
        200,
        Some("ok"),
    ),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
        200,
        Some("ok"),
    ),
    // Lines.
    ("GET", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200, Some("ok")),
    ("GET", "HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, Some("ok")),
    ("GET", "HTTP/1.1 20 OK\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "ok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nX\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nX : 1\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n", 0, None),
    // Lengths.
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 18446744073709551616\r\n\r\n", 0, None),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok", 0, None),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!", 0, None),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        0,
        None,
    ),
    ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nok", 0, None),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        0,
        None,
    ),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok", 200, None),
    // Chunks.
    ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", 200, None),
    ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nx\r\n\r\n", 200, None),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n-1\r\n\r\n",
        200,
        None,
    ),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n",
        200,
        None,
    ),
    ("GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nok\r\n0\r\n\r\n", 200, None),
    // Switching to a protocol that no client has asked for.
    (
        "GET",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nok",
        0,
        None,
    ),
];

/// Responses that nginx refuses, although all servers read them in the same way: without a space and
/// a reason behind the status.
const LAXER: &[&str] = &["HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"];

/// A service that answers `/NUMBER` with that response, and every other path with `sound`.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|it| it > 0)
                {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head);
                let number = head.split(['/', ' ']).nth(2).and_then(|it| it.parse::<usize>().ok());
                let answer = match number {
                    Some(number) => RESPONSES[number].1,
                    None => "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nsound",
                };
                let _ = socket.write_all(answer.as_bytes());
            });
        }
    });
    address
}

/// What a client of a proxy gets.
fn ask(proxy: SocketAddr, method: &str, path: &str) -> Got {
    let mut socket = connect(proxy);
    socket.set_read_timeout(Some(QUIET)).expect("a socket");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).expect("sent");
    let (mut answer, mut piece) = (Vec::new(), [0; 4_096]);
    while let Ok(length @ 1..) = socket.read(&mut piece) {
        answer.extend_from_slice(&piece[..length]);
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return Got::Refused };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    if matches!(status, 0 | 502 | 504) {
        return Got::Refused;
    }
    let head = head.to_lowercase();
    let length = head.split("\r\ncontent-length: ").nth(1).and_then(|rest| rest.lines().next());
    let has_body = method != "HEAD" && !matches!(status, 204 | 304);
    let body = match (length, head.contains("\r\ntransfer-encoding: chunked")) {
        _ if !has_body => Some(body.to_owned()),
        (_, true) => unchunked(body),
        (Some(length), _) => (length == body.len().to_string()).then(|| body.to_owned()),
        (None, false) => Some(body.to_owned()),
    };
    body.map_or(Got::Cut, |body| Got::Whole(status, body))
}

/// The bytes of all chunks, if the last one is there.
fn unchunked(mut text: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, rest) = text.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..size)?);
        text = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

#[test]
fn odd_responses_pass_as_through_nginx_or_are_refused() {
    let service = service();
    let front = Front::with("", |gateway| {
        *gateway = Gateway::new(format!("http://{service}").parse().expect("a URL"));
    });
    let (_process, _folder, nginx) = nginx(service);
    let mut wrong = Vec::new();
    for (number, &(method, bytes, status, body)) in RESPONSES.iter().enumerate() {
        let expected = match (status, body) {
            (0, _) => Got::Refused,
            (_, None) => Got::Cut,
            (status, Some(body)) => Got::Whole(status, body.into()),
        };
        let path = format!("/{number}");
        let ours = ask(front.address(), method, &path);
        let theirs = ask(nginx, method, &path);
        // A head that had not left when the body turned out to be cut counts as refused.
        let is_expected = ours == expected || (expected == Got::Cut && ours == Got::Refused);
        let is_laxer = matches!(ours, Got::Whole(..)) && ours != theirs && !LAXER.contains(&bytes);
        if !is_expected || is_laxer {
            wrong.push(format!("{method} {bytes:?}\n  ours   {ours:?}\n  nginx  {theirs:?}"));
        }
        // Whatever is left of the connection answers no other request.
        assert_eq!(get(front.address(), "/sound", "").body, "sound", "{bytes:?}");
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_response_with_a_huge_head_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for mut socket in listener.incoming().map_while(Result::ok) {
            let head = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(100 << 10));
            let _ = socket.read(&mut [0; 4_096]);
            let _ = socket.write_all(head.as_bytes());
        }
    });
    let front = Front::with("", |gateway| {
        *gateway = Gateway::new(format!("http://{address}").parse().expect("a URL"));
    });
    assert_eq!(get(front.address(), "/", "").status, 502);
}
