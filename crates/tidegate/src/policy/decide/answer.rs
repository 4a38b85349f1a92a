//! What a policy answers to a request.

use std::sync::Arc;

use tidegate_core::{Decision, Limit, Outcome, Span, Timestamp};

use crate::policy::matching::level::RuleId;
use crate::policy::matching::matched_limits::MatchedLimit;
use crate::policy::model::descriptor::RequestLimit;
use crate::policy::model::limit::PolicyLimit;
use crate::policy::model::rule::{Domain, Rule};
use crate::store::{DecisionSource, OnStoreFailure};
use crate::verdict::rank;

/// What a policy answers to a request: yes or no, and what each limit said.
#[derive(Clone, Debug)]
pub struct Answer {
    /// `None` if the policy has no such domain.
    pub(in crate::policy) domain: Option<Arc<Domain>>,
    pub(in crate::policy) parts: Vec<Part>,
    pub(in crate::policy) allowed: bool,
    /// The part that speaks for all.
    pub(in crate::policy) binding: Option<usize>,
    pub(in crate::policy) now: Timestamp,
    /// How it was come by.
    pub(in crate::policy) decision_source: DecisionSource,
}

/// What one limit said.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Under which descriptor of the request.
    pub descriptor: usize,
    /// Which limit.
    pub(in crate::policy) source: LimitSource,
    /// What its word counts for.
    pub standing: Standing,
    /// By which numbers it decided; `None` if it did not.
    pub numbers: Option<Limit>,
    /// What it decided; `None` if it was not asked.
    pub decision: Option<Decision>,
    /// What charging would leave, where the decision was only read.
    pub(in crate::policy) left: Option<u64>,
    /// Whose window it is, as [`LimitStatus::whose`](crate::headers::LimitStatus) wants it.
    pub(in crate::policy) whose: u64,
}

/// Where a limit comes from.
#[derive(Clone, Copy, Debug)]
pub(in crate::policy) enum LimitSource {
    Policy { rule: RuleId, limit: usize },
    Request(RequestLimit),
}

/// What the word of a limit counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// If it denies, the request is denied.
    Live,
    /// If it denies, and all of its kind do, the request is denied (`quota_mode`).
    Quota,
    /// It is decided, and holds nobody back.
    Shadow,
    /// As a shadow, but another limit beside the live one that stands before it.
    Beside,
    /// It allows everything.
    Unlimited,
    /// Another limit of the request takes its place.
    Replaced,
    /// It is switched off.
    Off,
}

impl Answer {
    /// What is answered if nothing limits.
    pub(in crate::policy) const fn unlimited(now: Timestamp) -> Self {
        let decision_source = DecisionSource::Store;
        Self { domain: None, parts: Vec::new(), allowed: true, binding: None, now, decision_source }
    }

    /// When it was given, by the clock that decided.
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// Whether the request may go ahead, perhaps after [`Answer::delay`].
    pub const fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// How the decisions were come by: by the store, or without it.
    pub const fn decision_source(&self) -> DecisionSource {
        self.decision_source
    }

    /// Whether the request is denied for no other reason than that the store is away, and its policy
    /// says `on_store_failure: deny`: nobody is over a limit.
    pub fn is_unavailable(&self) -> bool {
        let says_deny = |part: &Part| {
            let limit = self.limit(part).map(|(_, limit)| limit.on_store_failure());
            // What came with the request says nothing, and goes by what was said for all.
            limit.is_none_or(|mode| mode == OnStoreFailure::Deny)
        };
        !self.allowed
            && self.decision_source == DecisionSource::Fallback(OnStoreFailure::Deny)
            && self.counting().filter(|part| part.denies()).all(says_deny)
    }

    /// Whether the policy has the domain.
    pub const fn knows_domain(&self) -> bool {
        self.domain.is_some()
    }

    /// What every limit said that the request met, descriptor by descriptor.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The limit that speaks for all: of those that count, the one that denies for longest, or else
    /// the one with least left. `None` if none counts.
    pub fn binding(&self) -> Option<&Part> {
        self.binding.map(|part| &self.parts[part])
    }

    /// How long to wait before asking again, if nobody else spends; `None` if the request is allowed
    /// or no wait helps.
    pub fn retry_after(&self) -> Option<Span> {
        if self.allowed { None } else { self.binding()?.decision?.retry_after() }
    }

    /// True if no wait helps.
    pub fn is_never(&self) -> bool {
        !self.allowed && self.retry_after().is_none()
    }

    /// How long an allowed request has to hold back before it starts.
    pub fn delay(&self) -> Span {
        let delays = self.counting().filter_map(|part| Some(part.decision?.delay()));
        if self.allowed { delays.max().unwrap_or_default() } else { Span::ZERO }
    }

