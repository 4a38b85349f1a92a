//! Requests over HTTP/2 that servers read in different ways, as bytes.

use tidegate_tests::http::get;

use super::Front;
use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, End, Frames, HEADERS, fields, frame,
};

/// How a request with these fields, and this body, ends.
fn end(front: &Front, named: &[(&str, &str)], body: Option<&str>) -> End {
    let mut frames = Frames::open(front.address());
    let flags = END_HEADERS | if body.is_none() { END_STREAM } else { 0 };
    let mut bytes = frame(HEADERS, flags, 1, &fields(named));
    if let Some(body) = body {
        bytes.extend(frame(DATA, END_STREAM, 1, body.as_bytes()));
    }
    frames.write(&bytes).expect("sent");
    frames.end(1)
}

const METHOD: (&str, &str) = (":method", "GET");
const SCHEME: (&str, &str) = (":scheme", "http");
const PATH: (&str, &str) = (":path", "/");
const AUTHORITY: (&str, &str) = (":authority", "a");

/// Sound fields before these.
fn with<'f>(more: &[(&'f str, &'f str)]) -> Vec<(&'f str, &'f str)> {
    [&[METHOD, SCHEME, PATH, AUTHORITY], more].concat()
}

#[test]
fn ov_42_ambiguous_http2_requests_are_refused_and_the_service_gets_nothing() {
    let front = Front::open("");
    assert_eq!(end(&front, &with(&[]), None), End::Status(200));
    assert_eq!(end(&front, &with(&[("host", "A")]), None), End::Status(200));
    assert_eq!(end(&front, &with(&[("te", "trailers")]), None), End::Status(200));
    assert_eq!(end(&front, &with(&[("content-length", "2")]), Some("ab")), End::Status(200));
    let served = front.service.heads().len();
    let protocol_error = End::Reset(1);
    for (named, body, expected) in [
        // Fields of the connection.
        (with(&[("connection", "close")]), None, protocol_error.clone()),
        (with(&[("transfer-encoding", "chunked")]), Some("0\r\n\r\n"), protocol_error.clone()),
        (with(&[("upgrade", "websocket")]), None, protocol_error.clone()),
        (with(&[("keep-alive", "5")]), None, protocol_error.clone()),
        (with(&[("proxy-connection", "close")]), None, protocol_error.clone()),
        (with(&[("te", "gzip")]), None, protocol_error.clone()),
        // Lengths.
        (with(&[("content-length", "5")]), None, protocol_error.clone()),
        (with(&[("content-length", "+2")]), Some("ab"), protocol_error.clone()),
        (with(&[("content-length", "2, 2")]), Some("ab"), protocol_error.clone()),
        (with(&[("content-length", "2"), ("content-length", "2")]), Some("ab"), End::Status(400)),
        // Hosts.
        (vec![METHOD, SCHEME, PATH], None, End::Status(400)),
        (with(&[("host", "b")]), None, End::Status(400)),
        (with(&[("host", "a"), ("host", "a")]), None, End::Status(400)),
        (vec![METHOD, SCHEME, PATH, (":authority", "u@a")], None, End::Status(400)),
        // Pseudo-fields.
        (vec![METHOD, PATH, AUTHORITY], None, protocol_error.clone()),
        (vec![METHOD, SCHEME, AUTHORITY], None, protocol_error.clone()),
        (with(&[("X-Upper", "1")]), None, protocol_error.clone()),
        (with(&[("x-line", "a\r\nb: c")]), None, protocol_error.clone()),
        (with(&[(":path", "/free")]), None, protocol_error.clone()),
        // Methods and targets.
        (vec![(":method", "CONNECT"), AUTHORITY], None, End::Status(405)),
        (vec![(":method", "TRACE"), SCHEME, PATH, AUTHORITY], None, End::Status(405)),
        (vec![(":method", "OPTIONS"), SCHEME, (":path", "*"), AUTHORITY], None, End::Status(400)),
    ] {
        // Some errors of fields end the whole connection.
        let found = match end(&front, &named, body) {
            End::Closed(code) => End::Reset(code),
            other => other,
        };
        assert_eq!(found, expected, "{named:?}");
        assert_eq!(front.service.heads().len(), served, "{named:?}");
    }
}

/// The length disagrees with the data when the head was forwarded already: the service must see a cut request.
#[test]
fn a_body_that_disagrees_with_its_length_is_never_a_whole_request() {
    let front = Front::open("");
    for body in ["abc", "a"] {
        let mut frames = Frames::open(front.address());
        let head = fields(&with(&[("content-length", "2")]));
        frames.write(&frame(HEADERS, END_HEADERS, 1, &head)).expect("sent");
        frames.write(&frame(DATA, END_STREAM, 1, body.as_bytes())).expect("sent");
        assert_eq!(frames.end(1), End::Reset(1), "{body}");
    }
    assert_eq!(get(front.address(), "/", "").status, 200);
}

#[test]
fn heads_are_bounded() {
    let front = Front::open("");
    let long = "a".repeat(8 << 10);
    let path = format!("/{long}");
    let long_path = vec![METHOD, SCHEME, (":path", &path), AUTHORITY];
    assert_eq!(end(&front, &long_path, None), End::Status(414));
    let names: Vec<String> = (0..101).map(|number| format!("x-{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (&**name, "a")).collect();
    assert_eq!(end(&front, &with(&many[..90]), None), End::Status(200));
    assert_eq!(end(&front, &with(&many), None), End::Status(431));
    // Above the size of a frame.
    let huge = fields(&with(&[("x-1", &long), ("x-2", &long), ("x-3", &long), ("x-4", &long)]));
    let mut frames = Frames::open(front.address());
    let (first, rest) = huge.split_at(16 << 10);
    let mut bytes = frame(HEADERS, END_STREAM, 1, first);
    let mut pieces = rest.chunks(16 << 10).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() { END_HEADERS } else { 0 };
        bytes.extend(frame(CONTINUATION, flags, 1, piece));
    }
    frames.write(&bytes).expect("sent");
    assert_eq!(frames.end(1), End::Status(431));
    assert_eq!(front.service.heads().len(), 1);
}
