//! HTTP/1.1.
//!
//! ```text
//!   request ──route.rs──▶ check_request.rs or forward.rs ──▶ service ──reply.rs──▶ response
//! ```
//!
//! # Bounds
//! A body has at most [`MAX_BODY`] bytes, a head at most [`MAX_HEAD`] and [`MAX_HEADERS`] headers, and
//! both have to come within [`HEAD_TIME`] and [`BODY_TIME`]. A peer that takes no byte of its answer
//! for as long as a connection may be idle is cut off.

mod batch;
mod check_request;
mod descriptor_input;
mod forward;
mod object;
pub(crate) mod reply;
mod route;
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

pub(crate) use self::timeouts::Patient;
pub(crate) use self::unreadable::unreadable as unreadable_json;

/// The most bytes of a body.
const MAX_BODY: usize = 64 << 10;

/// The most bytes of a head.
const MAX_HEAD: usize = 64 << 10;

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// How long a head may take to come, the wait for the next request on the same connection included.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);

/// How long an idle connection stays open once the server stops. A request that is on its way by then is
/// answered with `Connection: close`, so that the client knows before it sends another one.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// What programs that write clients read. `docs/reference/openapi.json` is the same.
const OPENAPI: &str = include_str!("http/openapi.json");

/// Everything here is built in one piece.
pub(crate) type Reply = Response<Full<Bytes>>;

/// Who asks, and what answers.
struct HttpConnection {
    service: RateLimitService,
    settings: Arc<Settings>,
    peer: Option<IpAddr>,
    stopped: watch::Receiver<bool>,
}

/// Answers until the peer has had enough or the server stops.
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

/// What a connection may take.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Bytes of a head.
    pub(crate) head: usize,
    /// The time that a head takes to come.
    pub(crate) head_time: Duration,
    /// The time that the peer takes no byte of its answer.
    pub(crate) taking: Duration,
    /// The time that an idle connection stays open once the server stops.
    pub(crate) stop_grace: Duration,
}

/// Answers by a service until the peer has had enough or the server stops.
pub(crate) async fn serve<S>(
    stream: Stream,
    bounds: &Bounds,
    service: S,
    stopped: &mut watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Reply, Error = Infallible>,
{
    let stream = TokioIo::new(Patient::new(stream, bounds.taking));
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
        // Answers are short: copying one costs less than telling the kernel of its two parts.
        .writev(false)
        .max_headers(MAX_HEADERS);
    let mut connection = pin!(builder.serve_connection(stream, service));
    let is_stopping = tokio::select! {
        biased;
        // That it broke off concerns nobody but the peer, who knows.
        _ = connection.as_mut() => false,
        _ = stopped.wait_for(|stopped| *stopped) => true,
    };
    if is_stopping && timeout(bounds.stop_grace, connection.as_mut()).await.is_err() {
        // Answers the request under way, and takes no further one.
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
                &format!("there is {}", Route::PATHS.join(", ")),
            );
        };
        if !route.takes(&head.method) {
            return other_method(&head.method, route.allow().unwrap_or_default());
        }
        let (service, answers) = (&self.service, &self.settings.answers);
        let caller = Caller { head: &head, settings: &self.settings };
        match route {
            Route::Ask(action) => match whole(body).await {
                Ok(body) => {
                    at_length(body.len(), check_request::answer(service, &caller, action, &body))
                        .await
                }
                Err(refused) => refused,
            },
            Route::Batch => match whole(body).await {
                Ok(body) => at_length(body.len(), batch::answer(service, &caller, &body)).await,
                Err(refused) => refused,
            },
            Route::Auth => {
                let length = length(&head);
                at_length(length, forward::answer(service, answers, self.peer, &head)).await
            }
            Route::Health => text(StatusCode::OK, "ok\n"),
            Route::Json => match whole(body).await {
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

/// What must not be answered whatever it asks.
fn unreadable(head: &Parts) -> Option<Reply> {
    if length(head) > MAX_HEAD {
        let told = format!("a head has at most {MAX_HEAD} bytes");
        return Some(closing(refusal(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, &told)));
    }
    None
}

/// Bytes of the headers, each with a colon, a space and the end of its line.
fn length(head: &Parts) -> usize {
    head.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum()
}

/// The last answer on its connection.
fn closing(mut reply: Reply) -> Reply {
    reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    reply
}

fn other_method(method: &Method, allow: &'static str) -> Reply {
    let mut reply = match *method {
        Method::OPTIONS => empty(StatusCode::NO_CONTENT),
        _ => refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("ask with {allow}")),
    };
    reply.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    reply
}

/// All of a body.
async fn whole(body: Incoming) -> Result<Bytes, Reply> {
    let too_large = || {
        let told = format!("a body has at most {MAX_BODY} bytes");
        closing(refusal(StatusCode::PAYLOAD_TOO_LARGE, &told))
    };
    // Whoever says how much is to come need not send it.
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    match within(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await {
        Some(Ok(whole)) => Ok(whole.to_bytes()),
        Some(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Some(Err(_)) => Err(closing(refusal(StatusCode::BAD_REQUEST, "the body broke off"))),
        None => Err(closing(refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long"))),
    }
}

/// What a caller on this machine sends, for a fuzzer: it may return units.
#[cfg(feature = "fuzzing")]
pub(crate) fn local() -> (Parts, Settings) {
    let http = Some(([127, 0, 0, 1], 0).into());
    let mut head = Request::new(()).into_parts().0;
    head.headers.insert(hyper::header::HOST, HeaderValue::from_static("localhost"));
    (head, Settings { http, ..Settings::default() })
}

/// The body of a question, from a fuzzer: whatever is done with it.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_body(service: &RateLimitService, body: &[u8]) {
    use self::check_request::Action;
    let (head, settings) = local();
    let caller = Caller { head: &head, settings: &settings };
    for action in [Action::Check, Action::Peek, Action::Refund, Action::Explain] {
        check_request::answer(service, &caller, action, body).await;
    }
}

/// The body of a batch, from a fuzzer; returns the status that it is answered with.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_batch(service: &RateLimitService, body: &[u8]) -> u16 {
    let (head, settings) = local();
    let caller = Caller { head: &head, settings: &settings };
    batch::answer(service, &caller, body).await.status().as_u16()
}

/// A request that a proxy holds, from a fuzzer; returns the status that it is answered with.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_forward(service: &RateLimitService, head: &Parts) -> u16 {
    let answers = crate::settings::Answers { x_rate_limit: true, ..Default::default() };
    let peer = Some([192, 0, 2, 1].into());
    // Whichever route leads there: what stands in the path is read, too.
    forward::answer(service, &answers, peer, head).await.status().as_u16()
}
