//! What a response says about retries.

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
            StatusCode::TOO_MANY_REQUESTS => match retry_after(headers) {
                // A quota that no wait refills.
                None => Self::Rejected,
                wait => Self::Failed { wait, is_refused: false },
            },
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => {
                Self::Failed { wait: retry_after(headers), is_refused: false }
            }
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

/// `Retry-After` in seconds; a date is not read, because clocks differ.
fn retry_after(headers: &HeaderMap) -> Option<Span> {
    headers.get(http::header::RETRY_AFTER)?.to_str().ok()?.parse().ok().map(Span::from_secs)
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
