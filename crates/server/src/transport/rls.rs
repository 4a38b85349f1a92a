//! Envoy's rate limit service, independent of its encoding.
//!
//! ```text
//!   protobuf ──request.rs──┐                            ┌──response.rs──▶ protobuf
//!                           ├─▶ RateLimitRequest ─service─▶ RlsVerdict ──┤
//!   protojson ──json.rs─────┘                 verdict.rs    └──json.rs──────▶ protojson
//! ```
//!
//! # Bounds
//! A message has at most [`MAX_MESSAGE`] bytes,
//! [`MAX_DESCRIPTORS`](tidegate::policy::MAX_DESCRIPTORS) descriptors of [`MAX_ENTRIES`] entries
//! each, and keys of [`MAX_KEY`] bytes. Values are bounded by the message only: proxies send header
//! values that clients choose, and an error would let such a client pass where the proxy fails
//! open.

mod endpoint;
mod json;
mod metadata;
mod request;
mod response;
mod verdict;
mod wire;

use std::fmt;

use tidegate::policy::CheckError;

pub(crate) use self::endpoint::{healthcheck, json};
pub(crate) use self::request::RateLimitRequest;
pub(crate) use self::response::write;
pub(crate) use self::verdict::RlsVerdict;
pub(crate) use self::wire::{Malformed, Reader, Writer};

/// The most bytes of a message.
pub(crate) const MAX_MESSAGE: usize = 64 << 10;

/// The most entries of a descriptor.
pub(crate) const MAX_ENTRIES: usize = 32;

/// The most bytes of an entry's key.
pub(crate) const MAX_KEY: usize = 512;

/// Why a request is not decided. It becomes an error and never an answer: Envoy admits requests
/// whose answer has an unknown code, whatever its failure mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The message is not a valid request.
    Malformed(&'static str),
    /// The request exceeds a bound.
    TooMuch(String),
    /// The decision failed.
    Undecided(CheckError),
}

impl From<&'static str> for Refusal {
    fn from(malformed: &'static str) -> Self {
        Self::Malformed(malformed)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(why) => f.write_str(why),
            Self::TooMuch(why) => f.write_str(why),
            Self::Undecided(error) => error.fmt(f),
        }
    }
}

/// Parses a message from a fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_message(
    service: &crate::service::RateLimitService,
    message: &[u8],
    answers: &crate::settings::Answers,
) {
    let Ok(wire_request) = RateLimitRequest::read(message) else { return };
    let descriptors = wire_request.descriptors();
    let Ok(verdict) = service.check(&wire_request.request(&descriptors)).await else { return };
    let status = RlsVerdict { wire_request: &wire_request, verdict: &verdict, answers };
    write(&status, &mut Vec::new());
    let _ = json::write(&status);
}

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod oracle_tests;
