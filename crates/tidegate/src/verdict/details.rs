//! What each limit of a request decided, before and after folding.

use std::sync::Arc;

#[cfg(feature = "policy")]
use tidegate_core::AlgorithmName;
use tidegate_core::{Decision, Explanation, Limit, Span};

use super::part::Standing;
use crate::limiter::NamedLimit;
#[cfg(feature = "policy")]
use crate::policy::{Domain, PolicyLimit, RequestLimit, Rule, RuleId};
use crate::store::DecisionSource;

/// Every limit that a request met.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) origin: Origin,
    pub(crate) records: Vec<Record>,
    /// The worst source of the decisions.
    pub(crate) source: DecisionSource,
    /// Whether limits that are settled later have opened reservations.
    #[cfg(feature = "policy")]
    pub(crate) reserves: bool,
    /// For each record why it applies, and its state; empty unless asked to explain.
    pub(crate) explained: Vec<(Option<String>, Option<Explanation>)>,
}

/// Where the limits of a request are described.
#[derive(Clone, Debug, Default)]
pub(crate) enum Origin {
    /// Nowhere: they came with the request.
    #[default]
    Request,
    /// In a limiter.
    Limiter(Arc<[NamedLimit]>),
    /// In a domain of a policy.
    #[cfg(feature = "policy")]
    Domain(Arc<Domain>),
}

/// One limit that a request met.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// Number of the descriptor that led to it.
    pub(crate) descriptor: usize,
    pub(crate) source: LimitSource,
    pub(crate) standing: Standing,
    /// The numbers that it decided by; `None` if it is unlimited.
    pub(crate) numbers: Option<Limit>,
    /// `None` if it was not decided.
    pub(crate) decision: Option<Decision>,
    /// Units that charging would leave, where the decision was only read.
    pub(crate) left: Option<u64>,
    /// Number of the key, which spreads the retries of a window's keys.
    pub(crate) key_number: u64,
    /// When to tell a client to come back that is denied to protect the server.
    pub(crate) retry: Option<Span>,
}

/// Where one limit is described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitSource {
    /// Number of a limit of the limiter.
    Limiter(usize),
    /// It came with the request.
    #[cfg(feature = "policy")]
    Inline(AlgorithmName),
    /// A limit of a rule.
    #[cfg(feature = "policy")]
    Policy {
        rule: RuleId,
        limit: usize,
        /// It is the part of the limit that is left for all classes but the first.
        is_for_others: bool,
    },
    /// A window of envoyproxy/ratelimit that came with a descriptor.
    #[cfg(feature = "policy")]
    Descriptor(RequestLimit),
}

impl Record {
    /// A limit that is enforced.
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

    /// Whether it takes part in the verdict.
    pub(crate) const fn counts(&self) -> bool {
        matches!(self.standing, Standing::Live | Standing::Quota)
    }

    /// Whether it is the part of a limit that is left for all classes but the first.
    #[cfg(feature = "policy")]
    pub(crate) const fn is_for_others(&self) -> bool {
        matches!(self.source, LimitSource::Policy { is_for_others: true, .. })
    }

    /// Whether it is of the same limit of the same request, with whatever result.
    #[cfg(feature = "policy")]
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        let is_beside = |record: &Self| record.standing == Standing::Beside;
        self.descriptor == other.descriptor
            && self.source == other.source
            && is_beside(self) == is_beside(other)
    }

    /// Whether it denied.
    pub(crate) fn denies(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }
}

#[cfg(feature = "policy")]
impl Details {
    /// The rule and the limit of a record; `None` if it came with the request.
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
