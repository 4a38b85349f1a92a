//! Converts reports to status, header fields and a body.

use std::fmt::Write as _;

use http_body_util::Full;
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::Response;
use tidegate::Verdict;
use tidegate::policy::{CheckError, Granted};
use tidegate::store::StoreError;
use tidegate::verdict::{Headers, whole_millis};

use super::Reply;
use crate::settings::{Answers, Body};
use crate::transport::access::Denied;

/// `Retry-After` in seconds when the store failed.
const STORE_RETRY: u64 = 1;

/// The answer with the verdict and the document.
pub(crate) fn verdict(verdict: &Verdict, answers: &Answers) -> Reply {
    let reply = match verdict.is_allowed() {
        true => json(StatusCode::OK, verdict.json().into()),
        false => denial(verdict, answers.body.unwrap_or_default()),
    };
    with_headers(reply, verdict, answers)
}

/// The answer with the verdict, the places that the request holds, and its reservations.
pub(crate) fn granted(granted: &Granted, answers: &Answers) -> Reply {
    let Granted { verdict, leases, reservations } = granted;
    if leases.is_empty() && reservations.is_empty() {
        return self::verdict(verdict, answers);
    }
    with_headers(json(StatusCode::OK, document(granted).into()), verdict, answers)
}

/// The document of a request: the verdict, and what the request holds.
pub(crate) fn document(granted: &Granted) -> String {
    let Granted { verdict, leases, reservations } = granted;
    let mut text = verdict.json();
    // Inside the brace that closes the document.
    text.pop();
    if let Some(ttl) = leases.ttl() {
        let _ = write!(text, ",\"lease\":\"{leases}\",\"lease_ttl_ms\":{}", whole_millis(ttl));
    }
    if !reservations.is_empty() {
        let _ = write!(text, ",\"reservation\":\"{reservations}\"");
    }
    text.push('}');
    text
}

/// The answer to a proxy: an allowed request needs no body.
pub(crate) fn for_proxy(verdict: &Verdict, answers: &Answers) -> Reply {
    let reply = match verdict.is_allowed() {
        true => empty(StatusCode::OK),
        false => denial(verdict, answers.body.unwrap_or_default()),
    };
    with_headers(reply, verdict, answers)
}

/// The answer to `explain`, independent of the verdict.
pub(crate) fn explanation(verdict: &Verdict, answers: &Answers) -> Reply {
    with_headers(json(StatusCode::OK, verdict.json().into()), verdict, answers)
}

fn denial(verdict: &Verdict, body: Body) -> Reply {
    let status = match verdict.is_unavailable() {
        true => StatusCode::SERVICE_UNAVAILABLE,
        false => StatusCode::TOO_MANY_REQUESTS,
    };
    match body {
        Body::Json => json(status, verdict.json().into()),
        Body::Problem => typed(status, verdict.problem_json().into(), "application/problem+json"),
        Body::Empty => empty(status),
    }
}

fn with_headers(mut reply: Reply, verdict: &Verdict, answers: &Answers) -> Reply {
    reply.headers_mut().extend(HeaderMap::from(headers(verdict, answers)));
    reply
}

/// The header fields that the settings ask for.
pub(crate) fn headers(verdict: &Verdict, answers: &Answers) -> Headers {
    let headers = verdict.headers();
    if answers.x_rate_limit { headers.with_x_rate_limit() } else { headers }
}

/// Why there is no verdict.
#[derive(Debug)]
pub(crate) enum Refused {
    /// The request cannot be parsed.
    Malformed(String),
    /// The request refers to something that does not exist.
    Missing(&'static str),
    /// The request can be parsed, but its values are invalid.
    Impossible(String),
    /// The store gave no decision.
    Store,
    /// The caller lacks permission.
    Denied(Denied),
}

impl Refused {
    /// The same error for one of several requests.
    pub(crate) fn at_index(self, number: usize) -> Self {
        let message = format!("questions[{number}]: {self}");
        match self {
            Self::Impossible(_) => Self::Impossible(message),
            _ => Self::Malformed(message),
        }
    }

    pub(crate) fn reply(&self) -> Reply {
        match self {
            Self::Malformed(why) => refusal(StatusCode::BAD_REQUEST, why),
            Self::Missing(why) => refusal(StatusCode::NOT_FOUND, why),
            Self::Impossible(why) => refusal(StatusCode::UNPROCESSABLE_ENTITY, why),
            Self::Denied(denied) => {
                let mut reply = refusal(denied.status, denied.why);
                if denied.status == StatusCode::UNAUTHORIZED {
                    let scheme = HeaderValue::from_static("Bearer");
                    reply.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                }
                reply
            }
            Self::Store => {
                let mut reply = refusal(StatusCode::SERVICE_UNAVAILABLE, &self.to_string());
                reply.headers_mut().insert(RETRY_AFTER, HeaderValue::from(STORE_RETRY));
                reply
            }
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(why) | Self::Impossible(why) => f.write_str(why),
            Self::Missing(why) => f.write_str(why),
            Self::Denied(denied) => f.write_str(denied.why),
            // Does not expose the store's error, which is in the log, to callers.
            Self::Store => f.write_str("the store gives no decision; see the log"),
        }
    }
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl From<StoreError> for Refused {
    fn from(_: StoreError) -> Self {
        Self::Store
    }
}

impl From<CheckError> for Refused {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Store(_) => Self::Store,
            // The policy determines which limits apply to a request.
            CheckError::UnknownDomain => Self::Missing("the policy has no such domain"),
            CheckError::NoRequestRules => {
                Self::Missing("the domain has no `requests`, so nothing is limited")
            }
            // Which limits a request meets is up to the policy.
            CheckError::TooManyTogether | CheckError::TooManyLeases => {
                Self::Impossible(error.to_string())
            }
            _ => Self::Malformed(error.to_string()),
        }
    }
}

/// An error response.
pub(crate) fn refusal(status: StatusCode, why: &str) -> Reply {
    json(status, serde_json::json!({ "error": why }).to_string().into())
}

pub(crate) fn json(status: StatusCode, document: Bytes) -> Reply {
    typed(status, document, "application/json")
}

fn typed(status: StatusCode, body: Bytes, kind: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(body));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

pub(crate) fn text(status: StatusCode, text: &'static str) -> Reply {
    typed(status, Bytes::from_static(text.as_bytes()), "text/plain; charset=utf-8")
}

pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::new()));
    *reply.status_mut() = status;
    reply
}
