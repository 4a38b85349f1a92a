//! gRPC over HTTP/2: Envoy's rate limit service, and what its operators expect beside it.
//!
//! ```text
//!   stream ──message.rs──▶ rls ──▶ gate ──▶ rls ──body.rs──▶ stream
//!                        └▶ health.rs, reflection.rs ─┘
//! ```
//!
//! Nothing stands between HTTP/2 and the decision: the message is read where it lies, and the answer
//! is written once.
//!
//! # Bounds
//! A connection has at most [`MAX_STREAMS`] requests under way, each with at most [`MAX_HEAD`] bytes of
//! head and a message of [`MAX_MESSAGE`](super::rls::MAX_MESSAGE), which has to come within
//! [`BODY_TIME`]. Whoever opens streams only to reset them is cut off after [`MAX_RESETS`].

mod body;
mod health;
mod message;
mod reflection;
mod status;

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderMap;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use self::body::Body;
use self::message::Messages;
use self::status::{Code, Status};
use super::Stream;
use super::rls::{self, Question, Told};
use crate::gate::Gate;
use crate::settings::Settings;
use crate::worker::House;

/// The most requests under way on one connection.
const MAX_STREAMS: u32 = 128;

/// The most bytes of a head.
const MAX_HEAD: u32 = 16 << 10;

/// The most streams that a peer may reset before anybody has looked at them.
const MAX_RESETS: usize = 64;

/// How many bytes of a connection's messages may be on their way to us.
const WINDOW: u32 = 1 << 20;

/// How many bytes of answers a stream holds that its peer does not take.
const MAX_UNSENT: usize = 64 << 10;

/// How long a connection may take to ask for something.
const FIRST_TIME: Duration = Duration::from_secs(60);

/// How long a connection that nobody uses may take to end.
const IDLE_GRACE: Duration = Duration::from_secs(5);

/// How long a message may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);

/// How often a silent peer is asked whether it is there, and how long it may take to say so.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(20));

type Reply = Response<Body>;

/// A connection, as its requests see it.
#[derive(Debug)]
struct Visit {
    gate: Gate,
    settings: Arc<Settings>,
    stopped: watch::Receiver<bool>,
    /// How many requests there have been.
    asked: AtomicU64,
}

/// Answers until the peer has had enough, the connection is old, or the server stops.
pub(crate) async fn converse(stream: Stream, house: House) {
    let House { gate, settings, mut stopped } = house;
    let asked = AtomicU64::new(0);
    let visit = Arc::new(Visit { gate, settings, stopped: stopped.clone(), asked });
    let guest = Arc::clone(&visit);
    let service = service_fn(move |request| {
        let visit = Arc::clone(&guest);
        async move { Ok::<_, Infallible>(route(&visit, request).await) }
    });
    let connection = builder().serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut aged = pin!(sleep(about(visit.settings.max_age)));
    let idle_after = visit.settings.idle_after;
    let (mut patience, mut seen) = (FIRST_TIME.min(idle_after), 0);
    let grace = loop {
        tokio::select! {
            biased;
            // That it broke off concerns nobody but the peer, who knows.
            _ = connection.as_mut() => return,
            // The worker sees to it that this ends.
            _ = stopped.wait_for(|stopped| *stopped) => break Duration::MAX,
            () = aged.as_mut() => break visit.settings.max_age_grace,
            () = sleep(patience) => {
                let asked = visit.asked.load(Ordering::Relaxed);
                // One is ours, one the service's; any other belongs to a request under way.
                if asked == seen && Arc::strong_count(&visit) == 2 {
                    break IDLE_GRACE;
                }
                (patience, seen) = (idle_after, asked);
            }
        }
    };
    // The peer is told to ask elsewhere; what it has asked already is answered.
    connection.as_mut().graceful_shutdown();
    let _ = timeout(grace, connection).await;
}

fn builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(MAX_UNSENT)
        .keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1);
    builder
}

/// A tenth more or less, so that those who came together do not leave together.
fn about(span: Duration) -> Duration {
    (span / 1_000).saturating_mul(fastrand::u32(900..=1_100))
}

async fn route(visit: &Arc<Visit>, request: Request<Incoming>) -> Reply {
    visit.asked.fetch_add(1, Ordering::Relaxed);
    if let Some(refused) = status::not_grpc(&request) {
        return refused;
    }
    match request.uri().path() {
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
            body::unary(should_rate_limit(visit, request).await)
        }
        "/grpc.health.v1.Health/Check" => body::unary(health::check(visit, request).await),
        "/grpc.health.v1.Health/Watch" => health::watch(visit, request).await,
        // One and the same under two names.
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
        | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
            reflection::converse(visit, request)
        }
        path => {
            let text = format!("there is no method {path}");
            Status::new(Code::Unimplemented, text).reply()
        }
    }
}

async fn should_rate_limit(visit: &Visit, request: Request<Incoming>) -> Result<Bytes, Status> {
    let deadline = deadline(request.headers());
    let message = only_message(request).await?;
    let question = Question::read(&message)?;
    let descriptors = question.descriptors();
    let asked = question.request(&descriptors);
    let answer = within(deadline.unwrap_or(Duration::MAX), visit.gate.check(&asked)).await;
    let answer = answer.ok_or_else(Status::too_late)?.map_err(rls::Refusal::Undecided)?;
    let told = Told { question: &question, answer: &answer, answers: &visit.settings.answers };
    Ok(message::write(|bytes| rls::write(&told, bytes)))
}

/// The one message of a request.
async fn only_message(request: Request<Incoming>) -> Result<Bytes, Status> {
    let mut messages = Messages::new(request.into_body());
    within(BODY_TIME, messages.only()).await.unwrap_or_else(|| Err(Status::too_late()))
}

/// Waits at most so long. What need not wait at all does not even look at the clock.
async fn within<T>(patience: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let first = std::future::poll_fn(|context| {
        let future: Pin<&mut _> = future.as_mut();
        Poll::Ready(future.poll(context))
    });
    match first.await {
        Poll::Ready(value) => Some(value),
        Poll::Pending => timeout(patience, future).await.ok(),
    }
}

/// How long whoever asks will wait, by `grpc-timeout`: at most eight digits, and a unit.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.len() > 8 {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3_600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}
