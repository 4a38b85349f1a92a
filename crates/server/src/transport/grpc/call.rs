//! One call, from its head to the end of its answer.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use hyper::body::Bytes;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use tokio::time::timeout;

use super::body::{self, Body};
use super::message::{self, Messages};
use super::status::{self, Code, Status, success};
use super::{Call, GrpcConnection, Reply, health, reflection};
use crate::runtime::turns::{SHORT, at_length};
use crate::service::at_once;
use crate::transport::http2::Charge;
use crate::transport::rls::{self, RateLimitRequest, RlsVerdict};
use crate::transport::within;

/// How long a message may take to arrive.
pub(super) const BODY_TIME: Duration = Duration::from_secs(30);

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The method of a call.
enum Method {
    ShouldRateLimit {
        deadline: Duration,
    },
    Check,
    Watch,
    Reflect,
    /// An unknown method, or no gRPC call.
    Other(Reply),
}

impl Method {
    fn of(head: &Parts) -> Self {
        if let Some(refused) = status::not_grpc(head) {
            return Self::Other(refused);
        }
        match head.uri.path() {
            SHOULD_RATE_LIMIT => {
                let deadline = deadline(&head.headers).unwrap_or(Duration::MAX);
                Self::ShouldRateLimit { deadline }
            }
            "/grpc.health.v1.Health/Check" => Self::Check,
            "/grpc.health.v1.Health/Watch" => Self::Watch,
            // Both names have the same messages.
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => Self::Reflect,
            path => {
                let text = format!("unknown method {path}");
                Self::Other(Status::new(Code::Unimplemented, text).reply())
            }
        }
    }
}

