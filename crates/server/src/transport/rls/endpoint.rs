//! The HTTP endpoints of envoyproxy/ratelimit.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::Refusal;
use super::json::{self, JsonRequest};
use super::verdict::RlsVerdict;
use crate::service::RateLimitService;
use crate::transport::access::{Caller, Denied};
use crate::transport::admin::reason;
use crate::transport::http::Reply;

/// `/json`, by any method: 200 or 429 with an answer; 401, 403 or 421 for a caller that may not
/// return units; 400 for every other error.
pub(crate) async fn json(service: &RateLimitService, caller: &Caller<'_>, body: &[u8]) -> Reply {
    match decide(service, caller, body).await {
        Ok(reply) => reply,
        Err(why) => plain(StatusCode::BAD_REQUEST, format!("Bad Request: {why}\n")),
    }
}

async fn decide(
    service: &RateLimitService,
    caller: &Caller<'_>,
    body: &[u8],
) -> Result<Reply, String> {
    let answers = &caller.settings.answers;
    let json_request = JsonRequest::read(body)?;
    let wire_request = json_request.wire_request().map_err(|refusal| refusal.to_string())?;
    if wire_request
        .descriptor_inputs()
        .any(|(descriptor_input, _)| descriptor_input.is_negative_hits)
        && let Err(Denied { status, why }) = caller.may_return_units()
    {
        return Ok(plain(status, format!("{why}\n")));
    }
    let descriptors = wire_request.descriptors();
    let verdict = service.check(&wire_request.request(&descriptors)).await;
    let verdict = verdict.map_err(|error| Refusal::Undecided(error).to_string())?;
    let report = RlsVerdict { wire_request: &wire_request, verdict: &verdict, answers };
    let document = json::write(&report).map_err(|error| error.to_string())?;
    let status = if report.is_over() { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let mut reply = with_status(status, document);
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = report.retry_after() {
        reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    Ok(reply)
}

/// `/healthcheck`: the readiness, as at `/readyz` of the admin API.
pub(crate) async fn healthcheck(service: &RateLimitService, is_stopping: bool) -> Reply {
    match is_stopping || reason(service).await.is_some() {
        true => with_status(StatusCode::INTERNAL_SERVER_ERROR, ""),
        false => with_status(StatusCode::OK, "OK"),
    }
}

fn plain(status: StatusCode, text: String) -> Reply {
    let mut reply = with_status(status, text);
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply
}

fn with_status(status: StatusCode, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = status;
    reply
}
