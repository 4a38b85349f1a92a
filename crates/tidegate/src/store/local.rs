//! What a node decides by itself, before anybody else is asked: `local:` in a policy, and keys that
//! somebody has demoted to this node.
//!
//! # Law
//! *Two limits on one request admit no more than either.* A bucket in front of a limit can only deny more,
//! so the limit behind keeps its promise whatever the bucket says.
//!
//! # Promise
//! Choose `local` when bursts on one node must not reach the store: what it denies costs no network call.
//! It can admit at most what the limit behind it admits. Too few are admitted if a node is offered more
//! than its bucket while the limit still has room: on each node, what comes in above the bucket's rate
//! once its burst is used up. With a bucket as large as the limit nobody is denied who would have passed.
//! The store is asked at most burst + rate × time times by each node, whatever is offered.
//!
//! All or nothing: units of the bucket are given back if the limit behind denies, or gives no decision. A
//! request that nobody waits for any more keeps them, until they are refilled.
//!
//! A demoted key is decided by nothing else than this node's share of its limits: 1.5 times the limit
//! divided by the nodes, and at least one unit. It can admit at most that on each node where it is
//! demoted, besides what the store lets others admit; choose it when one customer's traffic would cost
//! all others the store.
//!
//! # Bound
//! [`BYTES`] of state in this process; what does not fit is forgotten as in any
//! [`MemoryStore`]. A charge that is not decided here costs one comparison.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, Explanation, Op, Timestamp};

use super::memory::MemoryStore;
use super::{Charge, DecisionSource, Store, StoreError, Tier};
use crate::clock::Clock;
use crate::key::Hashing;

/// The most that this takes in this process: about a million keys.
pub const BYTES: u64 = 32 << 20;

/// Decides charges of [`Tier::Local`] in this process, and asks a store about the others.
#[derive(Debug)]
pub struct Local<S> {
    store: S,
    memory: MemoryStore,
    allowed: AtomicU64,
    denied: AtomicU64,
}

/// What was decided on this node alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalStats {
    /// Charges that were let in, or through to the limit behind.
    pub allowed: u64,
    /// Charges that were denied.
    pub denied: u64,
}

impl<S: Store> Local<S> {
    /// Stands before `store`, by the time of `clock`. Fails if the system refuses to reserve address
    /// space.
    pub fn new(store: S, clock: Clock) -> io::Result<Self> {
        let memory = MemoryStore::new(BYTES, Hashing::Fast)?.with_clock(clock);
        Ok(Self { store, memory, allowed: AtomicU64::new(0), denied: AtomicU64::new(0) })
    }

    /// The store behind.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// What was decided here.
    pub fn stats(&self) -> LocalStats {
        LocalStats {
            allowed: self.allowed.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
        }
    }

    /// Decides what is this node's own.
    fn decide_here(&self, now: Timestamp, charges: &[Charge<'_>]) -> Vec<Decision> {
        let mut own = Vec::with_capacity(charges.len());
        if charges.len() > 1 && charges.iter().all(Charge::is_deniable) {
            self.memory.decide_together(now, charges, |decision| own.push(decision));
        } else {
            own.extend(charges.iter().map(|charge| self.memory.decide(now, charge)));
        }
        for (charge, decision) in charges.iter().zip(&own) {
            let counter = if decision.is_allowed() { &self.allowed } else { &self.denied };
            counter.fetch_add(u64::from(matches!(charge.op, Op::Take(1..))), Ordering::Relaxed);
        }
        own
    }

    /// Undoes what was let in here, where another charge of the request is not.
    fn give_back(&self, now: Timestamp, charges: &[Charge<'_>], decisions: &[Decision]) {
        for (charge, decision) in charges.iter().zip(decisions) {
            let op = match (charge.op, decision.lease) {
                (_, Some(lease)) => Op::Release(lease),
                (Op::Take(cost), None) => Op::Return(cost),
                _ => continue,
            };
            self.memory.decide(now, &Charge { op, ..*charge });
        }
    }

    /// All or nothing, some here and some in the store.
    async fn decide_divided(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
    ) -> Result<(Vec<Decision>, DecisionSource), StoreError> {
        let (here, there): (Vec<_>, Vec<_>) = charges.iter().partition(|charge| is_here(charge));
        // What needs nobody else goes first, for it is easily given back.
        let own = self.decide_here(now, &here);
        let is_denied = own.iter().any(|decision| !decision.is_allowed());
        let takes = there.iter().any(|charge| matches!(charge.op, Op::Take(_)));
        let (mut others, mut decision_source) =
            (Vec::with_capacity(there.len()), DecisionSource::Store);
        if is_denied && takes {
            let at = self.store.clock(now);
            others.extend(there.iter().map(|charge| charge.fresh_decision(at)));
        } else {
            let answered = self.store.decide(now, &there, &mut others).await;
            let goes_through = answered.is_ok() && others.iter().all(Decision::is_allowed);
            if !goes_through && !is_denied {
                self.give_back(now, &here, &own);
            }
            decision_source = answered?;
        }
        Ok((interleaved(charges, own, others), decision_source))
    }
}

/// Whether a charge is this node's own.
#[inline(always)]
fn is_here(charge: &Charge<'_>) -> bool {
    charge.options.tier == Tier::Local
}

/// In the order of the charges.
fn interleaved(charges: &[Charge<'_>], own: Vec<Decision>, others: Vec<Decision>) -> Vec<Decision> {
    let (mut own, mut others) = (own.into_iter(), others.into_iter());
    let next = |charge| if is_here(charge) { own.next() } else { others.next() };
    charges.iter().filter_map(next).collect()
}

impl<S: Store> Store for Local<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if !charges.iter().any(is_here) {
            return self.store.decide(now, charges, decisions).await;
        }
        if charges.iter().all(is_here) {
            decisions.append(&mut self.decide_here(now, charges));
            return Ok(DecisionSource::Store);
        }
        if !charges.iter().all(Charge::is_deniable) {
            return self.decide_each(now, charges, decisions).await;
        }
        let (mut decided, decision_source) = self.decide_divided(now, charges).await?;
        decisions.append(&mut decided);
        Ok(decision_source)
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if !charges.iter().any(is_here) {
            return self.store.decide_each(now, charges, decisions).await;
        }
        let (here, there): (Vec<_>, Vec<_>) = charges.iter().partition(|charge| is_here(charge));
        let mut others = Vec::with_capacity(there.len());
        let decision_source = match there.is_empty() {
            true => DecisionSource::Store,
            false => self.store.decide_each(now, &there, &mut others).await?,
        };
        let own =
            here.iter().flat_map(|charge| self.decide_here(now, std::slice::from_ref(charge)));
        decisions.append(&mut interleaved(charges, own.collect(), others));
        Ok(decision_source)
    }

    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        if is_here(charge) { None } else { self.store.try_decide_locally(now, charge) }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        match is_here(charge) {
            true => Ok(self.memory.explain(now, charge.key, charge.limit)),
            false => self.store.explain(now, charge).await,
        }
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.store.endpoint(charge)
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        if is_here(charge) { Ok(()) } else { self.store.ready(now, charge) }
    }

    fn limits_changed(&self) {
        self.store.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
