//! Services of HTTP/2 that send what a test says, as bytes.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tidegate_server::Gateway;
use tidegate_tests::http::{ask, connect, get};

use super::Front;
use super::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RESET, SETTINGS, fields, frame,
};

/// The frames that the nth request is answered with; it is on this stream.
type Script = dyn Fn(usize, u32) -> Vec<u8> + Send + Sync;

pub(super) struct Scripted {
    pub(super) address: SocketAddr,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Scripted {
    pub(super) fn start(script: impl Fn(usize, u32) -> Vec<u8> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let requests = Arc::new(AtomicUsize::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let (script, counted): (Arc<Script>, _) = (Arc::new(script), Arc::clone(&requests));
        let opened = Arc::clone(&connections);
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                opened.fetch_add(1, Ordering::AcqRel);
                let (script, counted) = (Arc::clone(&script), Arc::clone(&counted));
                thread::spawn(move || serve(socket, &*script, &counted));
            }
        });
        Self { address, requests, connections }
    }

    fn front(&self) -> Front {
        let upstream = format!("h2c://{}", self.address).parse().expect("a URL");
        Front::with("", |gateway| *gateway = Gateway::new(upstream))
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Acquire)
    }
}

fn serve(mut socket: TcpStream, script: &Script, requests: &AtomicUsize) -> Option<()> {
    let mut reader = BufReader::new(socket.try_clone().ok()?);
    reader.read_exact(&mut [0; 24]).ok()?;
    socket.write_all(&frame(SETTINGS, 0, 0, &[])).ok()?;
    loop {
        let mut head = [0; 9];
        reader.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        reader.read_exact(&mut payload).ok()?;
        match kind {
            SETTINGS if flags == 0 => socket.write_all(&frame(SETTINGS, 1, 0, &[])).ok()?,
            HEADERS => {
                let number = requests.fetch_add(1, Ordering::AcqRel);
                let answer = script(number, u32::from_be_bytes(stream));
                socket.write_all(&answer).ok()?;
                if answer.is_empty() {
                    return None;
                }
            }
            _ => {}
        }
    }
}

/// A response with these fields, and this body.
pub(super) fn response(stream: u32, named: &[(&str, &str)], body: Option<&str>) -> Vec<u8> {
    let flags = END_HEADERS | if body.is_none() { END_STREAM } else { 0 };
    let mut bytes = frame(HEADERS, flags, stream, &fields(named));
    if let Some(body) = body {
        bytes.extend(frame(DATA, END_STREAM, stream, body.as_bytes()));
    }
    bytes
}

const OK: (&str, &str) = (":status", "200");

#[test]
fn malformed_http2_responses_are_502() {
    for named in [
        &[OK, ("connection", "close")][..],
        &[OK, ("transfer-encoding", "chunked")],
        &[OK, ("upgrade", "websocket")],
        &[OK, ("keep-alive", "5")],
        &[OK, ("proxy-connection", "close")],
        &[OK, ("X-Upper", "1")],
        &[OK, ("x-line", "a\r\nb: c")],
        &[OK, ("content-length", "2"), ("content-length", "2")],
        &[OK, ("content-length", "+2")],
        &[("x-status", "200")],
        &[(":status", "abc")],
    ] {
        let named: Vec<(String, String)> =
            named.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let shown = format!("{named:?}");
        let service = Scripted::start(move |_, stream| {
            let named: Vec<_> = named.iter().map(|(name, value)| (&**name, &**value)).collect();
            response(stream, &named, Some("ok"))
        });
        let answer = get(service.front().address(), "/", "");
        assert_eq!(answer.status, 502, "{shown}: {answer:?}");
        assert!(answer.body.starts_with("{\"type\":\"about:blank\""), "{answer:?}");
    }
}

