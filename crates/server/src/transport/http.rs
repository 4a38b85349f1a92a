//! HTTP/1.1.
//!
//! ```text
//!   request ──route.rs──▶ check_request.rs or forward.rs ──▶ service ──reply.rs──▶ response
//! ```
//!
//! # Bounds
//! A body has at most [`MAX_BODY`] bytes, a head at most [`MAX_HEAD`] bytes and [`MAX_HEADERS`]
//! headers; they must arrive within [`BODY_TIME`] and [`HEAD_TIME`]. A connection is closed if its
//! peer reads no byte of its answer for as long as a connection may be idle.

mod batch;
mod check_request;
mod descriptor_input;
mod forward;
mod lease_request;
mod object;
pub(crate) mod reply;
mod route;
mod settle_request;
mod timeouts;
mod unreadable;
mod whole_number;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CONNECTION, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio::time::timeout;

use self::reply::{empty, json, refusal, text};
use self::route::Route;
use super::access::Caller;
use super::{Stream, rls, within};
use crate::runtime::turns::at_length;
use crate::runtime::worker::ConnContext;
use crate::service::RateLimitService;
use crate::settings::Settings;

pub(crate) use self::timeouts::WriteTimeout;
pub(crate) use self::unreadable::unreadable as unreadable_json;

/// The most bytes of a body.
const MAX_BODY: usize = 64 << 10;

/// The most bytes of a head.
const MAX_HEAD: usize = 64 << 10;

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// How long a head may take to arrive, including the wait for the next request on the same
/// connection.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// How long a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(30);

/// How long an idle connection stays open once the server is stopping. A request that is in
/// transit by then is answered with `Connection: close`, so that the client knows before it sends another one.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// The OpenAPI document. `docs/reference/openapi.json` is the same.
const OPENAPI: &str = include_str!("http/openapi.json");

/// A response whose body is in memory.
pub(crate) type Reply = Response<Full<Bytes>>;

/// A connection and the state that answers its requests.
struct HttpConnection {
    service: RateLimitService,
    settings: Arc<Settings>,
    peer: Option<IpAddr>,
    stopped: watch::Receiver<bool>,
}

