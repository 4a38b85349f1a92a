//! gRPC over HTTP/2: Envoy's rate limit service, health checks and reflection.
//!
//! ```text
//!   stream ──message.rs──▶ rls ──▶ service ──▶ rls ──body.rs──▶ stream
//!                        └▶ health.rs, reflection.rs ─┘
//! ```
//!
//! There are no layers between HTTP/2 and the decision: the message is parsed in place, and the
//! answer is written once. The connection's task answers calls that arrived together as a batch, at
//! once or when the store has answered, because a task per call costs more than the call itself.
//!
//! # Bounds
//! A connection has at most [`MAX_STREAMS`] requests in progress, each with at most [`MAX_HEAD`]
//! bytes of head and a message of [`MAX_MESSAGE`](super::rls::MAX_MESSAGE), which must arrive
//! within [`BODY_TIME`](call::BODY_TIME). `http2/frames.rs` ends connections of peers that flood;
//! `http2/budget.rs` bounds the memory of all connections together.

mod body;
mod call;
mod health;
mod message;
mod reflection;
mod status;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use hyper::body::Bytes;
use hyper::{Request, Response};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use self::body::Body;
use self::call::Started;
use super::Stream;
use super::http::WriteTimeout;
use super::http2::{Account, Charge, Counted, FrameLimits, Frames, KEEP_ALIVE, Pings};
use crate::observability::throttle::{Admitted, Frequent};
use crate::runtime::worker::ConnContext;
use crate::service::RateLimitService;
use crate::settings::Settings;

#[cfg(feature = "fuzzing")]
pub(crate) use self::call::try_call;

/// The most requests in progress on one connection. Envoy opens up to 1,024 streams before it has
/// read this setting, and older versions as many as its circuit breaker allows; a refused stream is
/// a request that fails open.
const MAX_STREAMS: u32 = 4_096;

/// The most bytes of a head.
const MAX_HEAD: u32 = 16 << 10;

/// The most streams that h2 may reset because of the peer before it ends the connection. Only a
/// peer that never acknowledges the settings reaches it; `http2/frames.rs` counts all others.
const MAX_RESETS: usize = 16 * MAX_STREAMS as usize;

/// The most reset streams that are remembered, because their last frames may still arrive.
const MAX_REMEMBERED: usize = 1_024;

/// The flow-control windows of a connection and of a stream, in bytes.
const WINDOWS: (u32, u32) = (1 << 20, 128 << 10);

/// Bytes of unfinished messages that one connection may hold. They fit into its flow-control
/// window, so that each message can be completed although credit is returned only afterwards.
const MAX_UNFINISHED: usize = WINDOWS.0 as usize - WINDOWS.1 as usize;

/// How many frames a peer may send. A peer that resets streams without having sent a message is no caller.
const FRAMES: FrameLimits =
    FrameLimits { streams: MAX_STREAMS as usize, bare_resets: 64, control_per_data: 0 };

/// The most bytes of answers that a stream buffers for a peer that does not read.
const MAX_UNSENT: usize = 64 << 10;

/// How long a connection may take to send its first request.
const FIRST_TIME: Duration = Duration::from_secs(60);

/// How long an idle connection may take to end.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// How long a connection that was accepted before the server stopped may take to send its first
/// request.
const FIRST_REQUEST_GRACE: Duration = Duration::from_secs(1);

/// How long the peer may take to read why its connection ends.
const CLOSE_TIME: Duration = Duration::from_secs(1);

type Reply = Response<Body>;

/// A call and the stream for its answer.
type Call = (Request<RecvStream>, SendResponse<Bytes>);

/// The state of a connection that its requests share.
#[derive(Debug)]
struct GrpcConnection {
    service: RateLimitService,
    settings: Arc<Settings>,
    stopped: watch::Receiver<bool>,
    account: Account,
    /// Number of requests so far.
    asked: AtomicU64,
}

