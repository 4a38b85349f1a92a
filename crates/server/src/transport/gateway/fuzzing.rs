//! Compares the framing of the gateway with an independent reader.

mod reader;

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::reader::Whole;
use super::framing::{Framing, MAX_FIELDS, MAX_HEAD, MAX_RESPONSE_HEAD};
use super::guard::Guard;
use super::head;
use crate::settings::HeaderNames;

/// Polls without progress after which nothing more will happen.
const POLLS: usize = 256;

/// A connection that delivers bytes in pieces and discards writes.
struct Wire {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    /// Whether the peer sends its bytes only after a write.
    waits: bool,
    /// Whether the connection ends after the bytes, or stays open.
    ends: bool,
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.bytes[self.at..];
        if self.waits || (rest.is_empty() && !self.ends) {
            return Poll::Pending;
        }
        let length = rest.len().min(self.piece).min(buffer.remaining());
        buffer.put_slice(&rest[..length]);
        self.at += length;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.waits = false;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Polls until the future is ready; `None` if it makes no progress.
fn settle<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..POLLS {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return Some(value);
        }
    }
    None
}

/// A request as hyper has read it. It has a body unless the connection ended within the body.
struct Seen {
    method: Method,
    body: Option<Vec<u8>>,
    is_cut: bool,
}

/// Reads the bytes as requests through the guard and hyper.
pub(crate) fn try_requests(bytes: &[u8], piece: usize) {
    // Messages as the guard follows them.
    let (mut framing, mut begun, mut messages) = (Framing::default(), 0, Vec::new());
    for (at, byte) in bytes.iter().enumerate() {
        if framing.read(&[*byte]).is_err() {
            break;
        }
        if framing.is_between() {
            messages.push(&bytes[begun..=at]);
            begun = at + 1;
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("{error}"));
    let _entered = runtime.enter();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let answer = service_fn(|request: Request<Incoming>| {
        let seen = Rc::clone(&seen);
        async move {
            let (head, body) = request.into_parts();
            let is_refused = head::check(&head, &HeaderNames::NONE).is_err();
            let body = body.collect().await;
            let is_cut = body.as_ref().is_err_and(hyper::Error::is_incomplete_message);
            let body = body.ok().map(|body| body.to_bytes().to_vec());
            seen.borrow_mut().push(Seen { method: head.method, body, is_cut });
            let mut response = Response::new(Empty::<Bytes>::new());
            if is_refused {
                *response.status_mut() = StatusCode::BAD_REQUEST;
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let wire = Wire { bytes: bytes.to_vec(), at: 0, piece, waits: false, ends: true };
    let guard = Guard::new(wire, Arc::default(), Arc::default());
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).max_buf_size(MAX_HEAD).max_headers(MAX_FIELDS);
    let serving = builder.serve_connection(TokioIo::new(guard), answer);
    // All bytes are in memory, so the connection ends without a stop.
    let mut serving = pin!(serving);
    let mut context = Context::from_waker(Waker::noop());
    let most = 64 + 8 * bytes.len();
    let ended = (0..most).any(|_| serving.as_mut().poll(&mut context).is_ready());
    assert!(ended, "the connection hangs");

    let seen = seen.borrow();
    for (number, seen) in seen.iter().enumerate() {
        // CONNECT has no body of its own, and is refused.
        if seen.method == Method::CONNECT {
            return;
        }
        let Some(message) = messages.get(number) else {
            assert!(seen.body.is_none(), "hyper reads a message more than the guard: {number}");
            return;
        };
        let whole = Whole::of_request(message)
            .unwrap_or_else(|| panic!("the guard passes {}", message.escape_ascii()));
        assert_eq!(whole.length, message.len(), "{}", message.escape_ascii());
        assert!(!seen.is_cut, "hyper waits for more of {}", message.escape_ascii());
        if let Some(body) = &seen.body {
            assert_eq!(*body, whole.body, "{}", message.escape_ascii());
        }
    }
}

/// A response as the gateway would pass it on.
struct Answered {
    status: u16,
    /// `None` if it was cut.
    body: Option<Vec<u8>>,
}

/// Reads the bytes as responses through the client of the pool.
pub(crate) fn try_responses(bytes: &[u8], choice: u8) {
    let method = if choice & 1 == 0 { Method::GET } else { Method::HEAD };
    let (ends, piece) = (choice & 2 != 0, usize::from(choice >> 2) * 16 + 1);
    let wire = Wire { bytes: bytes.to_vec(), at: 0, piece, waits: true, ends };
    let handshake = conn::http1::Builder::new()
        .max_headers(MAX_FIELDS)
        .max_buf_size(MAX_RESPONSE_HEAD)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(wire));
    let Some(Ok((mut sender, connection))) = settle(handshake) else {
        panic!("it waits for nothing")
    };
    let mut connection = pin!(connection);
    let mut is_open = true;
    let mut ask = |method: &Method| {
        let mut request = Request::new(Empty::new());
        *request.method_mut() = method.clone();
        let mut exchange = pin!(async {
            if sender.ready().await.is_err() {
                return None;
            }
            let response = sender.send_request(request).await.ok()?;
            if head::is_ambiguous(response.headers()) {
                return None;
            }
            let (head, body) = response.into_parts();
            let body = body.collect().await.ok().map(|body| body.to_bytes().to_vec());
            Some(Answered { status: head.status.as_u16(), body })
        });
        let both = poll_fn(|context| {
            if is_open && connection.as_mut().poll(context).is_ready() {
                is_open = false;
            }
            exchange.as_mut().poll(context)
        });
        let mut both = pin!(both);
        let mut context = Context::from_waker(Waker::noop());
        (0..64 + 4 * bytes.len()).find_map(|_| match both.as_mut().poll(&mut context) {
            Poll::Ready(answered) => Some(answered),
            Poll::Pending => None,
        })
    };
    let Some(Some(answered)) = ask(&method) else { return };
    // A switch of protocols is refused unless it was asked for.
    if answered.status == 101 {
        return;
    }
    let whole = Whole::of_response(bytes, method == Method::HEAD, ends);
    let Some(body) = answered.body else { return };
    let whole = whole.unwrap_or_else(|| panic!("handed on: {}", bytes.escape_ascii()));
    assert_eq!((answered.status, &body), (whole.status, &whole.body), "{}", bytes.escape_ascii());
    // All bytes came before this request was sent, so none of them answers it.
    if let Some(Some(second)) = ask(&Method::GET) {
        panic!("answered with {} by bytes behind a response", second.status);
    }
}
