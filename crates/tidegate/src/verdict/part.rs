//! The decision of one limit.

use tidegate_core::{Decision, Explanation, Limit, Span};

use super::Verdict;
use super::details::{Details, LimitSource, Origin, Record};
#[cfg(feature = "policy")]
use crate::policy::{PolicyLimit, RequestLimit, Rule};
#[cfg(feature = "policy")]
use crate::store::OnStoreFailure;

/// The decision of one limit on a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Part<'a> {
    /// The name of the limit, or the path of its rule if the limit has no name; `given` if the
    /// limit came with the request.
    pub name: &'a str,
    /// Number of the descriptor that the limit matched. For limits that came with the request,
    /// number of the key.
    pub descriptor: usize,
    /// The name of its algorithm; `in_flight` for an in-flight limit.
    pub algorithm: &'static str,
    /// Whether it is enforced.
    pub standing: Standing,
    /// The limit's numbers; `None` if the limit allows everything.
    pub numbers: Option<&'a Limit>,
    /// The decision; `None` if the limit was not decided.
    pub decision: Option<&'a Decision>,
    /// Why the limit applies; only from `explain`.
    pub reason: Option<&'a str>,
    /// The state of the key; only from `explain`.
    pub state: Option<&'a Explanation>,
    /// The rule and the limit in the policy.
    #[cfg(feature = "policy")]
    pub rule: Option<(&'a Rule, &'a PolicyLimit)>,
    record: &'a Record,
}

/// How the decision of a limit affects the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// Enforced: its denial denies the request.
    Live,
    /// Enforced only if every quota of the request is exhausted (`quota_mode`).
    Quota,
    /// Decided and counted, not enforced.
    Shadow,
    /// A shadow limit with other numbers, beside the live limit before it.
    Beside,
    /// Allows everything.
    Unlimited,
    /// Another limit of the request replaces it.
    Replaced,
    /// An in-flight limit that the call cannot release and therefore skips.
    Skipped,
    /// Switched off.
    Off,
}

impl Verdict {
    /// The decision of each limit, descriptor by descriptor. Empty for checks that do not list them
    /// (see [`Verdict`]).
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Part<'_>> + DoubleEndedIterator + Clone {
        let details = self.details();
        let count = details.map_or(0, |details| details.records.len());
        (0..count).map(move |number| details.map_or_else(|| unreachable!(), |it| it.part(number)))
    }

    /// The strictest limit; `None` if no limit counts, or if the check did not list its parts.
    pub fn strictest(&self) -> Option<Part<'_>> {
        self.parts().nth(self.binding()?)
    }

    /// The strictest limit of one descriptor; enforced limits come before shadow limits.
    #[doc(hidden)]
    pub fn strictest_of(&self, descriptor: usize) -> Option<Part<'_>> {
        self.parts()
            .filter(|part| part.descriptor == descriptor && part.decision.is_some())
            .filter(|part| part.standing != Standing::Beside)
            .max_by_key(|part| (part.counts(), part.record.rank()))
    }
}

impl Details {
    fn part(&self, number: usize) -> Part<'_> {
        let record = &self.records[number];
        let (name, algorithm) = self.name(record);
        let explained = self.explained.get(number);
        Part {
            name,
            descriptor: record.descriptor,
            algorithm,
            standing: record.standing,
            numbers: record.numbers.as_ref(),
            decision: record.decision.as_ref(),
            reason: explained.and_then(|(reason, _)| reason.as_deref()),
            state: explained.and_then(|(_, state)| state.as_ref()),
            #[cfg(feature = "policy")]
            rule: self.rule(record),
            record,
        }
    }

    fn name(&self, record: &Record) -> (&str, &'static str) {
        const GIVEN: &str = "given";
        match (&self.origin, record.source) {
            (Origin::Limiter(limits), LimitSource::Limiter(number)) => {
                let limit = limits.get(number);
                let algorithm = limit.map_or("token_bucket", |it| algorithm_of(&it.limit));
                (limit.map_or("", |limit| &*limit.name), algorithm)
            }
            #[cfg(feature = "policy")]
            (_, LimitSource::Inline(algorithm)) => (GIVEN, algorithm.as_str()),
            #[cfg(feature = "policy")]
            (_, LimitSource::Policy { is_for_others, .. }) => match self.rule(record) {
                Some((_, PolicyLimit { reserve: Some(reserve), .. })) if is_for_others => {
                    (&reserve.name, "in_flight")
                }
                Some((rule, limit)) => (limit.name().unwrap_or_else(|| rule.path()), limit.kind()),
                None => (GIVEN, "fixed_window"),
            },
            _ => (GIVEN, "fixed_window"),
        }
    }
}

/// The algorithm name of a limit that has no policy.
const fn algorithm_of(limit: &Limit) -> &'static str {
    match &limit.without_block() {
        Limit::FixedWindow(_) => "fixed_window",
        Limit::SlidingWindow(_) => "sliding_window",
        Limit::SlidingLog(_) => "sliding_log",
        Limit::InFlight(_) => "in_flight",
        _ => "token_bucket",
    }
}

impl Part<'_> {
    /// Whether it takes part in the verdict.
    #[doc(hidden)]
    pub const fn counts(&self) -> bool {
        self.record.counts()
    }

    /// Whether it denied.
    #[doc(hidden)]
    pub fn denies(&self) -> bool {
        self.record.denies()
    }

    /// The window of envoyproxy/ratelimit that came with the descriptor, if any.
    #[doc(hidden)]
    #[cfg(feature = "policy")]
    pub const fn request_limit(&self) -> Option<RequestLimit> {
        match self.record.source {
            LimitSource::Descriptor(limit) => Some(limit),
            _ => None,
        }
    }

    /// Whether the limit denies while the store is unavailable. A limit that came with the request
    /// follows the setting `store.on_failure`.
    pub(super) fn fails_closed(&self) -> bool {
        #[cfg(feature = "policy")]
        if let Some((_, limit)) = self.rule {
            return limit.on_store_failure() == OnStoreFailure::Deny;
        }
        true
    }

    /// Whether a denial protects the server: 503, not 429.
    pub(super) fn sheds(&self) -> bool {
        #[cfg(feature = "policy")]
        if let Some((_, limit)) = self.rule {
            return limit.sheds();
        }
        false
    }

    /// The wait to report to a client that is denied to protect the server.
    pub(super) const fn retry(&self) -> Option<Span> {
        self.record.retry
    }

    pub(super) const fn key_number(&self) -> u64 {
        self.record.key_number
    }
}

impl Standing {
    const ALL: [Self; 8] = [
        Self::Live,
        Self::Quota,
        Self::Shadow,
        Self::Beside,
        Self::Unlimited,
        Self::Replaced,
        Self::Skipped,
        Self::Off,
    ];

    /// The standing with this name.
    #[doc(hidden)]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|standing| standing.as_str() == name)
    }

    /// The name in JSON.
    #[doc(hidden)]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Quota => "quota",
            Self::Shadow => "shadow",
            Self::Beside => "beside",
            Self::Unlimited => "unlimited",
            Self::Replaced => "replaced",
            Self::Skipped => "skipped",
            Self::Off => "off",
        }
    }
}
