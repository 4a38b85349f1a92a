//! The leased tier (`tier: leased`): a node takes units in advance and spends them without asking the store.
//!
//! # Law
//! Spending granted units before the grant ends admits no more than was granted. The store grants within its
//! limit, so the units that all nodes admit in an interval w were granted in w, or were granted before and unspent
//! when w began. Grants expire after one lease time l = [`LEASE`], so all of these were granted within w + l, and a
//! bucket of capacity C and rate r grants at most `C + r (w + l)` in that time. A leased bucket therefore has capacity `B - ceil(r l)` at the store
//! ([`leased`]), and over all nodes no interval admits more than `B + r w`. A window's grant ends with the window,
//! so each window admits its limit and no more.
//!
//! # Promise
//! Never admits more than the limit, whatever happens to nodes, messages or the nodes' clocks: a
//! grant expires by the node's monotonic clock, counted from before it was requested. Use it for
//! keys with more than some hundreds of requests per second. The burst is smaller by the units that
//! refill in 100 ms. Units that a node holds and does not spend are lost: at most its demand of 50
//! ms, when the node crashes or its requests stop. Near the limit, a key is denied for up to
//! [`QUANTUM`] although units have refilled since.
//!
//! # Size of a grant
//! The key's demand on this node in the last [`TURN`], in up to [`PIECES`] equal pieces of which the store grants
//! as many as it has. A key with little demand is decided in the store, request by request. If the store has less
//! than was asked for, it is not asked again for [`QUANTUM`].
//!
//! Sliding logs, leaky buckets, in-flight limits, windows that count denied requests, and costs above one grant are
//! always decided in the store.
//!
//! # Bound
//! [`MAX_BUDGETS`] keys; others are decided in the store. A key has a budget only while it has some dozens of
//! requests per second.

mod budget;
mod budgets;
mod leasable;

use std::future::poll_fn;
use std::task::{Poll, Waker};

use tidegate_core::{Decision, Op, Span, Timestamp};

use self::budget::{Grant, Order, Step};
use self::budgets::LocalBudgets;
use self::leasable::is_leased;
use super::partition::{Partition, all_allowed, fresh};
use super::shared::Layers;
use super::{Batch, Charge, DecisionSource, Store, StoreError};
use crate::clock::Clock;
use crate::key::OwnedKey;
use crate::sync::{AtomicU64, Ordering};

pub use self::budgets::MAX_BUDGETS;
pub use self::leasable::leased;

/// How long a bucket's grant may be spent.
pub const LEASE: Span = Span::from_millis(100);
/// The time whose demand a node takes in advance.
pub const TURN: Span = Span::from_millis(50);
/// How long the store is not asked again after it had fewer units than requested.
pub const QUANTUM: Span = Span::from_millis(20);
/// The most pieces of one grant.
pub const PIECES: u64 = 16;
/// A node's clock may run faster or slower than the store's by one part in this many.
const DRIFT_PARTS: u64 = 1_000;
/// Keys whose units are returned in one call.
const AT_ONCE: usize = 64;

/// Accounts for the units that a node took in advance.
///
/// `granted + unspent = spent + returned + expired + outstanding`, at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Granted by the store.
    pub granted: u64,
    /// Spent on requests.
    pub spent: u64,
    /// Units among `spent` that went back to the budget because another limit denied the request.
    pub unspent: u64,
    /// Returned to the store on shutdown.
    pub returned: u64,
    /// Not spent in time.
    pub expired: u64,
    /// Held now.
    pub outstanding: u64,
    /// Requests answered without asking the store.
    pub answered: u64,
}

/// The budgets of this node.
#[derive(Debug)]
pub(super) struct Leases {
    budgets: LocalBudgets,
    /// Number of grants so far.
    grants: AtomicU64,
}

/// A decision from a budget, and the number of the grant that it spent units of.
type FromBudget = (Decision, u64);

impl LeaseStats {
    const fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.spent += other.spent;
        self.unspent += other.unspent;
        self.returned += other.returned;
        self.expired += other.expired;
        self.outstanding += other.outstanding;
        self.answered += other.answered;
    }
}

impl Leases {
    /// Without any budgets yet; `is_small` limits their number, for a simulation.
    pub(super) fn new(is_small: bool) -> Self {
        Self { budgets: LocalBudgets::new(is_small), grants: AtomicU64::new(0) }
    }

