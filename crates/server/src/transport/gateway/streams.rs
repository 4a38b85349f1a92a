//! HTTP/2 connections of clients.
//!
//! The connection's task answers the requests, so that they end with the connection.
//! `http2/frames.rs` ends connections of clients that flood, and `http2/budget.rs` bounds the
//! memory of all connections together.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use hyper::body::{Body, Bytes};
use hyper::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::body::WireBody;
use super::framing::MAX_HEAD;
use super::http2::{self, StreamBody};
use super::interim::Interim;
use super::{GatewayConnection, IDLE_TIME, head};
use crate::observability::throttle::{Admitted, Frequent};
use crate::settings::Settings;
use crate::transport::Stream;
use crate::transport::http::WriteTimeout;
use crate::transport::http2::{
    Account, Budget, Charge, Counted, FrameLimits, Frames, KEEP_ALIVE, Pings,
};

/// The most requests in progress on one connection.
const MAX_STREAMS: u32 = 128;

/// How many frames a client may send. A head alone may be a complete request, so every reset counts
/// the same.
const FRAMES: FrameLimits =
    FrameLimits { streams: MAX_STREAMS as usize, bare_resets: usize::MAX, control_per_data: 2 };

/// The most streams that h2 may reset because of the client before it ends the connection. Only a client that
/// never acknowledges the settings reaches it; `http2/frames.rs` counts all others.
const MAX_RESETS: usize = 16 * MAX_STREAMS as usize;

/// The flow-control windows of a connection and of a stream, in bytes.
const WINDOWS: (u32, u32) = (256 << 10, 64 << 10);

/// The most bytes of a response that a stream buffers.
const MAX_UNSENT: usize = 64 << 10;

/// How long an idle connection may take to end.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// How long the client may take to read the reason for the end of its connection.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// A connection and the requests on it.
struct Streams<'c> {
    connection: Connection<Counted, Bytes>,
    gateway: &'c GatewayConnection<'c>,
    frames: Arc<Frames>,
    account: Account,
    /// How long the client may read nothing of a response.
    longest: Duration,
    /// Requests in progress, at most [`MAX_STREAMS`]. Each yields whether the client took its
    /// response.
    requests: FuturesUnordered<BoxFuture<'c, bool>>,
    /// Number of requests so far.
    asked: u64,
    /// The budget charge for responses that the client does not read.
    blocked: Option<Charge>,
}

/// Serves a connection until the client closes it, it is idle, or the server is stopping.
pub(super) async fn serve(
    stream: Stream,
    gateway: &GatewayConnection<'_>,
    settings: &Settings,
    budget: &Budget,
    stopped: &mut watch::Receiver<bool>,
) {
    let frames = Arc::new(Frames::new(FRAMES));
    let stream = WriteTimeout::new(stream, settings.idle_after);
    let idle_time = IDLE_TIME.min(settings.idle_after);
    let greeting = builder().handshake(Counted::new(stream, Arc::clone(&frames)));
    let Ok(Ok(connection)) = timeout(idle_time, greeting).await else { return };
    let mut streams = Streams {
        connection,
        gateway,
        frames,
        account: Account::new(budget, 0),
        longest: settings.idle_after,
        requests: FuturesUnordered::new(),
        asked: 0,
        blocked: None,
    };
    if let Some(grace) = streams.until_end(idle_time, stopped).await {
        // Tells the client to use another connection; requests in progress are answered.
        streams.connection.graceful_shutdown();
        let _ = timeout(grace, poll_fn(|context| streams.poll(context))).await;
    }
    streams.end_if_abused().await;
}

impl<'c> Streams<'c> {
    /// Answers until the connection should end, and returns the grace period; `None` if it has ended already.
    async fn until_end(
        &mut self,
        idle_time: Duration,
        stopped: &mut watch::Receiver<bool>,
    ) -> Option<Duration> {
        let mut pings = Pings::new(self.connection.ping_pong()?);
        let (mut idle, mut seen) = (pin!(sleep(idle_time)), 0);
        let mut silent = pin!(sleep(KEEP_ALIVE.0));
        loop {
            tokio::select! {
                biased;
                () = poll_fn(|context| self.poll(context)) => return None,
                // The worker enforces the end.
                _ = stopped.wait_for(|stopped| *stopped) => return Some(Duration::MAX),
                () = idle.as_mut() => {
                    if self.asked == seen && self.requests.is_empty() {
                        return Some(IDLE_GRACE);
                    }
                    seen = self.asked;
                    idle.set(sleep(idle_time));
                }
                () = poll_fn(|context| pings.poll_pong(context)) => {
                    silent.set(sleep(KEEP_ALIVE.0));
                }
                () = silent.as_mut() => {
                    self.frames.renew();
                    let wait = pings.send(self.asked)?;
                    silent.set(sleep(wait));
                }
            }
        }
    }

