//! The limiter of a policy: resolve → decide → fold.
//!
//! ```text
//!   request ──resolve──▶ matched ──decide──▶ decisions ──fold──▶ answer
//!            matched.rs            store/               answer.rs
//! ```
//!
//! # What is decided together
//! Limits in our form are taken all or nothing, those of envoyproxy/ratelimit each alone, unless
//! the domain says otherwise (`charge`). Shadows and quotas are always alone, whatever the others
//! said.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_core::{Decision, Explanation, Timestamp};

use crate::clock::Clock;
use crate::key::Hashing;
use crate::policy::Policy;
use crate::policy::decide::answer::{Answer, Standing};
use crate::policy::decide::control::Controls;
use crate::policy::decide::dry_run::dry_run;
use crate::policy::decide::reason::reasons;
use crate::policy::decide::stats::StatsRegistry;
use crate::policy::matching::matched_limits::{Intent, MatchInput, MatchedLimits};
use crate::policy::model::descriptor::{MAX_DESCRIPTORS, Request};
use crate::store::memory::MemoryStore;
use crate::store::{Charge, MAX_TOGETHER, Store, StoreError};

/// Decides requests by a policy. Cheap to share: clones are handles to the same limiter.
///
/// ```
/// use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
///
/// let file = "
/// domain: api
/// descriptors:
///   - key: user
///     rate: 2/min
/// ";
/// let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
/// let limiter = PolicyLimiter::in_memory(loaded.policy.expect("no errors"))?;
///
/// let entries = [Entry { key: "user", value: "bob" }];
/// let descriptors = [Descriptor::new(&entries)];
/// let request = Request { domain: "api", descriptors: &descriptors, hits: None };
/// assert!(limiter.check_now(&request)?.is_allowed());
/// assert!(limiter.check_now(&request)?.is_allowed());
/// assert!(!limiter.check_now(&request)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PolicyLimiter<S>(pub(in crate::policy) Arc<Shared<S>>);

#[derive(Debug)]
pub(in crate::policy) struct Shared<S> {
    policy: ArcSwap<Policy>,
    /// What overrules it for now.
    pub(in crate::policy) controls: ArcSwap<Controls>,
    pub(in crate::policy) store: S,
    pub(in crate::policy) clock: Clock,
    pub(in crate::policy) stats_registry: StatsRegistry,
}

impl<S> Clone for PolicyLimiter<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl PolicyLimiter<MemoryStore> {
    /// With state in this process, bounded as [`MemoryStore::DEFAULT_BYTES`] says.
    pub fn in_memory(policy: Policy) -> std::io::Result<Self> {
        let clock = Clock::default();
        let store = MemoryStore::new(MemoryStore::DEFAULT_BYTES, Hashing::Fast)?;
        Ok(Self::new(policy, store.with_clock(clock.clone()), clock))
    }

    /// As [`PolicyLimiter::check`], at once: memory keeps nobody waiting.
    pub fn check_now(&self, request: &Request<'_>) -> Result<Answer, CheckError> {
        ready(self.check(request))
    }

    /// As [`PolicyLimiter::explain`], at once.
    pub fn explain_now(&self, request: &Request<'_>) -> Result<Explained, CheckError> {
        ready(self.explain(request))
    }
}

/// The value of a future that waits for nothing.
fn ready<T>(future: impl Future<Output = Result<T, CheckError>>) -> Result<T, CheckError> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => Err(CheckError::Store(StoreError::Timeout)),
    }
}

impl<S: Store> PolicyLimiter<S> {
    /// With state in `store`, by the time of `clock`.
    pub fn new(policy: Policy, store: S, clock: Clock) -> Self {
        let (policy, controls) = (ArcSwap::from_pointee(policy), ArcSwap::default());
        Self(Arc::new(Shared {
            policy,
            controls,
            store,
            clock,
            stats_registry: StatsRegistry::default(),
        }))
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    /// Puts another policy in force. Every request is decided by one or the other as a whole; state
    /// is kept under all limits that are still there, and so is what shadows have counted.
    pub fn replace(&self, policy: Policy) {
        let old = self.0.policy.load_full();
        let policy = policy.continuing(&old);
        let has_other_numbers = policy.has_other_numbers(&old);
        if has_other_numbers {
            // Before anybody decides by the new numbers.
            self.0.store.limits_changed();
        }
        self.0.policy.store(Arc::new(policy));
        if has_other_numbers {
            // Meanwhile the store may have registered the old policy.
            self.0.store.limits_changed();
        }
    }

    /// The store that keeps the state.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Decides a request and charges it.
    pub async fn check(&self, request: &Request<'_>) -> Result<Answer, CheckError> {
        Ok(self.decide(request, Intent::Take).await?.0)
    }

    /// Says what [`PolicyLimiter::check`] would, and charges nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Result<Answer, CheckError> {
        Ok(self.decide(request, Intent::Read).await?.0)
    }

    /// Gives back what a request was charged.
    pub async fn refund(&self, request: &Request<'_>) -> Result<Answer, CheckError> {
        Ok(self.decide(request, Intent::Return).await?.0)
    }

    /// Lets whoever the request is about start afresh under every limit that it meets.
    pub async fn reset(&self, request: &Request<'_>) -> Result<Answer, CheckError> {
        Ok(self.decide(request, Intent::Reset).await?.0)
    }

