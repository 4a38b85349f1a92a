//! The status of a call, and answers to requests that are no gRPC calls.

use std::borrow::Cow;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use super::Reply;
use super::body::Body;
use crate::transport::rls::Refusal;

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// The most bytes of text that a status carries, before they are escaped.
const MAX_TEXT: usize = 1_024;

/// The gRPC codes that calls end with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// The code of all errors of envoyproxy/ratelimit.
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
}

/// Why a call ended without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    code: Code,
    text: Cow<'static, str>,
}

impl Status {
    pub(super) fn new(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self { code, text: text.into() }
    }

    pub(super) fn too_late() -> Self {
        Self::new(Code::DeadlineExceeded, "deadline exceeded")
    }

    /// The answer to a call without a message: the head contains the status.
    pub(super) fn reply(&self) -> Reply {
        let mut reply = Response::new(Body::Empty);
        reply.headers_mut().insert(CONTENT_TYPE, GRPC);
        self.write(reply.headers_mut());
        reply
    }

    /// The trailers after the last message.
    pub(super) fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(2);
        self.write(&mut trailers);
        trailers
    }

    fn write(&self, fields: &mut HeaderMap) {
        fields.insert(GRPC_STATUS, HeaderValue::from(self.code as u16));
        // Escaped text is valid in a header.
        if let Ok(text) = HeaderValue::try_from(escaped(&self.text)) {
            fields.insert(GRPC_MESSAGE, text);
        }
        if self.code == Code::Unimplemented {
            fields.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::Malformed(_) => Code::InvalidArgument,
            Refusal::TooMuch(_) => Code::ResourceExhausted,
            Refusal::Undecided(_) => Code::Unknown,
        };
        Self::new(code, refusal.to_string())
    }
}

impl From<&'static str> for Status {
    fn from(malformed: &'static str) -> Self {
        Refusal::Malformed(malformed).into()
    }
}

/// The trailers of a successful call.
pub(super) fn success() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// The answer to a request that is no gRPC call or has an unsupported encoding; `None` for a call.
pub(super) fn not_grpc(head: &Parts) -> Option<Reply> {
    if head.method != Method::POST {
        let mut reply = refused(StatusCode::METHOD_NOT_ALLOWED);
        reply.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return Some(reply);
    }
    let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let is_grpc = match kind.strip_prefix(b"application/grpc") {
        Some([] | [b';', ..]) => true,
        Some([b'+', rest @ ..]) => rest.split(|byte| *byte == b';').next() == Some(b"proto"),
        _ => false,
    };
    if !is_grpc {
        return Some(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }
    let encoding = head.headers.get(GRPC_ENCODING);
    if encoding.is_some_and(|encoding| *encoding != IDENTITY) {
        let text = "compressed messages are not supported";
        return Some(Status::new(Code::Unimplemented, text).reply());
    }
    None
}

fn refused(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::Empty);
    *reply.status_mut() = status;
    reply
}

/// Percent-encodes percent signs and all bytes that are not printable ASCII.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes().take(MAX_TEXT) {
        match byte {
            b'%' | ..b' ' | b'\x7f'.. => {
                let digit = |four: u8| char::from(b"0123456789ABCDEF"[usize::from(four)]);
                escaped.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
            plain => escaped.push(plain.into()),
        }
    }
    escaped
}
