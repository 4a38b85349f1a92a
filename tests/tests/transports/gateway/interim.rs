//! Interim responses (1xx) of a service.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroUsize;

use tidegate_server::Gateway;
use tidegate_tests::http::{connect, get};
use tidegate_tests::servers::wait_until;

use super::frames::{END_HEADERS, END_STREAM, End, Frames, HEADERS, fields, frame};
use super::http2_upstream::{Scripted, response};
use super::service::OK;
use super::{Front, TIMEOUT};

/// Reads until the text ends with this.
fn read_to(socket: &mut TcpStream, end: &str) -> String {
    let (mut text, mut byte) = (Vec::new(), [0]);
    while !text.ends_with(end.as_bytes()) {
        let length = socket.read(&mut byte).expect("an answer");
        assert!(length > 0, "ended after {}", text.escape_ascii());
        text.push(byte[0]);
    }
    String::from_utf8(text).expect("text")
}

const HINTS: &str = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n";

#[test]
fn early_hints_arrive_before_the_response() {
    let front = Front::open("");
    let mut socket = connect(front.address());
    // Behind a request whose response is not read yet, and one that is told to continue.
    let first = "GET /first HTTP/1.1\r\nHost: a\r\n\r\n";
    let second =
        "POST /hints HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
    socket.write_all(format!("{first}{second}").as_bytes()).expect("sent");
    let begun = read_to(&mut socket, "100 Continue\r\n\r\n");
    assert!(begun.starts_with("HTTP/1.1 200 OK\r\n"), "{begun}");
    socket.write_all(b"text").expect("sent");
    assert_eq!(read_to(&mut socket, "\r\n\r\n"), HINTS);
    front.service.release();
    let rest = read_to(&mut socket, "text");
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n") && !rest.contains("103"), "{rest}");
    socket.write_all(first.as_bytes()).expect("sent");
    assert!(read_to(&mut socket, "\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
}

/// The gateway may drop an interim response that arrives together with the response, but nothing
/// follows the response.
#[test]
fn interim_responses_that_arrive_with_the_response_do_not_follow_it() {
    let front = Front::open("");
    let request = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    for (path, most) in [
        ("/continue-ok", 0),
        ("/hints-ok", 1),
        ("/hints-with-length-ok", 1),
        ("/hints-with-chunks-ok", 1),
        ("/twenty-hints-ok", 8),
    ] {
        for _ in 0..20 {
            let mut socket = connect(front.address());
            socket.write_all(request(path).as_bytes()).expect("sent");
            let first = read_to(&mut socket, OK);
            let hints = first.strip_suffix(OK).expect("the response");
            assert_eq!(hints.replace(HINTS, ""), "", "{path}");
            assert!(hints.len() <= most * HINTS.len(), "{path} {hints}");
            socket.write_all(request("/ok").as_bytes()).expect("sent");
            assert_eq!(read_to(&mut socket, OK), OK, "{path}");
        }
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_interim_response() {
    let front = Front::set("", |_| {}, |settings| settings.threads = NonZeroUsize::MIN);
    let mut socket = connect(front.address());
    socket.write_all(b"GET /hints HTTP/1.0\r\nHost: a\r\n\r\n").expect("sent");
    wait_until("the service is asked", TIMEOUT, || front.service.heads().len() == 1);
    // Its interim response has arrived when that to a later request has.
    let mut other = connect(front.address());
    other.write_all(b"GET /hints HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    assert_eq!(read_to(&mut other, "\r\n\r\n"), HINTS);
    front.service.release();
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("an answer");
    assert!(text.starts_with("HTTP/1.0 200 OK\r\n") && !text.contains("103"), "{text}");
}

#[test]
fn early_hints_of_an_http2_service_arrive_over_http_1_1() {
    // The response to the first request is sent with that to the second one.
    let service = Scripted::start(|number, stream| match number {
        0 => {
            let hints = fields(&[(":status", "103"), ("link", "</a.css>")]);
            frame(HEADERS, END_HEADERS, stream, &hints)
        }
        _ => [1, stream].map(|it| response(it, &[(":status", "200")], None)).concat(),
    });
    let upstream = format!("h2c://{}", service.address).parse().expect("a URL");
    let front = Front::set(
        "",
        |gateway| *gateway = Gateway::new(upstream),
        |settings| settings.threads = NonZeroUsize::MIN,
    );
    let mut socket = connect(front.address());
    socket.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("sent");
    assert_eq!(read_to(&mut socket, "\r\n\r\n"), HINTS);
    assert_eq!(get(front.address(), "/", "").status, 200);
    assert!(read_to(&mut socket, "\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
}

/// The statuses of one request over HTTP/2.
fn statuses(front: &Front, path: &str) -> [End; 2] {
    let mut client = Frames::open(front.address());
    let head = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)];
    client.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &fields(&head))).expect("sent");
    let first = client.end(1);
    front.service.release();
    [first, client.end(1)]
}

#[test]
fn early_hints_arrive_over_http2() {
    assert_eq!(statuses(&Front::open(""), "/hints"), [End::Status(103), End::Status(200)]);
    let service = Scripted::start(|_, stream| {
        let hints = fields(&[(":status", "103"), ("link", "</a.css>")]);
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &hints);
        bytes.extend(response(stream, &[(":status", "200")], None));
        bytes
    });
    let upstream = format!("h2c://{}", service.address).parse().expect("a URL");
    let front = Front::with("", |gateway| *gateway = Gateway::new(upstream));
    assert_eq!(statuses(&front, "/"), [End::Status(103), End::Status(200)]);
}
