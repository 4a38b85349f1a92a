//! Classifies responses for retries and throttling.

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, Response, StatusCode};
use tidegate::Span;

/// What a response means to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The server handled the request.
    Handled,
    /// The server is overloaded or unreachable behind its proxy; another attempt may succeed, not before
    /// this time. `is_refused`: it did not begin the request.
    Failed { wait: Option<Span>, is_refused: bool },
    /// The server rejected the request for good.
    Rejected,
}

impl Reply {
    pub(super) fn of<B>(response: &Response<B>) -> Self {
        let headers = response.headers();
        if let Some(status) = headers.get("grpc-status") {
            return Self::of_call(status.as_bytes(), headers);
        }
        match response.status() {
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => match retry_after(headers) {
                Wait::Of(wait) => Self::Failed { wait: Some(wait), is_refused: false },
                // A quota that no wait refills.
                Wait::None if status == StatusCode::TOO_MANY_REQUESTS => Self::Rejected,
                Wait::None => Self::Failed { wait: None, is_refused: false },
                // A retry might come too early.
                Wait::Unreadable => Self::Rejected,
            },
            _ => Self::Handled,
        }
    }

    /// A call whose status is in the head was refused before it began.
    fn of_call(status: &[u8], headers: &HeaderMap) -> Self {
        let pushback = headers.get("grpc-retry-pushback-ms");
        let wait = pushback.and_then(|it| it.to_str().ok()?.parse().ok()).map(Span::from_millis);
        match status {
            // UNAVAILABLE, RESOURCE_EXHAUSTED.
            b"14" | b"8" if wait.is_some() => Self::Failed { wait, is_refused: true },
            // A pushback that is no number forbids a retry.
            b"14" if pushback.is_none() => Self::Failed { wait, is_refused: false },
            b"14" | b"8" => Self::Rejected,
            _ => Self::Handled,
        }
    }

    /// Whether the server accepted the request.
    pub(super) fn is_accepted(self) -> bool {
        self == Self::Handled
    }
}

/// What `Retry-After` tells.
enum Wait {
    None,
    Of(Span),
    Unreadable,
}

/// `Retry-After` in seconds, or as a date. The wait until a date is counted from the `Date` of the response,
/// because clocks differ.
fn retry_after(headers: &HeaderMap) -> Wait {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    if !headers.contains_key(RETRY_AFTER) {
        return Wait::None;
    }
    let date = |name| text(name).and_then(|text| httpdate::parse_http_date(text).ok());
    let seconds = text(RETRY_AFTER).and_then(|text| text.trim().parse().ok()).map(Span::from_secs);
    let until_date = || {
        let (then, now) = (date(RETRY_AFTER)?, date(DATE)?);
        Some(then.duration_since(now).map_or(Span::ZERO, Span::from))
    };
    seconds.or_else(until_date).map_or(Wait::Unreadable, Wait::Of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_classified() {
        let reply = |status: u16, headers: &[(&str, &str)]| {
            let mut response = Response::builder().status(status);
            for (name, value) in headers {
                response = response.header(*name, *value);
            }
            Reply::of(&response.body(()).expect("a response"))
        };
        let failed = |wait, is_refused| Reply::Failed { wait, is_refused };
        let second = Some(Span::from_secs(1));
        assert_eq!(reply(200, &[]), Reply::Handled);
        assert_eq!(reply(404, &[]), Reply::Handled);
        assert_eq!(reply(500, &[]), Reply::Handled);
        assert_eq!(reply(429, &[]), Reply::Rejected);
        assert_eq!(reply(429, &[("retry-after", "1")]), failed(second, false));
        assert_eq!(reply(503, &[("retry-after", "1")]), failed(second, false));
        assert_eq!(reply(503, &[]), failed(None, false));
        let (now, then) = ("Thu, 19 Nov 2026 10:00:00 GMT", "Thu, 19 Nov 2026 10:00:01 GMT");
        assert_eq!(reply(503, &[("retry-after", then), ("date", now)]), failed(second, false));
        assert_eq!(
            reply(429, &[("retry-after", now), ("date", then)]),
            failed(Some(Span::ZERO), false),
        );
        assert_eq!(reply(503, &[("retry-after", then)]), Reply::Rejected, "from when is not known");
        assert_eq!(reply(503, &[("retry-after", "soon")]), Reply::Rejected);
        let pushback = |value| ("grpc-retry-pushback-ms", value);
        assert_eq!(reply(200, &[("grpc-status", "0")]), Reply::Handled);
        assert_eq!(reply(200, &[("grpc-status", "5")]), Reply::Handled);
        assert_eq!(reply(200, &[("grpc-status", "14")]), failed(None, false));
        assert_eq!(reply(200, &[("grpc-status", "14"), pushback("1000")]), failed(second, true));
        assert_eq!(reply(200, &[("grpc-status", "8"), pushback("1000")]), failed(second, true));
        assert_eq!(reply(200, &[("grpc-status", "8"), pushback("-1")]), Reply::Rejected);
        assert_eq!(reply(200, &[("grpc-status", "8")]), Reply::Rejected);
    }
}
