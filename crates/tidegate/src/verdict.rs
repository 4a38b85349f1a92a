//! The result of every check: one [`Verdict`], from which every transport encodes its reply.
//!
//! ```
//! use tidegate::{Limit, Limiter, Rate};
//!
//! let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(100)).build()?);
//! let verdict = limiter.report("user:17", 1);
//! assert!(verdict.is_allowed());
//! assert_eq!((verdict.limit(), verdict.remaining()), (100, 99));
//! for (name, value) in verdict.headers() {
//!     println!("{name}: {value}"); // ratelimit: "default";r=99;t=1
//! }
//! # Ok::<(), tidegate::InvalidLimit>(())
//! ```

mod details;
mod digits;
mod fold;
mod headers;
mod json;
mod part;
mod rounding;

use std::time::Duration;

use tidegate_core::{Decision, Outcome, Span, Timestamp};

use crate::store::{DecisionSource, OnStoreFailure};

pub(crate) use self::details::{Details, LimitSource, Origin, Record};
#[cfg(feature = "policy")]
pub(crate) use self::fold::rank;
pub use self::headers::Headers;
#[cfg(feature = "http")]
#[doc(hidden)]
pub use self::headers::values::AdmissionFields;
#[cfg(all(feature = "http", feature = "policy"))]
pub(crate) use self::headers::values::KnownFields;
#[cfg(feature = "http")]
pub(crate) use self::headers::values::LimitFields;
#[doc(hidden)]
pub use self::json::Problem;
pub use self::part::{Part, Standing};
#[doc(hidden)]
pub use self::rounding::{whole_millis, whole_seconds};

/// The answer to a request: whether it may go ahead, and the state of its limits.
///
/// If a request meets several limits, the strictest decides: any denial denies the request, and the
/// numbers are those of the limit that denies for longest, or else of the one with the fewest units
/// left.
///
/// Most checks return a verdict without [parts](Verdict::parts), because listing them allocates;
/// `report` and every check of a policy list each limit.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The decision of the strictest limit.
    folded: Decision,
    /// The instant of the verdict, by the clock of the store.
    at: Timestamp,
    source: DecisionSource,
    /// Number of the strictest limit.
    binding: u16,
    /// One bit for each of the first 16 limits that denied.
    denied: u16,
    details: Option<Box<Details>>,
}

/// Stands for the number of a limit if no limit counts.
const UNLIMITED: u16 = u16::MAX;

impl Verdict {
    /// The verdict before any limit has decided.
    pub(crate) const UNDECIDED: Self = Self {
        folded: decision(Outcome::Deny { retry_after: None }, 0),
        at: Timestamp::EPOCH,
        source: DecisionSource::Store,
        binding: 0,
        denied: 0,
        details: None,
    };

    /// The verdict on a request that no limit applies to.
    pub(crate) const fn unlimited(at: Timestamp) -> Self {
        let folded = decision(Outcome::Allow, u64::MAX);
        Self { folded, at, binding: UNLIMITED, ..Self::UNDECIDED }
    }

    /// The verdict of a single limit.
    #[inline(always)]
    pub(crate) const fn of_one(at: Timestamp, decision: Decision) -> Self {
        let denied = !decision.is_allowed() as u16;
        Self { folded: decision, at, denied, ..Self::UNDECIDED }
    }

    /// The same verdict, with the source of its decisions.
    pub(crate) fn decided_by(self, source: DecisionSource) -> Self {
        Self { source: self.source.max(source), ..self }
    }

