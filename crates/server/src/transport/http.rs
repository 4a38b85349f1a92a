//! HTTP/1.1.
//!
//! ```text
//!   request ──question.rs──▶ gate ──answer.rs──▶ response
//! ```
//!
//! # Bounds
//! A body has at most [`MAX_BODY`] bytes, a head at most [`MAX_HEAD`] and [`MAX_HEADERS`] headers, and
//! both have to come within [`HEAD_TIME`] and [`BODY_TIME`].

mod answer;
mod forward;
mod question;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::timeout;

use super::Stream;
use crate::gate::Gate;
use crate::worker::House;

/// The most bytes of a body.
const MAX_BODY: usize = 64 << 10;

/// The most bytes of a head, give or take what is read at once.
const MAX_HEAD: usize = 64 << 10;

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// How long a head may take to come, the wait for the next request on the same connection included.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// How long a body may take to come.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Everything here is built in one piece.
pub(crate) type Reply = Response<Full<Bytes>>;

/// Answers until the peer has had enough or the server stops.
pub(crate) async fn converse(stream: Stream, house: House) {
    let House { gate, settings, mut stopped } = house;
    let peer = stream.peer();
    let service = service_fn(|request| {
        let gate = &gate;
        async move { Ok::<_, Infallible>(route(gate, peer, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME.min(settings.idle_after))
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let is_stopping = tokio::select! {
        biased;
        // That it broke off concerns nobody but the peer, who knows.
        _ = connection.as_mut() => false,
        _ = stopped.wait_for(|stopped| *stopped) => true,
    };
    if is_stopping {
        // Answers the request under way, and takes no further one.
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

async fn route(gate: &Gate, peer: Option<IpAddr>, request: Request<Incoming>) -> Reply {
    match (request.uri().path(), request.method()) {
        ("/v1/check", &Method::POST) => match body(request.into_body()).await {
            Ok(body) => question::check(gate, &body).await,
            Err(refused) => refused,
        },
        ("/v1/check", _) => {
            let mut reply = refusal(StatusCode::METHOD_NOT_ALLOWED, "ask with POST");
            reply.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
            reply
        }
        // Some proxies ask with the method of the request that they ask about.
        ("/v1/auth", _) => {
            let (head, _) = request.into_parts();
            forward::check(gate, peer, &head).await
        }
        ("/healthz", _) => plain(StatusCode::OK, "ok\n"),
        _ => refusal(StatusCode::NOT_FOUND, "there is /v1/check, /v1/auth and /healthz"),
    }
}

async fn body(body: Incoming) -> Result<Bytes, Reply> {
    let whole = timeout(BODY_TIME, Limited::new(body, MAX_BODY).collect()).await;
    match whole {
        Ok(Ok(whole)) => Ok(whole.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let told = format!("a body has at most {MAX_BODY} bytes");
            Err(refusal(StatusCode::PAYLOAD_TOO_LARGE, &told))
        }
        Ok(Err(_)) => Err(refusal(StatusCode::BAD_REQUEST, "the body broke off")),
        Err(_) => Err(refusal(StatusCode::REQUEST_TIMEOUT, "the body took too long")),
    }
}

/// The body of a question, from a fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_body(gate: &Gate, body: &[u8]) {
    question::check(gate, body).await;
}

/// Says why there is no decision.
pub(crate) fn refusal(status: StatusCode, why: &str) -> Reply {
    json(status, &serde_json::json!({ "error": why }))
}

pub(crate) fn json(status: StatusCode, document: &serde_json::Value) -> Reply {
    let mut reply = plain(status, &document.to_string());
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

pub(crate) fn plain(status: StatusCode, text: &str) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *reply.status_mut() = status;
    reply
}
