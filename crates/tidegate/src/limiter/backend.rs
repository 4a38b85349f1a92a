//! The interface between a limiter and its store. A memory store decides without waiting or
//! allocating; a shared store decides over the network.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;

use tidegate_core::{Decision, Explanation, Limit, Op, Timestamp};

use super::builder::BuildError;
use super::limits::NamedLimit;
use super::quick::Quick;
use crate::clock::Clock;
use crate::key::Key;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, DecisionSource, MAX_TOGETHER, Store};
use crate::verdict::{Details, Verdict};

/// A store, as a limiter uses it.
pub(crate) trait Backend: Send + Sync + 'static {
    /// Why a store gives no decision.
    type Error: Send;

    /// Decides the charges of one request and folds one decision each. Takes are all or nothing.
    fn decide(
        &self,
        now: Timestamp,
        charges: &Charges<'_>,
        fold: &mut Fold,
    ) -> impl Future<Output = Result<DecisionSource, Self::Error>> + Send;

    /// Decides charges each alone, and appends one verdict each.
    fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        verdicts: &mut Vec<Verdict>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Explains the state of a charge's key.
    fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> impl Future<Output = Result<Explanation, Self::Error>> + Send;

    /// The store's clock at the instant at which the limiter's clock shows `now`.
    fn clock(&self, now: Timestamp) -> Timestamp;

    /// Checks whether the store can hold a limit.
    fn accepts(&self, name: &str, limit: &Limit) -> Result<(), BuildError>;

    /// Announces limits that are in force from now on. Returns the quick path to check them, if
    /// there is one.
    fn prepare(&self, limits: &[NamedLimit], clock: &Clock) -> Option<Quick>;
}

/// The keys of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keys<'a> {
    /// One key for all limits.
    Same(&'a [u8]),
    /// One key for each limit, and the tag that keeps them in one slot.
    Each(&'a [&'a [u8]], Option<&'a [u8]>),
}

/// The charges of a request: one operation on the key of each limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charges<'a> {
    pub(super) limits: &'a [NamedLimit],
    pub(super) keys: Keys<'a>,
    pub(super) op: Op,
}

impl<'a> Charges<'a> {
    pub(super) const fn len(&self) -> usize {
        self.limits.len()
    }

    #[inline(always)]
    pub(super) fn get(&self, number: usize) -> Charge<'a> {
        let NamedLimit { scope, limit, .. } = &self.limits[number];
        let key = match self.keys {
            Keys::Same(key) => Key::new(*scope, key),
            Keys::Each(keys, None) => Key::new(*scope, keys[number]),
            Keys::Each(keys, Some(tag)) => Key::new(*scope, keys[number]).tagged(tag),
        };
        Charge::new(key, limit, self.op)
    }
}

/// The decisions of a request, to be folded into a verdict.
#[derive(Debug)]
pub(crate) struct Fold {
    pub(super) now: Timestamp,
    pub(super) source: DecisionSource,
    verdict: Verdict,
    number: usize,
    /// All decisions, if the verdict lists its parts.
    pub(super) decisions: Option<Vec<Decision>>,
}

impl Fold {
    #[inline(always)]
    pub(super) const fn new(now: Timestamp) -> Self {
        let source = DecisionSource::Store;
        Self { now, source, verdict: Verdict::unlimited(now), number: 0, decisions: None }
    }

    /// A fold that keeps the decisions.
    pub(super) fn listing(now: Timestamp, limits: usize) -> Self {
        Self { decisions: Some(Vec::with_capacity(limits)), ..Self::new(now) }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, decision: Decision) {
        self.verdict.fold(self.number, decision);
        self.number += 1;
        if let Some(decisions) = &mut self.decisions {
            decisions.push(decision);
        }
    }

    /// Whether the request is denied or delayed, or met several limits.
    pub(super) fn is_notable(&self) -> bool {
        let is_delayed = !self.verdict.decision().delay().is_zero();
        self.number > 1 || self.verdict.is_denied() || is_delayed
    }

    #[inline(always)]
    pub(super) fn verdict(self) -> Verdict {
        self.verdict.decided_by(self.source)
    }

    pub(super) fn details(&self, limits: &Arc<[NamedLimit]>, key: &[u8]) -> Box<Details> {
        let decisions = self.decisions.as_deref().unwrap_or_default();
        let mut details = Details::of_limiter(limits, key, decisions);
        details.source = self.source;
        details
    }
}

impl Backend for MemoryStore {
    type Error = Infallible;

    #[inline]
    async fn decide(
        &self,
        now: Timestamp,
        charges: &Charges<'_>,
        fold: &mut Fold,
    ) -> Result<DecisionSource, Infallible> {
        let is_group = matches!(charges.op, Op::Take(1..));
        match charges.len() {
            2 if is_group => {
                let both = [charges.get(0), charges.get(1)];
                self.decide_together(now, &both, |decision| fold.push(decision));
            }
            count if is_group && count > 1 => {
                let all: [Charge<'_>; MAX_TOGETHER] =
                    std::array::from_fn(|i| charges.get(i.min(count - 1)));
                self.decide_together(now, &all[..count], |decision| fold.push(decision));
            }
            count => (0..count).for_each(|i| fold.push(self.decide(now, &charges.get(i)))),
        }
        Ok(DecisionSource::Store)
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), Infallible> {
        let push = |decision| verdicts.push(Verdict::of_one(now, decision));
        self.decide_each(now, charges, push);
        Ok(())
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, Infallible> {
        Ok(self.explain(now, charge.key, charge.limit))
    }

    fn clock(&self, now: Timestamp) -> Timestamp {
        Store::clock(self, now)
    }

    fn accepts(&self, _: &str, _: &Limit) -> Result<(), BuildError> {
        Ok(())
    }

    fn prepare(&self, limits: &[NamedLimit], clock: &Clock) -> Option<Quick> {
        limits.iter().for_each(|limit| self.expect(&limit.limit));
        Quick::new(limits, self, clock)
    }
}