/// The first result of a call.
pub(super) enum Started {
    Ended {
        /// Whether the peer still wanted the answer.
        is_taken: bool,
    },
    /// A future that answers the call and yields the same.
    Waiting(BoxFuture<'static, bool>),
}

/// Answers a call at once if its message has arrived and the decision needs no wait, as in memory
/// or from leased units. Otherwise returns a future for it.
pub(super) fn begin(
    connection: &Arc<GrpcConnection>,
    (request, respond): Call,
    context: &mut Context<'_>,
) -> Started {
    let (head, body) = request.into_parts();
    let (mut messages, method) = (Messages::new(body), Method::of(&head));
    // Heads are large, and a call may wait for long.
    drop(head);
    let is_plain = matches!(method, Method::ShouldRateLimit { .. });
    let message = if is_plain { messages.try_only(context) } else { None };
    let mut call = match (method, message) {
        (_, Some(message)) if connection.service.is_local() && message.len() <= SHORT => {
            let answer = at_once(answer(connection, &message));
            let answer = answer.unwrap_or_else(|| Err(Status::too_late()));
            match send_at_once(respond, answer) {
                Ok(None) => return Started::Ended { is_taken: true },
                Ok(Some((stream, message))) => {
                    send_later(Arc::clone(connection), stream, message).boxed()
                }
                // The peer is gone.
                Err(_) => return Started::Ended { is_taken: false },
            }
        }
        (Method::ShouldRateLimit { deadline }, Some(message)) => {
            answer_message(Arc::clone(connection), (message, messages), deadline, respond).boxed()
        }
        (method, _) => answer_stream(Arc::clone(connection), method, messages, respond).boxed(),
    };
    match call.as_mut().poll(context) {
        Poll::Ready(is_taken) => Started::Ended { is_taken },
        Poll::Pending => Started::Waiting(call),
    }
}

/// Answers a message that has arrived completely.
async fn answer_message(
    connection: Arc<GrpcConnection>,
    (message, messages): (Bytes, Messages),
    deadline: Duration,
    mut respond: SendResponse<Bytes>,
) -> bool {
    let answer = tokio::select! {
        biased;
        answer = within(deadline, at_length(message.len(), answer(&connection, &message))) => answer,
        _ = poll_fn(|context| respond.poll_reset(context)) => return false,
    };
    drop((message, messages));
    match send_at_once(respond, answer.unwrap_or_else(|| Err(Status::too_late()))) {
        Ok(None) => true,
        Ok(Some((stream, message))) => send_later(connection, stream, message).await,
        Err(_) => false,
    }
}

/// Answers a call as its parts arrive, until the peer cancels it.
async fn answer_stream(
    connection: Arc<GrpcConnection>,
    method: Method,
    messages: Messages,
    mut respond: SendResponse<Bytes>,
) -> bool {
    let reply = tokio::select! {
        biased;
        reply = route(&connection, method, messages) => reply,
        _ = poll_fn(|context| respond.poll_reset(context)) => return false,
    };
    send(&connection, respond, reply).await.is_ok()
}

async fn route(connection: &Arc<GrpcConnection>, method: Method, messages: Messages) -> Reply {
    match method {
        Method::ShouldRateLimit { deadline } => {
            body::unary(should_rate_limit(connection, deadline, messages).await)
        }
        Method::Check => body::unary(health::check(connection, messages).await),
        Method::Watch => health::watch(connection, messages).await,
        Method::Reflect => reflection::converse(connection, messages),
        Method::Other(reply) => reply,
    }
}

async fn should_rate_limit(
    connection: &GrpcConnection,
    deadline: Duration,
    mut messages: Messages,
) -> Result<Bytes, Status> {
    let (message, _charge) = only_message(connection, &mut messages).await?;
    // Boxed, because it is several times as large as the state that waits for the message.
    let answer = Box::pin(at_length(message.len(), answer(connection, &message)));
    within(deadline, answer).await.ok_or_else(Status::too_late)?
}

/// The answer to a message.
async fn answer(connection: &GrpcConnection, message: &[u8]) -> Result<Bytes, Status> {
    let wire_request = RateLimitRequest::read(message)?;
    let descriptors = wire_request.descriptors();
    let asked = wire_request.request(&descriptors);
    let verdict = connection.service.check(&asked).await.map_err(rls::Refusal::Undecided)?;
    let verdict = RlsVerdict {
        wire_request: &wire_request,
        verdict: &verdict,
        answers: &connection.settings.answers,
    };
    Ok(message::write(|bytes| rls::write(&verdict, bytes)))
}

/// The one message of a request, and its cost.
pub(super) async fn only_message(
    connection: &GrpcConnection,
    messages: &mut Messages,
) -> Result<(Bytes, Charge), Status> {
    within(BODY_TIME, messages.only(&connection.account))
        .await
        .unwrap_or_else(|| Err(Status::too_late()))
}

/// The caller's deadline from `grpc-timeout`: at most eight digits, and a unit.
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

/// Sends an answer; returns what is left to send if the peer has no room for it.
fn send_at_once(
    mut respond: SendResponse<Bytes>,
    answer: Result<Bytes, Status>,
) -> Result<Option<(SendStream<Bytes>, Bytes)>, h2::Error> {
    let (head, body) = body::unary(answer).into_parts();
    let head = hyper::Response::from_parts(head, ());
    let Body::One(message) = body else {
        return respond.send_response(head, true).map(|_| None);
    };
    let mut stream = respond.send_response(head, false)?;
    let unsent = send_whole(&mut stream, message)?;
    Ok(unsent.map(|message| (stream, message)))
}

/// Sends a message and the trailers, or returns the message if the peer has no room for it.
fn send_whole(stream: &mut SendStream<Bytes>, message: Bytes) -> Result<Option<Bytes>, h2::Error> {
    stream.reserve_capacity(message.len());
    if stream.capacity() < message.len() {
        return Ok(Some(message));
    }
    stream.send_data(message, false)?;
    stream.send_trailers(success())?;
    Ok(None)
}

/// Sends a message when the peer has room for it; returns whether it had.
async fn send_later(
    connection: Arc<GrpcConnection>,
    mut stream: SendStream<Bytes>,
    message: Bytes,
) -> bool {
    let Some(_charge) = connection.account.answer(message.len()) else {
        stream.send_reset(Reason::ENHANCE_YOUR_CALM);
        return false;
    };
    let sent = timeout(connection.settings.stuck_after, send_message(&mut stream, message)).await;
    if matches!(sent, Ok(Ok(()))) {
        return stream.send_trailers(success()).is_ok();
    }
    stream.send_reset(Reason::CANCEL);
    false
}

/// Sends an answer as fast as the peer reads it.
async fn send(
    connection: &Arc<GrpcConnection>,
    mut respond: SendResponse<Bytes>,
    reply: Reply,
) -> Result<(), h2::Error> {
    let (head, body) = reply.into_parts();
    let head = hyper::Response::from_parts(head, ());
    match body {
        Body::Empty => respond.send_response(head, true).map(drop),
        Body::One(message) => {
            let mut stream = respond.send_response(head, false)?;
            let Some(message) = send_whole(&mut stream, message)? else { return Ok(()) };
            let is_sent = send_later(Arc::clone(connection), stream, message).await;
            if is_sent { Ok(()) } else { Err(Reason::CANCEL.into()) }
        }
        Body::Many(mut messages) => {
            let mut stream = respond.send_response(head, false)?;
            let trailers = loop {
                let next = tokio::select! {
                    biased;
                    next = messages.recv() => next,
                    // Dropping the receiver stops the task that produces messages.
                    _ = poll_fn(|context| stream.poll_reset(context)) => return Ok(()),
                };
                match next {
                    Some(Ok(message)) => send_message(&mut stream, message).await?,
                    Some(Err(status)) => break status.trailers(),
                    None => break success(),
                }
            };
            stream.send_trailers(trailers)
        }
    }
}

/// Sends one message of several, in pieces that the peer has room for.
async fn send_message(stream: &mut SendStream<Bytes>, mut message: Bytes) -> Result<(), h2::Error> {
    while !message.is_empty() {
        stream.reserve_capacity(message.len());
        let room = poll_fn(|context| stream.poll_capacity(context)).await;
        let room = room.ok_or(Reason::CANCEL)??;
        stream.send_data(message.split_to(room.min(message.len())), false)?;
    }
    Ok(())
}

/// Parses a call from a fuzzer: frames, a deadline, and a request to the reflection service.
#[cfg(feature = "fuzzing")]
pub(crate) fn try_call(bytes: &[u8]) {
    use hyper::header::HeaderValue;
    message::try_frame(bytes);
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_bytes(bytes) {
        headers.insert("grpc-timeout", value);
        // The longest possible timeout: 99,999,999 hours.
        let longest = Duration::from_secs(99_999_999 * 3_600);
        assert!(deadline(&headers).is_none_or(|deadline| deadline <= longest));
    }
    let text = String::from_utf8_lossy(bytes).into_owned();
    Status::new(Code::NotFound, text).reply();
    reflection::try_message(bytes);
}
