//! The header fields of requests that a limiter's only limit admits. The part that is the same for
//! all requests is formatted once.

use std::sync::Arc;

use http::HeaderValue;
use tidegate_core::{Decision, Limit, Op, Outcome, Timestamp};

use super::{Item, MAX_INTEGER, quote};
use crate::limiter::NamedLimit;
use crate::verdict::digits::Digits;

/// A placeholder where there is no decision.
const UNREAD: Decision = crate::verdict::decision(Outcome::Allow, 0);

/// The fields that describe an admission. They are formatted when the response is ready.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct AdmissionFields {
    limit: Arc<LimitFields>,
    remaining: u64,
    seconds: Option<u64>,
}

impl AdmissionFields {
    /// `RateLimit-Policy`.
    pub fn policy(&self) -> HeaderValue {
        self.limit.policy.clone()
    }

    /// `RateLimit`.
    pub fn state(&self) -> Option<HeaderValue> {
        let left = Digits::of(self.remaining.min(MAX_INTEGER));
        let seconds = self.seconds.map(Digits::of);
        let (mark, seconds) = match &seconds {
            Some(seconds) => (";t=", seconds.as_str()),
            None => ("", ""),
        };
        let pieces = [&*self.limit.state, left.as_str(), mark, seconds];
        // A text of exactly the needed capacity becomes a value without being copied.
        let mut state = String::with_capacity(pieces.iter().map(|piece| piece.len()).sum());
        state.extend(pieces);
        state.try_into().ok()
    }
}

/// The part of the fields that is the same for all admissions by one limit.
#[derive(Debug)]
pub(crate) struct LimitFields {
    policy: HeaderValue,
    /// `RateLimit` up to the number of units left.
    state: Box<str>,
}

impl LimitFields {
    /// `None` for limits whose fields depend on more than the numbers.
    pub(crate) fn new(named: &NamedLimit) -> Option<Arc<Self>> {
        let most = match &named.limit {
            Limit::Bucket(bucket) => bucket.capacity(),
            Limit::FixedWindow(window) => window.limit(),
            Limit::SlidingWindow(window) => window.limit(),
            _ => return None,
        };
        let mut state = String::new();
        quote(&mut state, &named.name);
        let mut policy = state.clone();
        item(named, &UNREAD, 0).describe(most, &mut policy);
        state.push_str(";r=");
        Some(Arc::new(Self { policy: policy.try_into().ok()?, state: state.into() }))
    }

    /// The fields of an admission at `now`.
    pub(crate) fn of(
        self: &Arc<Self>,
        named: &NamedLimit,
        key: &[u8],
        now: Timestamp,
        decision: &Decision,
    ) -> AdmissionFields {
        let key_number = match &named.limit {
            Limit::Bucket(_) => 0,
            _ => named.charge(key, Op::Read(0)).key_number(),
        };
        let seconds = item(named, decision, key_number).seconds_until_more(now);
        AdmissionFields { limit: Arc::clone(self), remaining: decision.remaining, seconds }
    }
}

fn item<'a>(named: &'a NamedLimit, decision: &'a Decision, key_number: u64) -> Item<'a> {
    Item { name: &named.name, limit: Some(&named.limit), decision, key_number, retry: None }
}
