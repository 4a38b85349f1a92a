//! gRPC over HTTP/2: Envoy's rate limit service, and what its operators expect beside it.
//!
//! ```text
//!   stream ──message.rs──▶ rls ──▶ service ──▶ rls ──body.rs──▶ stream
//!                        └▶ health.rs, reflection.rs ─┘
//! ```
//!
//! Nothing stands between HTTP/2 and the decision: the message is read where it lies, and the answer
//! is written once. Calls that came together are answered together, at once or when the store has
//! answered, by the connection's own task: waking one of each call's own costs more than the call.
//!
//! # Bounds
//! A connection has at most [`MAX_STREAMS`] requests under way, each with at most [`MAX_HEAD`] bytes of
//! head and a message of [`MAX_MESSAGE`](super::rls::MAX_MESSAGE), which has to come within
//! [`BODY_TIME`](call::BODY_TIME). `frames.rs` ends connections of peers that flood; `budget.rs` bounds the
//! memory of all connections together.

mod body;
mod budget;
mod call;
mod frames;
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
use h2::{Ping, PingPong, Reason, RecvStream};
use hyper::body::Bytes;
use hyper::{Request, Response};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

use self::body::Body;
use self::budget::{Account, Charge};
use self::call::Begun;
use self::frames::{Counted, Frames};
use super::Stream;
use super::http::Patient;
use crate::observability::throttle::{Admitted, Frequent};
use crate::runtime::worker::ConnContext;
use crate::service::RateLimitService;
use crate::settings::Settings;

pub(crate) use self::budget::Budget;
#[cfg(feature = "fuzzing")]
pub(crate) use self::call::try_call;

/// The most requests under way on one connection. Envoy opens up to 1,024 streams before it has read this,
/// and older versions as many as its circuit breaker allows; a refused stream is a request that fails open.
const MAX_STREAMS: u32 = 4_096;

/// The most bytes of a head.
const MAX_HEAD: u32 = 16 << 10;

/// The most streams that h2 may reset because of the peer before it ends the connection. It is only reached by
/// a peer that never acknowledges the settings; `frames.rs` counts all others.
const MAX_RESETS: usize = 16 * MAX_STREAMS as usize;

/// How many reset streams are remembered, whose last frames may still be on their way.
const MAX_REMEMBERED: usize = 1_024;

/// How many bytes of a connection's messages may be on their way to us, and of one stream's.
const WINDOWS: (u32, u32) = (1 << 20, 128 << 10);

/// How many bytes of answers a stream holds that its peer does not take.
const MAX_UNSENT: usize = 64 << 10;

/// How long a connection may take to ask for something.
const FIRST_TIME: Duration = Duration::from_secs(60);

/// How long a connection that nobody uses may take to end.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// How long a connection that was accepted before the server stopped may take to send its first request.
const LAST_GREETING: Duration = Duration::from_secs(1);

/// How long the peer may take to read why its connection ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// How often a silent peer is asked whether it is there, and how long it may take to say so.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

type Reply = Response<Body>;

/// A call that came, and where its answer goes.
type Call = (Request<RecvStream>, SendResponse<Bytes>);

/// A connection, as its requests see it.
#[derive(Debug)]
struct GrpcConnection {
    service: RateLimitService,
    settings: Arc<Settings>,
    stopped: watch::Receiver<bool>,
    account: Account,
    /// How many requests there have been.
    asked: AtomicU64,
}

