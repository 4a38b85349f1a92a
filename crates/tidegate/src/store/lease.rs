//! Units that a node takes ahead of its requests, and spends without asking (`tier: leased`).
//!
//! # Law
//! *Who spends what was granted, before it ends, admits no more than was granted.* The store grants within
//! its limit, so what all nodes admit in an interval was granted in it or was unspent when it began. Unspent
//! are at most the grants of one lease time l = [`LEASE`], which no bucket of capacity C and rate r makes
//! larger than `C + r (w + l)` over the interval w. A leased bucket therefore holds `B - ceil(r l)` at the
//! store, for everybody and always ([`leased`]), and over all nodes no interval admits more than `B + r w`.
//! What a window granted dies with the window, so each window admits its limit and no more.
//!
//! # Promise
//! Never above the limit, whatever becomes of nodes, messages or the nodes' clocks: a grant ends by the
//! node's monotonic clock, counted from before it was asked for. Choose it for keys that are asked for
//! more often than the store should be, above some hundreds of requests a second. It admits at most
//! what the limit says; its burst is smaller by what the rate gives in 100 ms. Too few are admitted by what
//! nodes hold and do not spend: at most what each was asked for in 50 ms, when a node dies or its requests
//! stop. Near the limit a key is denied for up to [`QUANTUM`] although units have come back since.
//!
//! # How much
//! What the key was asked for in the last [`TURN`] on this node, in up to [`PIECES`] equal pieces of which
//! the store grants as many as it has; a key of little demand is decided in the store, request by request.
//! If the store had less than was asked for, it is not asked again for [`QUANTUM`].
//!
//! # Never
//! Sliding logs, leaky buckets and in-flight limits, and windows that count what they denied, are decided in
//! the store whatever their tier. Costs above what is taken ahead at once are, too.
//!
//! # Bound
//! [`MAX_BUDGETS`] keys; what finds no room is decided in the store. A key takes up room only while it is
//! asked for some dozens of times a second, so that keys of little demand cost little and drive out nobody.

mod budget;
mod budgets;
mod leasable;

use std::future::poll_fn;
use std::slice;
use std::task::{Poll, Waker};

use tidegate_core::{Decision, Explanation, Limit, Op, Span, Timestamp};

use self::budget::{Grant, Order, Step};
use self::budgets::{LocalBudgets, Owner};
use self::leasable::is_leased;
use super::{Charge, DecisionSource, Store, StoreError};
use crate::clock::Clock;
use crate::sync::{AtomicU64, Ordering};

pub use self::budgets::MAX_BUDGETS;
pub use self::leasable::leased;

/// How long a grant of a bucket may be spent.
pub const LEASE: Span = Span::from_millis(100);
/// For how long a node takes units ahead.
pub const TURN: Span = Span::from_millis(50);
/// For how long a store that had less than was asked for is not asked again.
pub const QUANTUM: Span = Span::from_millis(20);
/// The most pieces that units are asked for in.
pub const PIECES: u64 = 16;
/// A clock may differ from the store's by one in so many, before a grant is spent that has ended.
const DRIFT_PARTS: u64 = 1_000;
/// Keys that are given back at once.
const AT_ONCE: usize = 64;

/// What has become of the units that a node took ahead.
///
/// `granted + unspent = spent + returned + expired + outstanding`, at any time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStats {
    /// Taken ahead.
    pub granted: u64,
    /// Spent on requests.
    pub spent: u64,
    /// Of these, given back by requests that another limit denied, to be spent again.
    pub unspent: u64,
    /// Taken out to be given back to the store, at the end.
    pub returned: u64,
    /// Not spent in time.
    pub expired: u64,
    /// Held at the moment.
    pub outstanding: u64,
    /// Requests answered without asking the store.
    pub answered: u64,
}

/// A store whose units are taken ahead where a charge says so.
///
/// ```no_run
/// use tidegate::store::lease::Lease;
/// use tidegate::store::redis::{RedisConfig, RedisStore};
/// use tidegate::Clock;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect(RedisConfig::new("redis://127.0.0.1:6379")?).await?;
/// let store = Lease::new(store, Clock::default());
/// // At the end, what is not spent goes back.
/// store.give_back().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lease<S> {
    store: S,
    clock: Clock,
    budgets: LocalBudgets,
    /// How many grants there have been.
    grants: AtomicU64,
}