/// Serves a connection until the peer closes it, it is too old, or the server is stopping.
pub(crate) async fn converse(stream: Stream, context: ConnContext) {
    let ConnContext { service, settings, mut stopped, budget, .. } = context;
    let (asked, account) = (AtomicU64::new(0), Account::new(&budget, MAX_UNFINISHED));
    let grpc =
        Arc::new(GrpcConnection { service, settings, stopped: stopped.clone(), account, asked });
    let first_time = FIRST_TIME.min(grpc.settings.idle_after);
    let frames = Arc::new(Frames::new(FRAMES));
    let stream = WriteTimeout::new(stream, grpc.settings.stuck_after);
    let mut greeting = pin!(builder().handshake(Counted::new(stream, Arc::clone(&frames))));
    let greeted = tokio::select! {
        biased;
        greeted = timeout(first_time, greeting.as_mut()) => Some(greeted),
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    let greeted = match greeted {
        Some(greeted) => greeted,
        // Requests may be in transit, because the peer could connect while the listener was open.
        None => timeout(FIRST_REQUEST_GRACE, greeting).await,
    };
    let Ok(Ok(connection)) = greeted else { return };
    let (calls, waiting) = (Vec::new(), FuturesUnordered::new());
    let (blocked, is_short_of_memory) = (None, false);
    let mut calls_queue =
        CallQueue { connection, grpc, frames, calls, waiting, blocked, is_short_of_memory };
    // The peer caused an error of the connection, and knows about it.
    if let Some(grace) = calls_queue.until_end(first_time, &mut stopped).await {
        // Tells the peer to use another connection; requests in progress are answered.
        calls_queue.connection.graceful_shutdown();
        let _ = timeout(grace, poll_fn(|context| calls_queue.poll_answer(context))).await;
    }
    calls_queue.end_if_abused().await;
}

/// A connection and the calls on it.
struct CallQueue {
    connection: Connection<Counted, Bytes>,
    grpc: Arc<GrpcConnection>,
    frames: Arc<Frames>,
    /// Calls to answer next; as many as there may be streams.
    calls: Vec<Call>,
    /// Calls that could not be answered at once; as many again at most. Each yields whether its
    /// answer was taken.
    waiting: FuturesUnordered<BoxFuture<'static, bool>>,
    /// The budget charge for answers that the peer does not read.
    blocked: Option<Charge>,
    /// Set once there was no memory for such answers. The connection then ends.
    is_short_of_memory: bool,
}

impl CallQueue {
    /// Answers until the connection should end, and returns the grace period; `None` if it has
    /// ended already.
    async fn until_end(
        &mut self,
        mut idle_after: Duration,
        stopped: &mut watch::Receiver<bool>,
    ) -> Option<Duration> {
        let grpc = Arc::clone(&self.grpc);
        let settings = &grpc.settings;
        let mut pings = Pings::new(self.connection.ping_pong()?);
        let mut aged = pin!(sleep(jittered(settings.max_age)));
        let mut idle = pin!(sleep(idle_after));
        let mut seen = 0;
        let mut silent = pin!(sleep(KEEP_ALIVE.0));
        loop {
            tokio::select! {
                biased;
                () = poll_fn(|context| self.poll_answer(context)) => {
                    return self.is_short_of_memory.then_some(CLOSE_TIME);
                }
                // The worker enforces the end.
                _ = stopped.wait_for(|stopped| *stopped) => return Some(Duration::MAX),
                () = aged.as_mut() => return Some(settings.max_age_grace),
                () = idle.as_mut() => {
                    let asked = grpc.asked.load(Ordering::Relaxed);
                    // One reference is this one, one the line's; any other belongs to a request in
                    // progress.
                    if asked == seen && Arc::strong_count(&grpc) == 2 {
                        return Some(IDLE_GRACE);
                    }
                    (idle_after, seen) = (settings.idle_after, asked);
                    idle.set(sleep(idle_after));
                }
                () = poll_fn(|context| pings.poll_pong(context)) => {
                    silent.set(sleep(KEEP_ALIVE.0));
                }
                () = silent.as_mut() => {
                    self.frames.renew();
                    let wait = pings.send(grpc.asked.load(Ordering::Relaxed))?;
                    silent.set(sleep(wait));
                }
            }
        }
    }

    /// Answers calls as they arrive. Ready when the connection has ended, or should end because of
    /// abuse or lack of memory.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.frames.begin_turn();
        loop {
            let ended = loop {
                match self.connection.poll_accept(context) {
                    Poll::Ready(Some(Ok(call))) => self.calls.push(call),
                    Poll::Ready(Some(Err(_)) | None) => break Poll::Ready(()),
                    Poll::Pending => break Poll::Pending,
                }
            };
            if self.frames.is_abuse() || !self.can_hold_answers() {
                return Poll::Ready(());
            }
            let (mut has_answered, mut taken) = (!self.calls.is_empty(), 0);
            // Answered after all calls are collected, so that the answers leave in one write: the
            // next poll for calls sends them.
            for call in self.calls.drain(..) {
                self.grpc.asked.fetch_add(1, Ordering::Relaxed);
                match call::begin(&self.grpc, call, context) {
                    Started::Ended { is_taken } => taken += usize::from(is_taken),
                    Started::Waiting(call) => self.waiting.push(call),
                }
            }
            while let Poll::Ready(Some(is_taken)) = self.waiting.poll_next_unpin(context) {
                (has_answered, taken) = (true, taken + usize::from(is_taken));
            }
            self.frames.count_answers(taken);
            if ended.is_ready() || !has_answered {
                return ended;
            }
        }
    }

    /// Whether there is memory for the answers that a blocked peer does not read.
    fn can_hold_answers(&mut self) -> bool {
        if !self.frames.is_blocked() {
            self.blocked = None;
        } else if self.blocked.is_none() {
            self.blocked = self.grpc.account.blocked();
            if self.blocked.is_none() && !self.is_short_of_memory {
                self.is_short_of_memory = true;
                let why = "closed a gRPC connection: its client does not read its answers, and connections hold \
                           too many others; find clients with unfinished calls or unread answers";
                self.log_closed(why);
                return false;
            }
        }
        true
    }

    fn log_closed(&self, why: &str) {
        let log = self.grpc.service.status().log();
        if let Some(Admitted { suppressed }) = log.admit(Frequent::ConnectionClosed) {
            warn!(event = "connection_closed", listener = "gRPC", suppressed, "{why}");
        }
    }

    /// Tells a peer that floods why its connection ends.
    async fn end_if_abused(&mut self) {
        if !self.frames.is_abuse() {
            return;
        }
        let why = "closed a gRPC connection: its client resets streams or sends control frames faster than calls";
        self.log_closed(why);
        self.connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        let closed = poll_fn(|context| self.connection.poll_closed(context));
        let _ = timeout(CLOSE_TIME, closed).await;
    }
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(Some(MAX_RESETS))
        .max_concurrent_reset_streams(MAX_REMEMBERED)
        .initial_connection_window_size(WINDOWS.0)
        .initial_window_size(WINDOWS.1)
        .max_send_buffer_size(MAX_UNSENT);
    builder
}

/// The span, changed at random by up to a tenth, so that connections that began together do not end
/// together.
fn jittered(span: Duration) -> Duration {
    (span / 1_000).saturating_mul(fastrand::u32(900..=1_100))
}
