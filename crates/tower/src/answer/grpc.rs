//! Rejections of gRPC calls: the status in the headers, without a body ("trailers only").
//!
//! `grpc-status-details-bin` is a `google.rpc.Status` with `RetryInfo` and, for quotas,
//! `QuotaFailure`. Clients retry UNAVAILABLE by themselves; `grpc-retry-pushback-ms` sets the time.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use tidegate::Verdict;
use tidegate::verdict::{Part, Problem, whole_millis};

use super::{CheckError, Rejection, STORE_RETRY};

/// The most violations in a status, and the most characters of a limit's name, because clients
/// bound the size of headers.
const MAX_LISTED: usize = 8;
const MAX_NAME: usize = 64;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";
const QUOTA_FAILURE: &str = "type.googleapis.com/google.rpc.QuotaFailure";

/// Writes the status of a rejection.
pub(super) fn write_status(rejection: &Rejection, headers: &mut HeaderMap) {
    let problem = rejection.problem();
    let code = code(problem);
    let message = match problem {
        Problem::BadRequest | Problem::Misconfigured => rejection.detail(),
        _ => problem.title().into(),
    };
    let wait = wait(rejection);
    let quota = match rejection {
        Rejection::Denied(verdict) if problem == Problem::QuotaExceeded => Some(verdict),
        _ => None,
    };
    headers.insert("grpc-status", code.into());
    if let Ok(text) = HeaderValue::from_maybe_shared(Bytes::from(percent_encoded(&message))) {
        headers.insert("grpc-message", text);
    }
    let details = base64(&status(code, &message, wait, quota));
    if let Ok(text) = HeaderValue::from_maybe_shared(Bytes::from(details)) {
        headers.insert("grpc-status-details-bin", text);
    }
    let pushback = match wait {
        Some(wait) => HeaderValue::from(whole_millis(wait)),
        // Do not retry.
        None => HeaderValue::from_static("-1"),
    };
    headers.insert("grpc-retry-pushback-ms", pushback);
}

const fn code(problem: Problem) -> u16 {
    match problem {
        Problem::QuotaExceeded => 8,
        Problem::ReducedCapacity => 14,
        Problem::BadRequest => 3,
        _ => 13,
    }
}

/// When a retry helps; `None` if it does not.
fn wait(rejection: &Rejection) -> Option<Duration> {
    match rejection {
        Rejection::Denied(verdict) => match verdict.strictest().and_then(|part| part.numbers) {
            // Places become free when calls end, long before their leases expire.
            Some(tidegate::Limit::InFlight(_)) => {
                verdict.headers().retry_after().map(Duration::from_secs)
            }
            _ => verdict.retry_after(),
        },
        Rejection::Shed(shed) => Some(shed.retry_after()),
        Rejection::Failed(CheckError::Store(_)) => Some(Duration::from_secs(STORE_RETRY)),
        Rejection::Failed(_) => None,
        #[cfg(feature = "client")]
        Rejection::Throttled(_) | Rejection::Unpaced(_) => None,
    }
}

/// `google.rpc.Status`.
fn status(code: u16, message: &str, wait: Option<Duration>, quota: Option<&Verdict>) -> Vec<u8> {
    let mut status = Vec::with_capacity(256);
    number(&mut status, 1, code.into());
    delimited(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        let (mut time, mut info) = (Vec::new(), Vec::new());
        number(&mut time, 1, wait.as_secs());
        number(&mut time, 2, wait.subsec_nanos().into());
        delimited(&mut info, 1, &time);
        any(&mut status, RETRY_INFO, &info);
    }
    if let Some(verdict) = quota {
        let mut failure = Vec::new();
        let denying = verdict.parts().filter(|part| part.counts() && part.denies());
        denying.take(MAX_LISTED).for_each(|part| violation(&mut failure, &part));
        any(&mut status, QUOTA_FAILURE, &failure);
    }
    status
}

/// `QuotaFailure.Violation`: a subject and a description.
fn violation(failure: &mut Vec<u8>, part: &Part<'_>) {
    let name: String = part.name.chars().take(MAX_NAME).collect();
    let limit = part.decision.map_or(0, |decision| decision.limit);
    let mut violation = Vec::new();
    delimited(&mut violation, 1, name.as_bytes());
    delimited(&mut violation, 2, format!("limit of {limit} exceeded").as_bytes());
    delimited(failure, 1, &violation);
}

/// `google.protobuf.Any`, as one of the details.
fn any(status: &mut Vec<u8>, kind: &str, value: &[u8]) {
    let mut any = Vec::with_capacity(kind.len() + value.len() + 8);
    delimited(&mut any, 1, kind.as_bytes());
    delimited(&mut any, 2, value);
    delimited(status, 3, &any);
}

fn number(message: &mut Vec<u8>, field: u8, number: u64) {
    if number != 0 {
        message.push(field << 3);
        varint(message, number);
    }
}

fn delimited(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn varint(message: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        message.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    message.push(number as u8);
}

/// Base64 without padding, as gRPC wants binary metadata.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |place: usize| u32::from(chunk.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..=chunk.len() {
            text.push(char::from(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]));
        }
    }
    text
}

/// The encoding of `grpc-message`.
fn percent_encoded(message: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => {
                let digits = [byte >> 4, byte & 15].map(|digit| char::from(HEX[digit as usize]));
                text.push('%');
                text.extend(digits);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_has_no_padding() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"f", "Zg"),
            (b"fo", "Zm8"),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg"),
            (b"\xff\xfe\xfd", "//79"),
        ] {
            assert_eq!(base64(bytes), text);
        }
    }

    #[test]
    fn messages_are_printable() {
        assert_eq!(percent_encoded("50 % é\n"), "50 %25 %C3%A9%0A");
    }
}