    /// True if the request may go ahead, perhaps after [`Verdict::delay`].
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        self.folded.is_allowed()
    }

    /// True if the request may not go ahead.
    #[inline]
    pub const fn is_denied(&self) -> bool {
        !self.folded.is_allowed()
    }

    /// True if the request is denied to protect the server and not by a quota of the client: by
    /// limits with `status: 503`, or by `on_store_failure: deny` while the store is unavailable.
    /// HTTP replies with 503 instead of 429.
    pub fn is_unavailable(&self) -> bool {
        let fails_closed = self.source == DecisionSource::Fallback(OnStoreFailure::Deny);
        let mut denying = self.parts().filter(|part| part.counts() && part.denies());
        self.is_denied()
            && (fails_closed || denying.clone().next().is_some())
            && denying.all(|part| part.sheds() || (fails_closed && part.fails_closed()))
    }

    /// The most units that the strictest limit gives an idle key at once; `u64::MAX` if no limit applies.
    #[inline]
    pub const fn limit(&self) -> u64 {
        self.folded.limit
    }

    /// Units that the strictest limit has left; `u64::MAX` if no limit applies.
    #[inline]
    pub const fn remaining(&self) -> u64 {
        self.folded.remaining
    }

    /// How long until all units of the strictest limit are back, if no request spends any.
    #[inline]
    pub fn reset_after(&self) -> Duration {
        self.folded.reset_after.into()
    }

    /// How long to wait before the same request is allowed, if no other request spends units. `None` if
    /// it is allowed, or if no wait helps ([`Verdict::is_never`]).
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        self.folded.retry_after().map(Duration::from)
    }

    /// True if the request is denied and no wait helps: it costs more than the limit can ever give.
    pub const fn is_never(&self) -> bool {
        self.folded.is_never()
    }

    /// How long an allowed request has to wait before it starts; zero unless a leaky bucket shapes it.
    #[inline]
    pub fn delay(&self) -> Duration {
        self.folded.delay().into()
    }

    /// The verdict for a request that cannot wait for its [delay](Verdict::delay): a denial with
    /// the delay as wait. The units of the request stay taken.
    #[must_use]
    #[doc(hidden)]
    pub fn without_waiting(mut self) -> Self {
        self.folded = refused_to_wait(self.folded);
        for record in self.details.iter_mut().flat_map(|details| &mut details.records) {
            record.decision = record.decision.map(refused_to_wait);
        }
        self
    }

    /// Units of [`Limiter::force`](crate::Limiter::force) that did not fit.
    #[doc(hidden)]
    pub const fn unbooked(&self) -> u64 {
        self.folded.unbooked
    }

    /// Number of the strictest limit, in the order of [`Verdict::parts`]; `None` if no limit counts.
    #[doc(hidden)]
    pub const fn binding(&self) -> Option<usize> {
        if self.binding == UNLIMITED { None } else { Some(self.binding as usize) }
    }

    /// The decision of the strictest limit.
    #[doc(hidden)]
    pub const fn decision(&self) -> &Decision {
        &self.folded
    }

    /// When the verdict was given, by the clock of the store that decided.
    #[doc(hidden)]
    pub const fn at(&self) -> Timestamp {
        self.at
    }

    /// Where the decisions came from: the store, or the fallback while it is unavailable.
    #[doc(hidden)]
    pub const fn source(&self) -> DecisionSource {
        self.source
    }

    pub(crate) fn details(&self) -> Option<&Details> {
        self.details.as_deref()
    }
}

/// Two verdicts are equal if a caller cannot distinguish them.
impl PartialEq for Verdict {
    fn eq(&self, other: &Self) -> bool {
        (self.folded, self.binding, self.denied) == (other.folded, other.binding, other.denied)
    }
}

impl Eq for Verdict {}

/// Turns a delay into a denial.
const fn refused_to_wait(decision: Decision) -> Decision {
    match decision.outcome {
        Outcome::Delay(delay) => {
            Decision { outcome: Outcome::Deny { retry_after: Some(delay) }, ..decision }
        }
        Outcome::Allow | Outcome::Deny { .. } => decision,
    }
}

const fn decision(outcome: Outcome, units: u64) -> Decision {
    let reset_after = Span::ZERO;
    Decision { outcome, limit: units, remaining: units, reset_after, unbooked: 0, lease: None }
}