    /// Totals of the units taken in advance.
    pub(super) fn stats(&self, now: Timestamp) -> LeaseStats {
        self.budgets.stats(now)
    }

    /// Drops all units, because the limits have changed.
    pub(super) fn clear(&self) {
        self.budgets.void();
    }

    /// Whether a charge is leased and its key has a budget.
    #[inline]
    pub(super) fn has_budget(&self, charge: &Charge<'_>, print: u64) -> bool {
        is_leased(charge) && self.budgets.may_hold(print)
    }

    /// Decides a take or a read from held units, or denies a take while the store is known to have
    /// too few; `None` if the store has to be asked.
    #[inline]
    pub(super) fn answer(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        print: u64,
    ) -> Option<Decision> {
        self.budgets.with(print, |slot| match charge.op {
            _ if !slot.budget.is_of(charge.limit) => None,
            Op::Take(cost @ 1..) => slot.budget.answer(now, cost),
            Op::Read(cost @ 1..) => slot.budget.look(now, cost),
            _ => None,
        })?
    }

    /// Waits until another request has filled a budget.
    async fn filled(&self, print: u64, filling: u32) -> Result<(), StoreError> {
        poll_fn(|context| {
            match self.budgets.with(print, |slot| slot.outcome(filling, context.waker())) {
                Some(None) => Poll::Pending,
                Some(Some(outcome)) => Poll::Ready(outcome),
                None => Poll::Ready(Ok(())),
            }
        })
        .await
    }
}

/// Guard of a request that fills a budget. Dropping it wakes the requests that wait for the budget.
struct Filling<'a> {
    budgets: &'a LocalBudgets,
    print: u64,
    failed: Option<StoreError>,
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let failed = self.failed.take();
        let waiting = self.budgets.with(self.print, |slot| slot.filled(failed));
        waiting.into_iter().flatten().for_each(Waker::wake);
    }
}

/// Units spent on a request that is not decided yet. Dropping it returns them to their budgets.
struct Spent<'a> {
    leases: &'a Leases,
    clock: &'a Clock,
    /// Print of the key, units, number of the grant.
    units: Vec<(u64, u64, u64)>,
}

impl Spent<'_> {
    /// Keeps the units spent: the request is admitted.
    fn keep(mut self) {
        self.units.clear();
    }
}

impl Drop for Spent<'_> {
    fn drop(&mut self) {
        for (print, cost, grant) in self.units.drain(..) {
            let now = self.clock.now();
            self.leases.budgets.with(print, |slot| slot.budget.unspend(now, cost, grant));
        }
    }
}

