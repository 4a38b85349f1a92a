//! Interim responses (1xx) of an upstream, such as `103 Early Hints`.
//!
//! hyper's server cannot send them. Over HTTP/1.1, [`Guard`](super::guard::Guard) writes them, and
//! only while hyper waits for the response: by then hyper has written all earlier responses, and
//! nothing of this one.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use hyper::header::HeaderMap;
use hyper::{Response, StatusCode, Version};

use super::head;
use super::http2::length;

/// The most interim responses to a request, and the most bytes of their fields together: an HTTP/2
/// stream of a client that does not read buffers all of them.
const MAX_RESPONSES: usize = 8;
const MAX_BYTES: usize = 4 << 10;

/// The interim responses to one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Interim(Arc<Mutex<Queue>>);

#[derive(Debug, Default)]
struct Queue {
    unsent: VecDeque<Response<()>>,
    responses: usize,
    bytes: usize,
    is_over: bool,
    /// The waker of the task that sends the responses.
    waker: Option<Waker>,
}

impl Interim {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an interim response, without fields of the upstream's connection. Responses above the
    /// bounds are dropped, and so is 100, which the gateway sends on its own.
    pub(super) fn push(&self, status: StatusCode, fields: &HeaderMap) {
        let is_own = matches!(status, StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS);
        let bytes = length(fields);
        let mut queue = self.queue();
        let is_full = queue.responses == MAX_RESPONSES || queue.bytes + bytes > MAX_BYTES;
        if is_own || is_full || queue.is_over || !status.is_informational() {
            return;
        }
        (queue.responses, queue.bytes) = (queue.responses + 1, queue.bytes + bytes);
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = fields.clone();
        head::clean_trailers(response.headers_mut());
        queue.unsent.push_back(response);
        if let Some(waker) = queue.waker.take() {
            waker.wake();
        }
    }

    /// The next response to send. The task is woken when there is one.
    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Response<()>> {
        let mut queue = self.queue();
        if let Some(response) = queue.unsent.pop_front() {
            return Poll::Ready(response);
        }
        match &mut queue.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Drops unsent interim responses, because the response has arrived.
    pub(super) fn end(&self) {
        let mut queue = self.queue();
        queue.is_over = true;
        queue.unsent.clear();
    }
}

/// The interim responses to the request in progress of a connection of HTTP/1.1, if there is one.
#[derive(Debug, Default)]
pub(super) struct Current(Mutex<Option<Interim>>);

impl Current {
    fn interim(&self) -> MutexGuard<'_, Option<Interim>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request. HTTP/1.0 has no interim responses.
    pub(super) fn begin(&self, version: Version) -> Option<Interim> {
        let interim = (version == Version::HTTP_11).then(Interim::default);
        self.interim().clone_from(&interim);
        interim
    }

    /// Ends the request, because its response has arrived.
    pub(super) fn end(&self) {
        if let Some(interim) = self.interim().take() {
            interim.end();
        }
    }

    /// The bytes of the next interim response.
    pub(super) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Vec<u8>> {
        match &*self.interim() {
            Some(interim) => interim.poll_next(context).map(|response| bytes(&response)),
            None => Poll::Pending,
        }
    }
}

/// A head of HTTP/1.1.
fn bytes(response: &Response<()>) -> Vec<u8> {
    let status = response.status();
    let mut bytes = Vec::with_capacity(64 + length(response.headers()));
    let reason = status.canonical_reason().unwrap_or_default();
    // A vector takes all bytes.
    let _ = write!(bytes, "HTTP/1.1 {} {reason}\r\n", status.as_u16());
    for (name, value) in response.headers() {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> HeaderMap {
        let mut fields = HeaderMap::new();
        fields.insert("link", text.parse().unwrap());
        fields.insert("connection", "x-own".parse().unwrap());
        fields.insert("x-own", "1".parse().unwrap());
        fields.insert("content-length", "5".parse().unwrap());
        fields
    }

    fn next(interim: &Interim) -> Option<Response<()>> {
        match interim.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(response) => Some(response),
            Poll::Pending => None,
        }
    }

    #[test]
    fn interim_responses_are_bounded_and_have_no_fields_of_the_connection() {
        let interim = Interim::default();
        let hints = StatusCode::EARLY_HINTS;
        for status in [StatusCode::CONTINUE, StatusCode::SWITCHING_PROTOCOLS, StatusCode::OK] {
            interim.push(status, &fields("</a>"));
        }
        interim.push(hints, &fields(&"a".repeat(MAX_BYTES)));
        assert!(next(&interim).is_none());
        for _ in 0..10 {
            interim.push(hints, &fields("</a>"));
        }
        let all: Vec<_> = std::iter::from_fn(|| next(&interim)).collect();
        assert_eq!(all.len(), MAX_RESPONSES);
        assert_eq!(bytes(&all[0]), b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n");
    }

    #[test]
    fn what_was_not_sent_before_the_response_is_dropped() {
        let current = Current::default();
        assert!(current.begin(Version::HTTP_10).is_none());
        let interim = current.begin(Version::HTTP_11).unwrap();
        interim.push(StatusCode::PROCESSING, &HeaderMap::new());
        current.end();
        interim.push(StatusCode::PROCESSING, &HeaderMap::new());
        assert!(next(&interim).is_none());
        let context = &mut Context::from_waker(Waker::noop());
        assert!(current.poll_next(context).is_pending());
    }
}
