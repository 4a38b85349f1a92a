//! The decisions of all limits of a request, before and after folding.

use std::sync::Arc;

#[cfg(feature = "policy")]
use tidegate_core::AlgorithmName;
use tidegate_core::{Decision, Explanation, Limit, Span};

use super::part::Standing;
use crate::limiter::NamedLimit;
#[cfg(feature = "policy")]
use crate::policy::{Domain, PolicyLimit, RequestLimit, Rule, RuleId};
use crate::store::DecisionSource;

/// Every limit of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) origin: Origin,
    pub(crate) records: Vec<Record>,
    /// The worst source of the decisions.
    pub(crate) source: DecisionSource,
    /// Whether limits that are settled after the response have opened reservations.
    #[cfg(feature = "policy")]
    pub(crate) reserves: bool,
    /// For each record the reason why the limit applies, and the state; empty unless the call
    /// explains.
    pub(crate) explained: Vec<(Option<String>, Option<Explanation>)>,
}

/// Where the limits of a request are defined.
#[derive(Clone, Debug, Default)]
pub(crate) enum Origin {
    /// In the request.
    #[default]
    Request,
    /// In a limiter.
    Limiter(Arc<[NamedLimit]>),
    /// In a domain of a policy.
    #[cfg(feature = "policy")]
    Domain(Arc<Domain>),
}

/// The result of one limit of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Number of the descriptor that the limit matched.
    pub(crate) descriptor: usize,
    pub(crate) source: LimitSource,
    pub(crate) standing: Standing,
    /// The limit's numbers; `None` if the limit is unlimited.
    pub(crate) numbers: Option<Limit>,
    /// `None` if the limit was not decided.
    pub(crate) decision: Option<Decision>,
    /// Units that would be left after a charge, if the decision was only read.
    pub(crate) left: Option<u64>,
    /// Number of the key, which spreads the retries of a window's keys.
    pub(crate) key_number: u64,
    /// The wait to report to a client that is denied to protect the server.
    pub(crate) retry: Option<Span>,
}

/// Where one limit is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitSource {
    /// Number of a limit of the limiter.
    Limiter(usize),
    /// In the request, with this algorithm.
    #[cfg(feature = "policy")]
    Inline(AlgorithmName),
    /// In a rule of a policy.
    #[cfg(feature = "policy")]
    Policy {
        rule: RuleId,
        limit: usize,
        /// Whether this is the part of the limit that classes other than the first share.
        is_for_others: bool,
    },
    /// In a descriptor of the request: a window of envoyproxy/ratelimit.
    #[cfg(feature = "policy")]
    Descriptor(RequestLimit),
}

impl Record {
    /// The record of an enforced limit.
    pub(crate) const fn live(
        descriptor: usize,
        source: LimitSource,
        numbers: Option<Limit>,
    ) -> Self {
        let standing = Standing::Live;
        Self {
            descriptor,
            source,
            standing,
            numbers,
            decision: None,
            left: None,
            key_number: 0,
            retry: None,
        }
    }

    /// Whether the record takes part in the verdict.
    pub(crate) const fn counts(&self) -> bool {
        matches!(self.standing, Standing::Live | Standing::Quota)
    }

    /// Whether this is the part of a limit that classes other than the first share.
    #[cfg(feature = "policy")]
    pub(crate) const fn is_for_others(&self) -> bool {
        matches!(self.source, LimitSource::Policy { is_for_others: true, .. })
    }

    /// Whether both records are of the same limit of the same request, whatever their results.
    #[cfg(feature = "policy")]
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let is_beside = |record: &Self| record.standing == Standing::Beside;
        self.descriptor == other.descriptor
            && self.source == other.source
            && is_beside(self) == is_beside(other)
    }

    /// Whether the limit denied.
    pub(crate) fn denies(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }
}

#[cfg(feature = "policy")]
impl Details {
    /// The rule and the limit of a record; `None` if the limit came with the request.
    pub(crate) fn rule(&self, record: &Record) -> Option<(&Rule, &PolicyLimit)> {
        match (&self.origin, record.source) {
            (Origin::Domain(domain), LimitSource::Policy { rule, limit, .. }) => {
                let rule = domain.rule(rule);
                Some((rule, rule.limits().get(limit)?))
            }
            _ => None,
        }
    }
}