    /// Answers requests as they arrive. Ready when the connection has ended, or should end because of abuse or
    /// lack of memory.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.frames.begin_turn();
        loop {
            let ended = loop {
                match self.connection.poll_accept(context) {
                    Poll::Ready(Some(Ok((request, respond)))) => self.start(request, respond),
                    Poll::Ready(Some(Err(_)) | None) => break Poll::Ready(()),
                    Poll::Pending => break Poll::Pending,
                }
            };
            if self.frames.is_abuse() || !self.can_hold_answers() {
                return Poll::Ready(());
            }
            let (mut has_answered, mut taken) = (false, 0);
            while let Poll::Ready(Some(is_taken)) = self.requests.poll_next_unpin(context) {
                (has_answered, taken) = (true, taken + usize::from(is_taken));
            }
            self.frames.count_answers(taken);
            if ended.is_ready() || !has_answered {
                return ended;
            }
        }
    }

    fn start(&mut self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
        self.asked += 1;
        let Some(charge) = self.account.call() else {
            let mut busy = Response::new(());
            *busy.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            busy.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            // Fails if the client is gone.
            let _ = respond.send_response(busy, true);
            return;
        };
        let (gateway, longest) = (self.gateway, self.longest);
        self.requests.push(Box::pin(async move {
            let is_taken = answer(gateway, request, respond, longest).await;
            drop(charge);
            is_taken
        }));
    }

    /// Whether there is memory for the responses that a blocked client does not read.
    fn can_hold_answers(&mut self) -> bool {
        if !self.frames.is_blocked() {
            self.blocked = None;
        } else if self.blocked.is_none() {
            self.blocked = self.account.blocked();
            return self.blocked.is_some();
        }
        true
    }

    /// Sends the reason for the end of a connection to a client that floods.
    async fn end_if_abused(&mut self) {
        if !self.frames.is_abuse() {
            return;
        }
        let log = self.gateway.service.status().log();
        if let Some(Admitted { suppressed }) = log.admit(Frequent::ConnectionClosed) {
            let (event, listener) = ("connection_closed", "gateway");
            let why = "closed a connection: its client resets streams or sends control frames faster than requests";
            warn!(event, listener, suppressed, "{why}");
        }
        self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        let closed = poll_fn(|context| self.connection.poll_closed(context));
        let _ = timeout(CLOSE_TIME, closed).await;
    }
}

/// Answers one request, until the client cancels it. Yields whether the client took the response.
async fn answer(
    gateway: &GatewayConnection<'_>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    longest: Duration,
) -> bool {
    let (mut head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    head::unify(&mut head);
    let interim = Interim::default();
    head.extensions.insert(interim.clone());
    let request = Request::from_parts(head, WireBody::Http2(StreamBody::new(body)));
    let mut answer = pin!(gateway.log(request));
    let answer = poll_fn(|context| {
        let answer = answer.as_mut().poll(context);
        if respond.poll_reset(context).is_ready() {
            return Poll::Ready(None);
        }
        while let Poll::Ready(interim) = interim.poll_next(context) {
            // Fails if the client is gone.
            let _ = respond.send_informational(interim);
        }
        answer.map(Some)
    });
    let Some(answer) = answer.await else { return false };
    interim.end();
    let (mut head, body) = answer.into_parts();
    // The gateway's own responses may have this field, which HTTP/2 does not allow.
    head.headers.remove(CONNECTION);
    let has_no_body = is_head
        || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || body.is_end_stream();
    match respond.send_response(Response::from_parts(head, ()), has_no_body) {
        Ok(_) if has_no_body => true,
        Ok(stream) => http2::send(body, stream, longest).await,
        // The client is gone.
        Err(_) => false,
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD as u32)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_RESETS))
        .max_concurrent_reset_streams(MAX_STREAMS as usize)
        .initial_connection_window_size(WINDOWS.0)
        .initial_window_size(WINDOWS.1)
        .max_send_buffer_size(MAX_UNSENT);
    builder
}