impl<S: Store + 'static> Layers<S> {
    /// Returns unspent units to the store; for shutdown, when no more requests come. A window's units are not
    /// returned, because they might arrive in the next window.
    pub(super) async fn return_leases(&self) {
        loop {
            let now = self.clock.now();
            let emptied = self.leases.budgets.empty(now, AT_ONCE);
            if emptied.is_empty() {
                return;
            }
            let charges = emptied.iter();
            let charges: Vec<Charge<'_>> = charges
                .map(|(key, limit, units)| Charge::new(key.key(), limit, Op::Return(*units)))
                .collect();
            let mut decisions = Vec::with_capacity(charges.len());
            // Units that cannot be returned are lost, as if the node had crashed.
            if self.decide_cached(now, Batch::each(&charges), &mut decisions).await.is_err() {
                return;
            }
        }
    }

    /// Whether units for a charge are held, so that it needs no server.
    pub(super) fn is_held(&self, now: Timestamp, charge: &Charge<'_>) -> bool {
        let (Op::Take(cost) | Op::Read(cost)) = charge.op else { return false };
        let read = Charge { op: Op::Read(cost), ..*charge };
        is_leased(charge) && self.leases.answer(now, &read, self.print(charge)).is_some()
    }

    /// Decides a charge from its budget if possible, and fills the budget if necessary. `None` if the store has to
    /// decide.
    async fn spend(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Option<FromBudget>, StoreError> {
        if !is_leased(charge) {
            return Ok(None);
        }
        let (budgets, print) = (&self.leases.budgets, self.print(charge));
        let cost = match charge.op {
            Op::Take(cost @ 1..) => cost,
            Op::Reset => {
                budgets.with(print, |slot| slot.budget.void());
                return Ok(None);
            }
            _ => return Ok(self.leases.answer(now, charge, print).map(|said| (said, 0))),
        };
        let step = |now, has_waited| {
            let step = budgets.of(print, charge.limit, now, |slot| {
                (slot.budget.take(now, cost, has_waited), slot.fillings)
            });
            step.unwrap_or((Step::Ask, 0))
        };
        let answer = match step(now, false) {
            (Step::Fill(order), _) => return Box::pin(self.fill(charge, cost, print, order)).await,
            (Step::Wait, filling) => {
                self.leases.filled(print, filling).await?;
                // The request is decided at the present time, not when it arrived.
                step(self.clock.now(), true).0
            }
            (answer, _) => answer,
        };
        Ok(if let Step::Answer(decision, grant) = answer { Some((decision, grant)) } else { None })
    }

    /// Asks the store for as many pieces as it has, and decides the request that needed them.
    async fn fill(
        &self,
        charge: &Charge<'_>,
        cost: u64,
        print: u64,
        order: Order,
    ) -> Result<Option<FromBudget>, StoreError> {
        let budgets = &self.leases.budgets;
        let mut filling = Filling { budgets, print, failed: None };
        let sent = self.clock.now();
        let piece = Charge { op: Op::Take(order.units), denied_state: None, ..*charge };
        let times = usize::try_from(order.times).unwrap_or(1);
        let (pieces, mut decisions) = (vec![piece; times], Vec::with_capacity(times));
        let asked = self.decide_cached(sent, Batch::each(&pieces), &mut decisions).await;
        asked.inspect_err(|error| filling.failed = Some(error.clone()))?;
        let number = self.leases.grants.fetch_add(1, Ordering::Relaxed) + 1;
        let grant = Grant::of(&decisions, order.units, (number, sent));
        // The store denies a cost that never fits.
        let Some(grant) = grant.filter(|grant| !grant.last.is_never()) else { return Ok(None) };
        let now = self.clock.now();
        let settled = budgets.with(print, |slot| {
            slot.budget.fill(now, &grant);
            slot.key.get_or_insert_with(|| OwnedKey::of(charge.key));
            slot.budget.settle(now, cost)
        });
        Ok(settled.flatten())
    }

    /// Decides leased charges from their budgets, and the others in the store.
    pub(super) async fn decide_leased(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        match batch.charges {
            [charge] if is_leased(charge) => {
                if let Some((decision, _)) = self.spend(now, charge).await? {
                    decisions.push(decision);
                    return Ok(DecisionSource::Store);
                }
            }
            charges if charges.iter().any(is_leased) => {
                return Box::pin(self.decide_leased_each(now, batch, decisions)).await;
            }
            _ => {}
        }
        self.decide_sharded(now, batch, decisions).await
    }

    async fn decide_leased_each(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        let is_group = batch.is_all_or_nothing();
        let mut spent = Spent { leases: &self.leases, clock: &self.clock, units: Vec::new() };
        let (mut own, mut at, mut is_denied) = (Vec::with_capacity(charges.len()), now, false);
        for charge in charges {
            let from_budget = if is_denied { None } else { self.spend(at, charge).await? };
            if let (Some((decision, grant)), Op::Take(cost)) = (from_budget, charge.op)
                && decision.is_allowed()
            {
                spent.units.push((self.print(charge), cost, grant));
            }
            let decision = from_budget.map(|(decision, _)| decision);
            is_denied |= is_group && decision.is_some_and(|it| !it.is_allowed());
            own.push(decision);
            // The charge may have waited. Grants that expired meanwhile must not be spent on the
            // next charge.
            at = self.clock.now().max(at);
        }
        let partition = Partition::new(charges, |i| own[i].is_some());
        let (mut others, mut source) = (Vec::new(), DecisionSource::Store);
        if is_denied {
            others = fresh(&partition.there, self.store.clock(now));
        } else if !partition.there.is_empty() {
            let there = batch.of(&partition.there);
            source = self.decide_sharded(now, there, &mut others).await?;
        }
        if !is_denied && (!is_group || all_allowed(&others)) {
            spent.keep();
        } else {
            drop(spent);
            for (charge, decision) in charges.iter().zip(&mut own) {
                if let (Op::Take(cost), Some(decision)) = (charge.op, decision)
                    && decision.is_allowed()
                {
                    let remaining = decision.remaining.saturating_add(cost);
                    decision.remaining = remaining.min(decision.limit);
                }
            }
        }
        partition.merge(own.into_iter().flatten(), others, decisions);
        Ok(source)
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