/// How a charge is decided.
#[derive(Clone, Copy)]
enum Way {
    /// Here, by spending units of this grant on it.
    Spent(Decision, u64),
    /// Here, and nothing was spent.
    Said(Decision),
    /// In the store.
    There,
}

impl<S: Store> Lease<S> {
    /// Takes units of `store` ahead, by the time of `clock`, which must not be one that can be set.
    pub fn new(store: S, clock: Clock) -> Self {
        Self { store, clock, budgets: LocalBudgets::new(), grants: AtomicU64::new(0) }
    }

    /// The same for a simulation: for few keys, and every time alike. Not for keys that strangers choose.
    pub fn repeatable(store: S, clock: Clock) -> Self {
        Self { store, clock, budgets: LocalBudgets::repeatable(), grants: AtomicU64::new(0) }
    }

    /// The store behind.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// What has become of the units taken ahead.
    pub fn stats(&self) -> LeaseStats {
        let (tally, outstanding) = self.budgets.tally(self.clock.now());
        LeaseStats {
            granted: tally.granted,
            spent: tally.spent,
            unspent: tally.unspent,
            returned: tally.returned,
            expired: tally.expired,
            outstanding,
            answered: tally.answered,
        }
    }

    /// Gives back what is not spent; for the end, when no more requests come. What a window granted is not
    /// given back, because it might arrive in the next.
    pub async fn give_back(&self) {
        loop {
            let now = self.clock.now();
            let emptied = self.budgets.empty(now, AT_ONCE);
            if emptied.is_empty() {
                return;
            }
            let charge = |(owner, units): &(Box<Owner>, u64)| (owner.limit, Op::Return(*units));
            let numbers: Vec<(Limit, Op)> = emptied.iter().map(charge).collect();
            let charges = emptied.iter().zip(&numbers);
            let charges: Vec<Charge<'_>> = charges
                .map(|((owner, _), (limit, op))| Charge::new(owner.key(), limit, *op))
                .collect();
            let mut decisions = Vec::with_capacity(charges.len());
            // What cannot be given back is lost, as if the node had died.
            if self.store.decide_each(now, &charges, &mut decisions).await.is_err() {
                return;
            }
        }
    }

    /// Decides a charge here if that can be done, asking for more if need be.
    async fn way(&self, now: Timestamp, charge: &Charge<'_>) -> Result<Way, StoreError> {
        let cost = match (charge.op, is_leased(charge)) {
            (Op::Take(cost @ 1..), true) => cost,
            (Op::Read(cost @ 1..), true) => return Ok(self.look(now, charge, cost)),
            (Op::Reset, true) => {
                self.budgets.with(self.budgets.print(charge.key), |slot| slot.budget.void());
                return Ok(Way::There);
            }
            _ => return Ok(Way::There),
        };
        let print = self.budgets.print(charge.key);
        let step = |now, has_waited| {
            let step = self.budgets.of(print, charge.limit, now, |slot| {
                (slot.budget.take(now, cost, has_waited), slot.fillings)
            });
            step.unwrap_or((Step::Ask, 0))
        };
        match step(now, false) {
            (Step::Answer(decision, grant), _) => Ok(Way::here(decision, grant)),
            (Step::Ask, _) => Ok(Way::There),
            (Step::Fill(order), _) => self.fill(charge, cost, print, order).await,
            (Step::Wait, filling) => {
                self.filled(print, filling).await?;
                // A request that waited is admitted when it goes on, and not when it came.
                match step(self.clock.now(), true) {
                    (Step::Answer(decision, grant), _) => Ok(Way::here(decision, grant)),
                    _ => Ok(Way::There),
                }
            }
        }
    }

    fn look(&self, now: Timestamp, charge: &Charge<'_>, cost: u64) -> Way {
        let print = self.budgets.print(charge.key);
        let known = self.budgets.with(print, |slot| match slot.budget.is_of(charge.limit) {
            true => slot.budget.look(now, cost),
            false => None,
        });
        known.flatten().map_or(Way::There, Way::Said)
    }

    /// Waits until somebody else has filled a budget.
    async fn filled(&self, print: u64, filling: u32) -> Result<(), StoreError> {
        poll_fn(|context| {
            let outcome = self.budgets.with(print, |slot| slot.outcome(filling, context.waker()));
            match outcome {
                Some(None) => Poll::Pending,
                Some(Some(outcome)) => Poll::Ready(outcome),
                None => Poll::Ready(Ok(())),
            }
        })
        .await
    }

