//! The gateway's own responses to requests without a response of an upstream.

use hyper::body::Bytes;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::access;
use super::address::Outcome;
use super::body::{ClientFailure, ForwardBody};
use super::forward::Answer;
use super::head::Refused;
use super::upstream::NoRoute;

/// Why no upstream gives a response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Failure {
    NoRoute,
    Ambiguous(&'static str),
    Busy,
    Unreachable,
    Late,
    Malformed,
    /// The request did not arrive completely.
    Client(ClientFailure),
}

impl From<NoRoute> for Failure {
    fn from(no_route: NoRoute) -> Self {
        match no_route {
            NoRoute::Unknown => Self::NoRoute,
            NoRoute::Ambiguous(why) => Self::Ambiguous(why),
        }
    }
}

impl Failure {
    pub(super) const fn of(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Busy => Self::Busy,
            Outcome::TimedOut => Self::Late,
            Outcome::Malformed => Self::Malformed,
            Outcome::ClientGone => Self::Client(ClientFailure::Cut),
            Outcome::Answered | Outcome::ConnectFailed | Outcome::NoResponse | Outcome::Cut => {
                Self::Unreachable
            }
        }
    }

    /// The reason for the client, without details of the upstream.
    const fn why(self) -> &'static str {
        match self {
            Self::NoRoute => "no service has this host and path",
            Self::Ambiguous(why) => why,
            Self::Busy => "all connections are in use",
            Self::Unreachable => "the service gives no response",
            Self::Late => "the service does not answer in time",
            Self::Malformed => "the response of the service is malformed",
            Self::Client(ClientFailure::TooSlow) => "the body of the request arrives too slowly",
            Self::Client(ClientFailure::Cut) => "the body of the request is cut",
            Self::Client(ClientFailure::TooLarge) => "the body of the request is too large",
        }
    }

    /// The reason in the access log.
    const fn name(self) -> &'static str {
        match self {
            Self::NoRoute => "no_route",
            Self::Ambiguous(_) => "ambiguous",
            Self::Busy => "upstream_busy",
            Self::Unreachable => "upstream_unreachable",
            Self::Late => "upstream_late",
            Self::Malformed => "upstream_malformed",
            Self::Client(ClientFailure::TooSlow) => "too_slow",
            Self::Client(ClientFailure::Cut) => "body_cut",
            Self::Client(ClientFailure::TooLarge) => "too_large",
        }
    }

    /// Adds the reason to the access log.
    pub(super) fn note(self) {
        access::note(|notes| notes.reason = Some(self.name()));
    }

    /// The response.
    pub(super) fn answer(self) -> Answer {
        let mut answer = problem(
            match self {
                Self::NoRoute => StatusCode::NOT_FOUND,
                Self::Ambiguous(_) => StatusCode::BAD_REQUEST,
                Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
                Self::Unreachable | Self::Malformed => StatusCode::BAD_GATEWAY,
                Self::Late => StatusCode::GATEWAY_TIMEOUT,
                Self::Client(ClientFailure::TooSlow) => StatusCode::REQUEST_TIMEOUT,
                Self::Client(ClientFailure::Cut) => StatusCode::BAD_REQUEST,
                Self::Client(ClientFailure::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
            },
            self.why(),
        );
        if matches!(self, Self::Client(_)) {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if matches!(self, Self::Busy) {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }

    /// The response to a gRPC call: no message, and the status in the head.
    pub(super) fn grpc_answer(self) -> Answer {
        let code = match self {
            // RESOURCE_EXHAUSTED, CANCELLED, INVALID_ARGUMENT, UNIMPLEMENTED, UNAVAILABLE and
            // DEADLINE_EXCEEDED.
            Self::Client(ClientFailure::TooLarge) => "8",
            Self::Client(_) => "1",
            Self::Ambiguous(_) => "3",
            Self::NoRoute => "12",
            Self::Busy | Self::Unreachable | Self::Malformed => "14",
            Self::Late => "4",
        };
        let mut answer = Response::new(ForwardBody::Text(None));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from_static(code));
        headers.insert("grpc-message", HeaderValue::from_static(self.why()));
        answer
    }
}

impl From<Refused> for Answer {
    /// The gateway reads nothing after an ambiguous request.
    fn from(refused: Refused) -> Self {
        let mut answer = problem(refused.status, refused.why);
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        answer
    }
}

/// A response with problem details from the gateway.
pub(super) fn problem(status: StatusCode, why: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or_default();
    let text = format!(
        "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{},\"detail\":\"{why}\"}}",
        status.as_u16()
    );
    let mut answer = Response::new(ForwardBody::Text(Some(Bytes::from(text))));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}