/// The head was sent already: the client sees that the body was cut.
#[test]
fn a_response_that_disagrees_with_its_length_is_cut() {
    for (length, body) in [("5", "ab"), ("1", "ab")] {
        let service = Scripted::start(move |_, stream| {
            response(stream, &[OK, ("content-length", length)], Some(body))
        });
        let front = service.front();
        let mut socket = connect(front.address());
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        socket.write_all(request).expect("sent");
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        // Perhaps the head has not left when the connection is closed.
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let is_refused = answer.starts_with("HTTP/1.1 502 ");
        assert!(is_refused || body.len().to_string() != length, "{answer:?}");
    }
}

#[test]
fn responses_are_forwarded_and_the_connection_is_shared() {
    let service = Scripted::start(|_, stream| response(stream, &[OK, ("x-a", "1")], Some("ok")));
    let front = service.front();
    for _ in 0..3 {
        let answer = get(front.address(), "/", "");
        assert_eq!((answer.status, answer.header("x-a")), (200, Some("1")));
        assert!(answer.body.contains("ok"), "{answer:?}");
    }
    assert_eq!(service.requests(), 3);
}

/// REFUSED_STREAM and GOAWAY say that a request was not processed: also a POST is sent once more. A body that was
/// sent already is not there any more.
#[test]
fn a_request_that_was_not_processed_is_sent_once_more() {
    let refused: fn(u32) -> Vec<u8> = |stream| frame(RESET, 0, stream, &[0, 0, 0, 7]);
    let left_out: fn(u32) -> Vec<u8> = |_| frame(GOAWAY, 0, 0, &[0; 8]);
    for not_processed in [refused, left_out] {
        let service = Scripted::start(move |number, stream| match number {
            0 => not_processed(stream),
            _ => response(stream, &[OK], None),
        });
        let front = Front::with("", |gateway| {
            let url = format!("h2c://{}", service.address);
            // Another address, because the connection was new.
            let upstream = tidegate_server::Upstream::new("a", &[&url, &url]);
            *gateway = Gateway::new(upstream.expect("URLs"));
        });
        let answer = ask(front.address(), "POST /", "", "");
        assert_eq!((answer.status, service.requests()), (200, 2), "{answer:?}");
    }
    let service = Scripted::start(move |_, stream| refused(stream));
    let answer = ask(service.front().address(), "POST /", "", "text");
    assert_eq!((answer.status, service.requests()), (502, 1), "{answer:?}");
}

/// Otherwise each of a hundred requests would make a connection of its own.
#[test]
fn requests_that_a_goaway_leaves_out_share_one_new_connection() {
    const REQUESTS: usize = 20;
    // A frame of an unknown type says nothing.
    let service = Scripted::start(|number, stream| match number + 1 {
        ..REQUESTS => frame(0xbb, 0, 0, &[]),
        REQUESTS => frame(GOAWAY, 0, 0, &[0; 8]),
        _ => response(stream, &[OK], None),
    });
    let upstream = format!("h2c://{}", service.address).parse().expect("a URL");
    let front = Front::set(
        "",
        |gateway| *gateway = Gateway::new(upstream),
        |settings| settings.threads = NonZeroUsize::MIN,
    );
    thread::scope(|scope| {
        for _ in 0..REQUESTS {
            scope.spawn(|| assert_eq!(get(front.address(), "/", "").status, 200));
        }
    });
    let connections = service.connections.load(Ordering::Acquire);
    assert_eq!((service.requests(), connections), (2 * REQUESTS, 2));
}

/// A connection that ends without a word may have taken the request.
#[test]
fn only_safe_requests_are_repeated_when_a_connection_ends() {
    for (call, expected) in [("GET /", (200, 2)), ("DELETE /", (502, 1))] {
        let service = Scripted::start(|number, stream| match number {
            0 => Vec::new(),
            _ => response(stream, &[OK], None),
        });
        let url = format!("h2c://{}", service.address);
        let upstream = tidegate_server::Upstream::new("a", &[&url, &url]).expect("URLs");
        let front = Front::with("", |gateway| *gateway = Gateway::new(upstream));
        let answer = ask(front.address(), call, "", "");
        assert_eq!((answer.status, service.requests()), expected, "{call}: {answer:?}");
    }
}