    /// Asks the store for more, and decides the request that this is for.
    async fn fill(
        &self,
        charge: &Charge<'_>,
        cost: u64,
        print: u64,
        order: Order,
    ) -> Result<Way, StoreError> {
        let mut filling = Filling { budgets: &self.budgets, print, failed: None };
        let mut granted = self.ask(charge, order).await;
        if let Ok(Some(Grant { units: 0, last, .. })) = &granted
            && let Some(smaller) = order.smaller(last.remaining)
        {
            let less = self.ask(charge, smaller).await;
            granted = less.map(|less| less.map(|less| Grant { is_all: false, ..less }));
        }
        let grant = granted.inspect_err(|error| filling.failed = Some(error.clone()))?;
        // What never fits is for the store to say.
        let Some(grant) = grant.filter(|grant| !grant.last.is_never()) else {
            return Ok(Way::There);
        };
        let now = self.clock.now();
        let way = self.budgets.with(print, |slot| {
            slot.budget.fill(now, &grant);
            slot.owner.get_or_insert_with(|| Owner::of(charge.key, charge.limit));
            slot.budget.settle(now, cost).map(|(decision, grant)| Way::here(decision, grant))
        });
        Ok(way.flatten().unwrap_or(Way::There))
    }

    /// Asks the store for units, as many as it has.
    async fn ask(&self, charge: &Charge<'_>, order: Order) -> Result<Option<Grant>, StoreError> {
        let sent = self.clock.now();
        let piece = Charge { op: Op::Take(order.units), denied_state: None, ..*charge };
        let times = usize::try_from(order.times).unwrap_or(1);
        let pieces = vec![piece; times];
        let mut decisions = Vec::with_capacity(times);
        match &pieces[..] {
            [one] => self.store.decide(sent, slice::from_ref(one), &mut decisions).await?,
            several => self.store.decide_each(sent, several, &mut decisions).await?,
        };
        let granted = decisions.iter().filter(|decision| decision.is_allowed());
        // They may have been decided in two commands, and in two windows.
        let first = granted.clone().min_by_key(|decision| decision.reset_after).copied();
        let granted = granted.count();
        let units = granted as u64 * order.units;
        let number = self.grants.fetch_add(1, Ordering::Relaxed) + 1;
        let is_all = granted == times;
        let last = decisions.pop();
        Ok(last.map(|last| Grant {
            number,
            sent,
            units,
            last,
            first: first.unwrap_or(last),
            is_all,
        }))
    }