    /// Whether a descriptor is over one of its limits, be it that this denies the request or not.
    pub fn is_over(&self, descriptor: usize) -> bool {
        self.of(descriptor).any(|part| part.counts() && part.denies())
    }

    /// What the limits of one descriptor said.
    pub fn of(&self, descriptor: usize) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(move |part| part.descriptor == descriptor)
    }

    /// The limit that speaks for a descriptor.
    pub fn binding_of(&self, descriptor: usize) -> Option<&Part> {
        self.of(descriptor)
            .filter(|part| part.decision.is_some() && part.standing != Standing::Beside)
            .max_by_key(|part| (part.counts(), part.rank()))
    }

    /// The rule and the limit of a part; `None` if the limit came with the request.
    pub fn limit(&self, part: &Part) -> Option<(&Rule, &PolicyLimit)> {
        let LimitSource::Policy { rule, limit } = part.source else { return None };
        let rule = self.domain.as_ref()?.rule(rule);
        Some((rule, rule.limits().get(limit)?))
    }

    fn counting(&self) -> impl Iterator<Item = &Part> {
        self.parts.iter().filter(|part| part.counts())
    }

    /// Takes note of what was decided.
    pub(in crate::policy) fn record(
        &mut self,
        matched_limits: &[MatchedLimit],
        decisions: impl Iterator<Item = Decision>,
    ) {
        for (matched, decision) in matched_limits.iter().zip(decisions) {
            self.parts[matched.part].record(matched, decision);
        }
    }

    /// Settles who speaks, and whether the request may go ahead.
    pub(in crate::policy) fn fold(&mut self) {
        let live_denies = |part: &Part| part.standing == Standing::Live && part.denies();
        let live_denies = self.parts.iter().any(live_denies);
        let quota = self.quota_that_denies();
        self.allowed = !live_denies && quota.is_none();
        let speaks = |(number, part): &(usize, &Part)| match part.standing {
            // A quota that is over binds nobody as long as another is not, or will not be sooner.
            Standing::Quota if part.denies() => quota == Some(*number),
            Standing::Live | Standing::Quota => part.decision.is_some(),
            _ => false,
        };
        let speakers = self.parts.iter().enumerate().filter(speaks);
        self.binding = speakers.max_by_key(|(_, part)| part.rank()).map(|(number, _)| number);
    }

    /// If every quota is over: the part that keeps the one from being free which will be so first.
    pub(in crate::policy) fn quota_that_denies(&self) -> Option<usize> {
        // A quota that is only a shadow is not over, so it saves the others.
        let is_quota = |part: &&Part| match part.standing {
            Standing::Quota => true,
            Standing::Shadow => self.limit(part).is_some_and(|(rule, _)| rule.is_quota()),
            _ => false,
        };
        let quotas = self.parts.iter().filter(is_quota).map(|part| part.descriptor);
        let mut first: Option<(usize, &Part)> = None;
        for descriptor in quotas {
            let parts = self.parts.iter().enumerate();
            let over = parts.filter(|(_, part)| {
                part.descriptor == descriptor && part.counts() && part.denies()
            });
            let over = over.max_by_key(|(_, part)| part.rank())?;
            if first.is_none_or(|(_, first)| over.1.rank() < first.rank()) {
                first = Some(over);
            }
        }
        first.map(|(number, _)| number)
    }
}

impl Part {
    /// Whether it takes part in the verdict.
    pub const fn counts(&self) -> bool {
        matches!(self.standing, Standing::Live | Standing::Quota)
    }

    /// Takes note of a decision. What stands before a limit speaks after it, and only if it denies for
    /// longer.
    pub(in crate::policy) fn record(&mut self, matched: &MatchedLimit, decision: Decision) {
        let is_stricter = |own: Decision| rank(&decision) > rank(&own);
        let speaks = !decision.is_allowed() && self.decision.is_none_or(is_stricter);
        if !matched.in_front || speaks {
            (self.decision, self.numbers) = (Some(decision), Some(matched.numbers));
        }
    }

    /// Whether it denied.
    pub fn denies(&self) -> bool {
        self.decision.is_some_and(|decision| !decision.is_allowed())
    }

    /// The limit that came with the request, if it is one.
    pub const fn request_limit(&self) -> Option<RequestLimit> {
        match self.source {
            LimitSource::Request(limit) => Some(limit),
            LimitSource::Policy { .. } => None,
        }
    }

    fn rank(&self) -> impl Ord + use<> {
        const NOTHING: Decision = Decision {
            outcome: Outcome::Allow,
            limit: u64::MAX,
            remaining: u64::MAX,
            reset_after: Span::ZERO,
            unbooked: 0,
            lease: None,
        };
        let decision = self.decision.unwrap_or(NOTHING);
        rank(&Decision { remaining: self.left.unwrap_or(decision.remaining), ..decision })
    }
}