    /// What every limit would say and how it stands. Changes nothing.
    pub async fn explain(&self, request: &Request<'_>) -> Result<Explained, CheckError> {
        let (answer, matched, now) = self.decide(request, Intent::Read).await?;
        let reasons = match &answer.domain {
            Some(domain) => reasons(&answer, domain, &self.0.controls.load(), request),
            None => Vec::new(),
        };
        let mut states = vec![None; answer.parts.len()];
        for one in matched.iter().filter(|one| !one.in_front) {
            states[one.part] = Some(self.0.store.explain(now, &matched.charge(one)).await?);
        }
        Ok(Explained { answer, reasons, states, now })
    }

    async fn decide(
        &self,
        request: &Request<'_>,
        intent: Intent,
    ) -> Result<(Answer, MatchedLimits, Timestamp), CheckError> {
        if request.domain.is_empty() {
            return Err(CheckError::NoDomain);
        }
        match request.descriptors.len() {
            0 => return Err(CheckError::NoDescriptors),
            1..=MAX_DESCRIPTORS => {}
            _ => return Err(CheckError::TooManyDescriptors),
        }
        let Shared { policy, controls, store, clock, stats_registry } = &*self.0;
        let local = clock.now();
        let mut matched = MatchedLimits::with_room(request.descriptors.len());
        let Some(domain) = policy.load().shared_domain(request.domain) else {
            if intent == Intent::Take {
                stats_registry.count_unknown(request.domain);
            }
            return Ok((Answer::unlimited(local), matched, local));
        };
        let now = store.clock(local);
        let mut answer = Answer { domain: Some(Arc::clone(&domain)), ..Answer::unlimited(now) };
        answer.parts.reserve_exact(request.descriptors.len());
        matched.resolve(MatchInput {
            domain: &domain,
            controls: &controls.load(),
            request,
            intent,
            now,
            parts: &mut answer.parts,
        });
        matched.order(&answer.parts);
        let (together, quotas, others) = matched.split();
        if together.len() > MAX_TOGETHER {
            return Err(CheckError::TooManyTogether);
        }
        if intent == Intent::Read {
            dry_run(store, local, &matched, &mut answer).await?;
            answer.fold();
            return Ok((answer, matched, now));
        }
        let mut decisions: Vec<Decision> = Vec::with_capacity(matched.len());
        if !quotas.is_empty() {
            let charges: Vec<Charge<'_>> = quotas.iter().map(|one| matched.charge(one)).collect();
            let source = store.decide_each(local, &charges, &mut decisions).await?;
            answer.decision_source = answer.decision_source.max(source);
            answer.record(quotas, decisions.drain(..));
        }
        if !together.is_empty() {
            // What quotas deny is not charged.
            let is_denied = answer.quota_that_denies().is_some();
            let charge = |one| {
                if is_denied { matched.read(one) } else { matched.charge(one) }
            };
            let charges: Vec<Charge<'_>> = together.iter().map(charge).collect();
            let source = store.decide(local, &charges, &mut decisions).await?;
            answer.decision_source = answer.decision_source.max(source);
            answer.record(together, decisions.drain(..));
        }
        if !others.is_empty() {
            let charges: Vec<Charge<'_>> = others.iter().map(|one| matched.charge(one)).collect();
            let source = store.decide_each(local, &charges, &mut decisions).await?;
            answer.decision_source = answer.decision_source.max(source);
            answer.record(others, decisions.drain(..));
        }
        answer.fold();
        if intent == Intent::Take {
            count_shadows(&answer);
            stats_registry.count(&answer, &matched, request);
        }
        Ok((answer, matched, now))
    }
}

/// Counts how often limits and those tried beside them said the same.
fn count_shadows(answer: &Answer) {
    for (live, beside) in answer.parts.iter().zip(answer.parts.iter().skip(1)) {
        let Some(variant) = answer.limit(beside).and_then(|(_, limit)| limit.shadow()) else {
            continue;
        };
        if beside.standing == Standing::Beside && live.decision.is_some() {
            variant.count(!live.denies(), !beside.denies());
        }
    }
}

/// What every limit would say to a request, and how it stands.
#[derive(Clone, Debug)]
pub struct Explained {
    /// What the next check would answer.
    pub answer: Answer,
    /// For each part of the answer which rule, plan, override and percentage chose its numbers.
    pub reasons: Vec<String>,
    /// For each part of the answer what its state means; `None` if it has none.
    pub states: Vec<Option<Explanation>>,
    /// When it was asked.
    pub now: Timestamp,
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The request names no domain.
    NoDomain,
    /// The request has no descriptors.
    NoDescriptors,
    /// The request has more than [`MAX_DESCRIPTORS`].
    TooManyDescriptors,
    /// The request meets more than [`MAX_TOGETHER`] limits that are charged together.
    TooManyTogether,
    /// The store gave no decision.
    Store(StoreError),
}

impl From<StoreError> for CheckError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoDomain => f.write_str("rate limit domain must not be empty"),
            Self::NoDescriptors => f.write_str("rate limit descriptor list must not be empty"),
            Self::TooManyDescriptors => {
                write!(f, "a request has at most {MAX_DESCRIPTORS} descriptors")
            }
            Self::TooManyTogether => {
                write!(f, "the request meets more than {MAX_TOGETHER} limits charged together")
            }
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for CheckError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;