    /// Gives back what was spent on charges of a request that is not let in after all.
    fn unspend(&self, charges: &[Charge<'_>], ways: &mut [Way]) {
        let now = self.clock.now();
        for (charge, way) in charges.iter().zip(ways) {
            let (Way::Spent(decision, grant), Op::Take(cost)) = (*way, charge.op) else { continue };
            let print = self.budgets.print(charge.key);
            self.budgets.with(print, |slot| slot.budget.unspend(now, cost, grant));
            let remaining = decision.remaining.saturating_add(cost).min(decision.limit);
            *way = Way::Said(Decision { remaining, ..decision });
        }
    }

    /// For each charge how it is decided; ends with the first that is denied here, if it is `together`.
    async fn ways(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        together: bool,
    ) -> Result<Vec<Way>, StoreError> {
        let (mut ways, mut now) = (Vec::with_capacity(charges.len()), now);
        for charge in charges {
            match self.way(now, charge).await {
                Ok(way) => ways.push(way),
                Err(error) => {
                    self.unspend(charges, &mut ways);
                    return Err(error);
                }
            }
            if together && ways.last().is_some_and(Way::is_denied) {
                break;
            }
            // It may have waited for the store: what has ended meanwhile is not spent on the next.
            now = self.clock.now().max(now);
        }
        Ok(ways)
    }

    /// Decides those charges in the store that were not decided here.
    async fn rest(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        ways: &mut [Way],
        together: bool,
    ) -> Result<(DecisionSource, Vec<Decision>), StoreError> {
        let there = charges.iter().zip(&*ways).filter(|(_, way)| matches!(way, Way::There));
        let there: Vec<Charge<'_>> = there.map(|(charge, _)| *charge).collect();
        let mut others = Vec::with_capacity(there.len());
        let asked = match (&there[..], together) {
            ([], _) => Ok(DecisionSource::Store),
            (_, true) => self.store.decide(now, &there, &mut others).await,
            (_, false) => self.store.decide_each(now, &there, &mut others).await,
        };
        let is_denied = others.iter().any(|decision| !decision.is_allowed());
        if (together && is_denied) || asked.is_err() {
            self.unspend(charges, ways);
        }
        asked.map(|decision_source| (decision_source, others))
    }

    /// Whether charges are for the store to decide, so that it may be asked at once.
    #[inline(always)]
    fn is_through(&self, now: Timestamp, charges: &[Charge<'_>]) -> bool {
        match charges {
            [charge] if matches!(charge.op, Op::Take(1..)) && is_leased(charge) => {
                !self.budgets.may_have(self.budgets.print(charge.key), now)
            }
            _ => !charges.iter().any(is_leased),
        }
    }
}

impl Way {
    const fn here(decision: Decision, grant: u64) -> Self {
        if decision.is_allowed() { Self::Spent(decision, grant) } else { Self::Said(decision) }
    }

    const fn is_denied(&self) -> bool {
        matches!(self, Self::Said(decision) if !decision.is_allowed())
    }
}

/// What was decided here and what was not, in the order of the charges.
fn merge(ways: &[Way], others: Vec<Decision>, decisions: &mut Vec<Decision>) {
    let mut others = others.into_iter();
    decisions.extend(ways.iter().filter_map(|way| match way {
        Way::Spent(decision, _) | Way::Said(decision) => Some(*decision),
        Way::There => others.next(),
    }));
}

/// Somebody fills a budget; whatever becomes of it, those who wait go on.
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

impl<S: Store> Store for Lease<S> {
    #[inline]
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if self.is_through(now, charges) {
            return self.store.decide(now, charges, decisions).await;
        }
        if let [charge] = charges {
            return match self.way(now, charge).await? {
                Way::Spent(decision, _) | Way::Said(decision) => {
                    decisions.push(decision);
                    Ok(DecisionSource::Store)
                }
                Way::There => self.store.decide(now, charges, decisions).await,
            };
        }
        let mut ways = self.ways(now, charges, true).await?;
        let is_denied = ways.last().is_some_and(Way::is_denied);
        if is_denied {
            // Nobody is charged, and nobody else is asked; but what cannot be denied is carried out.
            self.unspend(charges, &mut ways);
            ways.resize(charges.len(), Way::There);
            let at = self.store.clock(now);
            for (charge, way) in charges.iter().zip(&mut ways) {
                if charge.is_deniable() && matches!(way, Way::There) {
                    *way = Way::Said(charge.fresh_decision(at));
                }
            }
        }
        let (decision_source, others) = self.rest(now, charges, &mut ways, !is_denied).await?;
        merge(&ways, others, decisions);
        Ok(decision_source)
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if !charges.iter().any(is_leased) {
            return self.store.decide_each(now, charges, decisions).await;
        }
        let mut ways = self.ways(now, charges, false).await?;
        let (decision_source, others) = self.rest(now, charges, &mut ways, false).await?;
        merge(&ways, others, decisions);
        Ok(decision_source)
    }

    #[inline]
    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        match (charge.op, is_leased(charge)) {
            (Op::Take(cost @ 1..), true) => {
                let print = self.budgets.print(charge.key);
                if !self.budgets.may_hold(print) {
                    // The store decides it; and memory is waited for once, not once for each layer.
                    return self.store.try_decide_locally(now, charge);
                }
                self.budgets.with(print, |slot| {
                    let budget = &mut slot.budget;
                    if budget.is_of(charge.limit) { budget.answer(now, cost) } else { None }
                })?
            }
            (_, true) => None,
            (_, false) => self.store.try_decide_locally(now, charge),
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.store.endpoint(charge)
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        let is_here = match (charge.op, is_leased(charge)) {
            (Op::Take(cost @ 1..) | Op::Read(cost @ 1..), true) => {
                matches!(self.look(now, charge, cost), Way::Said(_))
            }
            _ => false,
        };
        if is_here { Ok(()) } else { self.store.ready(now, charge) }
    }

    fn limits_changed(&self) {
        self.store.limits_changed();
        self.budgets.void();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
