//! What Envoy's rate limit service is asked and answers, whatever carries it.
//!
//! ```text
//!   protobuf ──request.rs──┐                            ┌──response.rs──▶ protobuf
//!                           ├─▶ RateLimitRequest ─service─▶ RlsVerdict ──┤
//!   protojson ──json.rs─────┘                 verdict.rs    └──json.rs──────▶ protojson
//! ```
//!
//! # Bounds
//! A message has at most [`MAX_MESSAGE`] bytes, [`MAX_DESCRIPTORS`](tidegate::policy::MAX_DESCRIPTORS) descriptors of [`MAX_ENTRIES`]
//! entries each, and keys of [`MAX_KEY`] bytes. A value is as long as its message: whoever asks sends
//! what a stranger wrote into a header, and refusing to answer would let that stranger pass wherever
//! the proxy fails open.

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

/// Why a request is not decided. Never an answer of its own: Envoy lets whoever is answered with an
/// unknown code pass, whatever its failure mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not a request.
    Malformed(&'static str),
    /// It is larger than any may be.
    TooMuch(String),
    /// It could not be decided.
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

/// A message, from a fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_message(
    service: &crate::service::RateLimitService,
    message: &[u8],
    answers: &crate::settings::Answers,
) {
    let Ok(question) = RateLimitRequest::read(message) else { return };
    let descriptors = question.descriptors();
    let Ok(verdict) = service.check(&question.request(&descriptors)).await else { return };
    let told = RlsVerdict { question: &question, verdict: &verdict, answers };
    write(&told, &mut Vec::new());
    let _ = json::write(&told);
}

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod oracle_tests;
