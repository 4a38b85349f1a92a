//! The outcome of a request for a concurrency limiter, read from its response.

use http::{HeaderMap, Response, StatusCode};
use tidegate::concurrency::Outcome;

/// The outcome, if the head of the response contains it. The status of a gRPC call may follow the
/// body.
pub(crate) fn of_head<R>(response: &Response<R>, is_grpc: bool) -> Option<Outcome> {
    let status = response.status();
    match is_grpc && status == StatusCode::OK {
        true => of_grpc(response.headers()),
        false => Some(of_status(status)),
    }
}

/// The outcome of an HTTP status.
fn of_status(status: StatusCode) -> Outcome {
    match status {
        StatusCode::SWITCHING_PROTOCOLS => Outcome::Ignored,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => Outcome::Dropped,
        status if status.is_client_error() || status.is_server_error() => Outcome::Ignored,
        _ => Outcome::Success,
    }
}

/// The outcome of `grpc-status` in headers or trailers; `None` if it is not there.
pub(crate) fn of_grpc(headers: &HeaderMap) -> Option<Outcome> {
    Some(match headers.get("grpc-status")?.as_bytes() {
        b"0" => Outcome::Success,
        // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE.
        b"4" | b"8" | b"14" => Outcome::Dropped,
        _ => Outcome::Ignored,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_is_dropped_and_other_failures_are_ignored() {
        for (status, outcome) in [
            (200, Outcome::Success),
            (204, Outcome::Success),
            (304, Outcome::Success),
            (101, Outcome::Ignored),
            (404, Outcome::Ignored),
            (429, Outcome::Ignored),
            (500, Outcome::Ignored),
            (502, Outcome::Ignored),
            (503, Outcome::Dropped),
            (504, Outcome::Dropped),
        ] {
            let response = Response::builder().status(status).body(()).expect("a response");
            assert_eq!(of_head(&response, false), Some(outcome), "{status}");
        }
        for (status, outcome) in [
            ("0", Some(Outcome::Success)),
            ("5", Some(Outcome::Ignored)),
            ("4", Some(Outcome::Dropped)),
            ("8", Some(Outcome::Dropped)),
            ("14", Some(Outcome::Dropped)),
        ] {
            let response = Response::builder().header("grpc-status", status).body(());
            assert_eq!(of_head(&response.expect("a response"), true), outcome, "{status}");
        }
        assert_eq!(of_head(&Response::new(()), true), None);
    }
}