/// Serves a connection until the peer closes it or the server is stopping.
pub(crate) async fn converse(stream: Stream, context: ConnContext) {
    let ConnContext { service, settings, mut stopped, .. } = context;
    let connection =
        HttpConnection { service, peer: stream.peer(), settings, stopped: stopped.clone() };
    let service = service_fn(|request| {
        let connection = &connection;
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    let idle_after = connection.settings.idle_after;
    let bounds = Bounds {
        head: MAX_HEAD,
        head_time: HEAD_TIME.min(idle_after),
        taking: idle_after,
        stop_grace: STOP_GRACE.min(connection.settings.drain / 2),
    };
    serve(stream, &bounds, service, &mut stopped).await;
}

/// Bounds of a connection.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Bytes of a head.
    pub(crate) head: usize,
    /// How long a head may take to arrive.
    pub(crate) head_time: Duration,
    /// How long the peer may read no byte of its answer.
    pub(crate) taking: Duration,
    /// How long an idle connection stays open once the server is stopping.
    pub(crate) stop_grace: Duration,
}

/// Serves requests with `service` until the peer closes the connection or the server is stopping.
pub(crate) async fn serve<S>(
    stream: Stream,
    bounds: &Bounds,
    service: S,
    stopped: &mut watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Reply, Error = Infallible>,
{
    let stream = TokioIo::new(WriteTimeout::new(stream, bounds.taking));
    let is_stopping = stopped.clone();
    let service = service_fn(|request| {
        let answer = service.call(request);
        async {
            let reply = answer.await?;
            Ok::<_, Infallible>(if *is_stopping.borrow() { closing(reply) } else { reply })
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_time)
        .max_buf_size(bounds.head)
        // Answers are short: copying one costs less than a vectored write.
        .writev(false)
        .max_headers(MAX_HEADERS);
    let mut connection = pin!(builder.serve_connection(stream, service));
    let is_stopping = tokio::select! {
        biased;
        // The peer caused an error of the connection, and knows about it.
        _ = connection.as_mut() => false,
        _ = stopped.wait_for(|stopped| *stopped) => true,
    };
    if is_stopping && timeout(bounds.stop_grace, connection.as_mut()).await.is_err() {
        // Answers the request in progress and accepts no further one.
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

impl HttpConnection {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        if let Some(refused) = unreadable(&head) {
            return refused;
        }
        let Some(route) = Route::of(head.uri.path()) else {
            return refusal(
                StatusCode::NOT_FOUND,
                &format!("not found; the paths are {}", Route::PATHS.join(", ")),
            );
        };
        if !route.takes(&head.method) {
            return other_method(&head.method, route.allow().unwrap_or_default());
        }
        let (service, answers) = (&self.service, &self.settings.answers);
        let caller = Caller { head: &head, settings: &self.settings };
        match route {
            Route::Ask(action) => match read_body(body).await {
                Ok(body) => {
                    at_length(body.len(), check_request::answer(service, &caller, action, &body))
                        .await
                }
                Err(refused) => refused,
            },
            Route::Lease(action) => match read_body(body).await {
                Ok(body) => {
                    at_length(body.len(), lease_request::answer(service, &caller, action, &body))
                        .await
                }
                Err(refused) => refused,
            },
            Route::Settle => match read_body(body).await {
                Ok(body) => {
                    at_length(body.len(), settle_request::answer(service, &caller, &body)).await
                }
                Err(refused) => refused,
            },
            Route::Batch => match read_body(body).await {
                Ok(body) => at_length(body.len(), batch::answer(service, &caller, &body)).await,
                Err(refused) => refused,
            },
            Route::Auth => {
                let length = length(&head);
                at_length(length, forward::answer(service, answers, self.peer, &head)).await
            }
            Route::Health => text(StatusCode::OK, "ok\n"),
            Route::Json => match read_body(body).await {
                Ok(body) => at_length(body.len(), rls::json(service, &caller, &body)).await,
                Err(refused) => refused,
            },
            Route::HealthCheck => {
                let is_stopping = *self.stopped.borrow();
                rls::healthcheck(service, is_stopping).await
            }
            Route::OpenApi => json(StatusCode::OK, Bytes::from_static(OPENAPI.as_bytes())),
        }
    }
}

/// The answer to requests that are refused whatever their path.
fn unreadable(head: &Parts) -> Option<Reply> {
    if length(head) > MAX_HEAD {
        let message = format!("a head has at most {MAX_HEAD} bytes");
        return Some(closing(refusal(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &message)));
    }
    None
}

/// Bytes of the headers, each with a colon, a space and the end of its line.
fn length(head: &Parts) -> usize {
    head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// Marks a reply as the last one on its connection.
fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

fn other_method(method: &Method, allow: &'static str) -> Reply {
    let mut reply = match *method {
        Method::OPTIONS => empty(StatusCode::NO_CONTENT),
        _ => refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("use {allow}")),
    };
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}

/// Reads a whole body.
async fn read_body(body: Incoming) -> Result<Bytes, Reply> {
    let too_large = || {
        let message = format!("a body has at most {MAX_BODY} bytes");
        closing(refusal(StatusCode::PAYLOAD_TOO_LARGE, &message))
    };
    // The declared length is refused before the body arrives.
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    match within(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await {
        Some(Ok(collected)) => Ok(collected.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Some(Err(_)) => Err(closing(refusal(StatusCode::BAD_REQUEST, "the body is incomplete"))),
        None => {
            Err(closing(refusal(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")))
        }
    }
}

/// A request head from this machine, for fuzzers: it may return units.
#[cfg(feature = "fuzzing")]
pub(crate) fn local() -> (Parts, Settings) {
    let http = Some(([127, 0, 0, 1], 0).into());
    let mut head = Request::new(()).into_parts().0;
    head.headers.insert(hyper::header::HOST, HeaderValue::from_static("localhost"));
    (head, Settings { http, ..Settings::default() })
}

/// Runs a request body from a fuzzer through every action.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_body(service: &RateLimitService, body: &[u8]) {
    use self::check_request::Action;
    use self::lease_request::LeaseAction;
    let (head, settings) = local();
    let caller = Caller { head: &head, settings: &settings };
    for action in [Action::Check, Action::Peek, Action::Refund, Action::Explain, Action::Acquire] {
        check_request::answer(service, &caller, action, body).await;
    }
    for action in [LeaseAction::Renew, LeaseAction::Release] {
        lease_request::answer(service, &caller, action, body).await;
    }
    settle_request::answer(service, &caller, body).await;
}

/// Runs a batch body from a fuzzer; returns the status of the answer.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_batch(service: &RateLimitService, body: &[u8]) -> u16 {
    let (head, settings) = local();
    let caller = Caller { head: &head, settings: &settings };
    batch::answer(service, &caller, body).await.status().as_u16()
}

/// Runs a forwarded request from a fuzzer; returns the status of the answer.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_forward(service: &RateLimitService, head: &Parts) -> u16 {
    let answers = crate::settings::Answers { x_rate_limit: true, ..Default::default() };
    let peer = Some([192, 0, 2, 1].into());
    // Also reads the domain and path from the URL.
    forward::answer(service, &answers, peer, head).await.status().as_u16()
}