/// Answers until the peer has had enough, the connection is old, or the server stops.
pub(crate) async fn converse(stream: Stream, context: ConnContext) {
    let ConnContext { service, settings, mut stopped, budget } = context;
    let (asked, account) = (AtomicU64::new(0), Account::new(&budget));
    let grpc =
        Arc::new(GrpcConnection { service, settings, stopped: stopped.clone(), account, asked });
    let first_time = FIRST_TIME.min(grpc.settings.idle_after);
    let frames = Arc::new(Frames::default());
    let stream = Patient::new(stream, grpc.settings.stuck_after);
    let mut greeting = pin!(builder().handshake(Counted::new(stream, Arc::clone(&frames))));
    let greeted = tokio::select! {
        biased;
        greeted = timeout(first_time, greeting.as_mut()) => Some(greeted),
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    let greeted = match greeted {
        Some(greeted) => greeted,
        // Requests may be on their way: the peer could connect while the listener was open.
        None => timeout(LAST_GREETING, greeting).await,
    };
    let Ok(Ok(connection)) = greeted else { return };
    let (calls, waiting) = (Vec::new(), FuturesUnordered::new());
    let (blocked, is_short_of_memory) = (None, false);
    let mut line = Line { connection, grpc, frames, calls, waiting, blocked, is_short_of_memory };
    // That it broke off concerns nobody but the peer, who knows.
    if let Some(grace) = line.until_it_should_end(first_time, &mut stopped).await {
        // The peer is told to ask elsewhere; what it has asked already is answered.
        line.connection.graceful_shutdown();
        let _ = timeout(grace, poll_fn(|context| line.poll_answer(context))).await;
    }
    line.end_if_abused().await;
}

/// A connection and those who ask on it.
struct Line {
    connection: Connection<Counted, Bytes>,
    grpc: Arc<GrpcConnection>,
    frames: Arc<Frames>,
    /// What has come and is to be answered next; as many as there may be streams.
    calls: Vec<Call>,
    /// Those that could not be answered at once; as many again at most. Each tells whether its answer was taken.
    waiting: FuturesUnordered<BoxFuture<'static, bool>>,
    /// The cost of answers that the peer does not read.
    blocked: Option<Charge>,
    /// Set once there was no memory for such answers. The connection then ends.
    is_short_of_memory: bool,
}

impl Line {
    /// Answers until there is a reason to part, and says how long that may take; `None` if it is over
    /// already.
    async fn until_it_should_end(
        &mut self,
        mut patience: Duration,
        stopped: &mut watch::Receiver<bool>,
    ) -> Option<Duration> {
        let grpc = Arc::clone(&self.grpc);
        let settings = &grpc.settings;
        let mut pings = Pings::new(self.connection.ping_pong()?);
        let mut aged = pin!(sleep(about(settings.max_age)));
        let mut idle = pin!(sleep(patience));
        let mut seen = 0;
        let mut silent = pin!(sleep(KEEP_ALIVE.0));
        loop {
            tokio::select! {
                biased;
                () = poll_fn(|context| self.poll_answer(context)) => {
                    return self.is_short_of_memory.then_some(FAREWELL);
                }
                // The worker sees to it that this ends.
                _ = stopped.wait_for(|stopped| *stopped) => return Some(Duration::MAX),
                () = aged.as_mut() => return Some(settings.max_age_grace),
                () = idle.as_mut() => {
                    let asked = grpc.asked.load(Ordering::Relaxed);
                    // One is ours, one the line's; any other belongs to a request under way.
                    if asked == seen && Arc::strong_count(&grpc) == 2 {
                        return Some(IDLE_GRACE);
                    }
                    (patience, seen) = (settings.idle_after, asked);
                    idle.set(sleep(patience));
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

    /// Answers whatever comes. Ready when the connection has ended, or should because of abuse or lack of memory.
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
            // Only now, so that the answers leave in one write: the next look for calls sends them.
            for call in self.calls.drain(..) {
                self.grpc.asked.fetch_add(1, Ordering::Relaxed);
                match call::begin(&self.grpc, call, context) {
                    Begun::Ended { is_taken } => taken += usize::from(is_taken),
                    Begun::Waiting(call) => self.waiting.push(call),
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

    /// Whether there is room for the answers that the peer does not read, if it does not.
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
        let _ = timeout(FAREWELL, closed).await;
    }
}

/// Asks a silent peer whether it is there.
struct Pings {
    pings: PingPong,
    is_awaited: bool,
    /// How many requests there had been when it was last looked at.
    asked: u64,
}

impl Pings {
    const fn new(pings: PingPong) -> Self {
        Self { pings, is_awaited: false, asked: 0 }
    }

    /// Asks, unless it has been heard of since the last time, and says when to come again; `None` if
    /// the peer is gone.
    fn send(&mut self, asked: u64) -> Option<Duration> {
        let has_spoken = std::mem::replace(&mut self.asked, asked) != asked;
        if has_spoken {
            return Some(KEEP_ALIVE.0);
        }
        if self.is_awaited || self.pings.send_ping(Ping::opaque()).is_err() {
            return None;
        }
        self.is_awaited = true;
        Some(KEEP_ALIVE.1)
    }

    /// Ready when the peer has said that it is there.
    fn poll_pong(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_awaited && matches!(self.pings.poll_pong(context), Poll::Ready(Ok(_))) {
            self.is_awaited = false;
            return Poll::Ready(());
        }
        Poll::Pending
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

/// A tenth more or less, so that those who came together do not leave together.
fn about(span: Duration) -> Duration {
    (span / 1_000).saturating_mul(fastrand::u32(900..=1_100))
}
