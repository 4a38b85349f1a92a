//! The header fields of requests that a limiter's only limit admits. The part that is the same for
//! all requests is formatted once.

use std::sync::Arc;
#[cfg(feature = "policy")]
use std::sync::OnceLock;

use http::HeaderValue;
use tidegate_core::{Decision, Limit, Op, Outcome, Timestamp};

use super::{Item, MAX_INTEGER, quote};
use crate::limiter::NamedLimit;
#[cfg(feature = "policy")]
use crate::verdict::Verdict;
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
    /// The most units that the limit gives. A node's share of the limit gives fewer.
    #[cfg(feature = "policy")]
    most: u64,
    /// `RateLimit` up to the number of units left.
    state: Box<str>,
}

impl LimitFields {
    /// `None` for limits whose fields depend on more than the numbers.
    pub(crate) fn new(name: &str, limit: &Limit) -> Option<Arc<Self>> {
        let most = match limit {
            Limit::Bucket(bucket) => bucket.capacity(),
            Limit::FixedWindow(window) => window.limit(),
            Limit::SlidingWindow(window) => window.limit(),
            _ => return None,
        };
        let mut state = String::new();
        quote(&mut state, name);
        let mut policy = state.clone();
        item(limit, &UNREAD, 0).describe(most, &mut policy);
        state.push_str(";r=");
        Some(Arc::new(Self {
            policy: policy.try_into().ok()?,
            #[cfg(feature = "policy")]
            most,
            state: state.into(),
        }))
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
        self.at(&named.limit, key_number, now, decision)
    }

    fn at(
        self: &Arc<Self>,
        limit: &Limit,
        key_number: u64,
        now: Timestamp,
        decision: &Decision,
    ) -> AdmissionFields {
        let seconds = item(limit, decision, key_number).seconds_until_more(now);
        AdmissionFields { limit: Arc::clone(self), remaining: decision.remaining, seconds }
    }
}

fn item<'a>(limit: &'a Limit, decision: &'a Decision, key_number: u64) -> Item<'a> {
    Item { name: "", limit: Some(limit), decision, key_number, retry: None }
}

/// The fields of a limit of a policy, written when they are first needed.
#[cfg(feature = "policy")]
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownFields(OnceLock<Option<(Limit, Arc<LimitFields>)>>);

#[cfg(feature = "policy")]
impl KnownFields {
    /// The fields of a limit under this name; `None` if the first ones were those of other numbers.
    fn of(&self, name: &str, limit: &Limit) -> Option<&Arc<LimitFields>> {
        let known = self.0.get_or_init(|| Some((*limit, LimitFields::new(name, limit)?)));
        known.as_ref().filter(|(known, _)| known == limit).map(|(_, fields)| fields)
    }
}

#[cfg(feature = "policy")]
impl Verdict {
    /// The values of the header fields, if only one limit of a policy counts and it admits the request. They
    /// are the same as those of [`Verdict::headers`].
    #[doc(hidden)]
    pub fn admission_fields(&self) -> Option<AdmissionFields> {
        let mut counting = self.parts().filter(|part| part.counts() && part.decision.is_some());
        let (part, None) = (counting.next()?, counting.next()) else { return None };
        let (Some((_, limit)), Some(numbers), Some(decision)) =
            (part.rule, part.numbers, part.decision)
        else {
            return None;
        };
        if !decision.is_allowed() || part.retry().is_some() || limit.reserve.is_some() {
            return None;
        }
        let fields = limit.fields.of(part.name, numbers)?;
        if decision.limit != fields.most {
            return None;
        }
        Some(fields.at(numbers, part.key_number(), self.at(), decision))
    }
}
