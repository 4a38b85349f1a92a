//! Sends one request over one connection.

use std::error::Error;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use h2::Reason;
use hyper::ext::on_informational;
use hyper::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{Request, Response, Uri, Version};
use tokio::task::AbortHandle;

use super::address::{InProgress, Outcome};
use super::body::{RequestBody, WireBody};
use super::http2::{self, StreamBody};
use super::interim::Interim;
use super::pool::Lease;
use crate::settings;

/// A connection with a request.
pub(super) struct Leased {
    lease: Lease,
    /// Whether the connection has carried a request before, so that the upstream may be closing it.
    pub(super) is_reused: bool,
    /// The index of its address.
    pub(super) number: usize,
    in_progress: InProgress,
    /// Sends the body of the request over HTTP/2.
    upload: Option<Upload>,
}

/// A task that is aborted on drop.
struct Upload(AbortHandle);

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a request has no response.
pub(super) struct Unanswered {
    pub(super) outcome: Outcome,
    /// The request, if the upstream has not processed any of it.
    pub(super) unsent: Option<(Parts, RequestBody)>,
    /// Whether the connection ended, so that a safe request may be repeated.
    pub(super) is_gone: bool,
}

impl Leased {
    pub(super) const fn new(
        lease: Lease,
        is_reused: bool,
        number: usize,
        in_progress: InProgress,
    ) -> Self {
        Self { lease, is_reused, number, in_progress, upload: None }
    }

    /// Records the outcome of the request.
    pub(super) fn record(&self, outcome: Outcome) {
        self.in_progress.address().record(outcome);
    }

    /// Records that the request is repeated because this connection failed.
    pub(super) fn count_retry(&self) {
        self.in_progress.address().count_retry();
    }

    /// Whether the connection can become a tunnel.
    pub(super) const fn can_upgrade(&self) -> bool {
        matches!(self.lease, Lease::Http1 { .. })
    }

    /// Keeps the connection for another request: its response has ended.
    pub(super) fn put_back(self) {
        self.lease.put_back();
    }

    /// Sends a request, and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        upstream: &settings::Upstream,
        head: Parts,
        body: RequestBody,
        interim: Option<&Interim>,
    ) -> Result<Response<WireBody>, Unanswered> {
        match &mut self.lease {
            Lease::Http1 { sender, .. } => {
                let mut request = Request::from_parts(head, body);
                if let Some(interim) = interim.cloned() {
                    on_informational(&mut request, move |response| {
                        interim.push(response.status(), response.headers());
                    });
                }
                match sender.try_send_request(request).await {
                    Ok(response) => Ok(response.map(WireBody::Http1)),
                    Err(mut error) => {
                        let unsent = error.take_message().map(Request::into_parts);
                        Err(Unanswered::of_http1(error.error(), unsent))
                    }
                }
            }
            Lease::Http2 { sender, .. } => {
                let again = body.is_empty().then(|| head.clone());
                let is_end = body.is_empty();
                let head = for_http2(head, upstream);
                let sent = sender.send_request(Request::from_parts(head, ()), is_end);
                let unanswered = |error: &h2::Error| Unanswered::of_http2(error, again.clone());
                let (mut response, stream) = sent.map_err(|error| unanswered(&error))?;
                if is_end {
                    drop(body);
                } else {
                    let sending = http2::send(body, stream, upstream.idle_timeout);
                    self.upload = Some(Upload(tokio::spawn(sending).abort_handle()));
                }
                let response = poll_fn(|context| {
                    while let (Some(interim), Poll::Ready(Some(Ok(response)))) =
                        (interim, response.poll_informational(context))
                    {
                        interim.push(response.status(), response.headers());
                    }
                    Pin::new(&mut response).poll(context)
                });
                let response = response.await.map_err(|error| unanswered(&error))?;
                Ok(response.map(|body| WireBody::Http2(StreamBody::new(body))))
            }
        }
    }
}

impl Unanswered {
    fn of_http1(error: &hyper::Error, unsent: Option<(Parts, RequestBody)>) -> Self {
        let outcome = match error {
            _ if error.is_parse() => Outcome::Malformed,
            // The body of the request failed.
            _ if error.is_user() => Outcome::ClientGone,
            _ => Outcome::NoResponse,
        };
        let is_gone = error.is_incomplete_message() || error.is_canceled() || is_reset(error);
        Self { outcome, unsent, is_gone }
    }

    /// A stream that was refused, or that a GOAWAY leaves out, was not processed.
    fn of_http2(error: &h2::Error, again: Option<Parts>) -> Self {
        let is_unprocessed = error.is_remote()
            && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM));
        let is_own_reset = error.is_reset() && !error.is_remote() && !error.is_library();
        let outcome = match error.reason() {
            Some(Reason::PROTOCOL_ERROR) if error.is_library() => Outcome::Malformed,
            // This side has reset the stream, see `http2::send`.
            Some(http2::BODY_CUT) if is_own_reset => Outcome::ClientGone,
            Some(http2::NO_ROOM) if is_own_reset => Outcome::TimedOut,
            _ => Outcome::NoResponse,
        };
        let unsent = again.filter(|_| is_unprocessed).map(|head| (head, RequestBody::empty()));
        Self { outcome, unsent, is_gone: error.is_io() }
    }
}

/// Whether the connection was reset, or ended without the end of TLS.
fn is_reset(error: &hyper::Error) -> bool {
    let io = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    io.is_some_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::NotConnected
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        )
    })
}

/// Converts a head to HTTP/2: `Host` becomes `:authority`, and upgrades are dropped.
fn for_http2(mut head: Parts, upstream: &settings::Upstream) -> Parts {
    head.headers.remove(CONNECTION);
    head.headers.remove(UPGRADE);
    let host = head.headers.remove(HOST);
    let host = host.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
    let scheme = match upstream.scheme {
        settings::Scheme::Https => Scheme::HTTPS,
        settings::Scheme::Http | settings::Scheme::H2c => Scheme::HTTP,
    };
    let target = head.uri.path_and_query().cloned();
    let mut uri = hyper::http::uri::Parts::default();
    uri.scheme = Some(scheme);
    uri.authority = Authority::try_from(host).ok();
    uri.path_and_query = Some(target.unwrap_or_else(|| PathAndQuery::from_static("/")));
    // Without an authority, h2 refuses to send it.
    head.uri = Uri::from_parts(uri).unwrap_or_default();
    head.version = Version::HTTP_2;
    head
}
