//! Repeats denials without asking the store.
//!
//! Only time frees the units of a rate limit, so the state on which the store denied shows how long
//! it will keep denying. A denial is repeated only if the limit still denies at the latest time
//! that the store's clock can show: [`DRIFT_PPM`] faster than this node's clock, counted from
//! before the request was sent.
//!
//! # Promise
//! Without a hold, and while no units are returned, the cache denies no request that the store
//! would admit. Returning units through this node drops the key's denial at once. After a return on
//! another node, or when the store's clock is set forward, a denial is repeated for at most
//! `refund_staleness`.
//!
//! With [`hold_denials`](super::shared::SharedOptions::hold_denials), the default, a bucket in the
//! exact tier repeats each denial for at least the time in which 16 units refill, between 10 and
//! 100 ms ([`HOLD`]) and at most half the time until the bucket is full. The units that refill
//! during a hold are admitted afterwards, so none is lost. `retry_after` includes the hold.
//!
//! In-flight limits, states that need a repair, and reads are never cached. The cache keeps at most
//! [`MAX_ENTRIES`] denials.

use std::slice;
use std::sync::OnceLock;

use tidegate_core::{Algorithm, Decision, Limit, Op, Outcome, Span, State, Timestamp};

use super::partition::{Partition, Undo, fresh};
use super::shared::Layers;
use super::table::{Table, WAYS, place};
use super::{Batch, Charge, DecisionSource, DeniedState, Store, StoreError, Tier};
use crate::sync::{AtomicU64, Ordering};

/// The most denials that are remembered.
pub const MAX_ENTRIES: usize = SETS * WAYS;
/// How much faster than the node's clock the store's may run, in parts per million.
pub const DRIFT_PPM: u64 = 200;
/// The shortest and the longest hold of a bucket's denial.
pub const HOLD: (Span, Span) = (Span::from_millis(10), Span::from_millis(100));
/// The default for the longest time that a denial is repeated.
pub const REFUND_STALENESS: Span = Span::from_secs(1);

const SETS: usize = 1 << 14;
/// Enough for a simulation.
const FEW_SETS: usize = 1 << 6;
/// The longest log that is remembered; a shared store returns two entries.
const MAX_LOG: usize = 64;

/// The denials of this node.
#[derive(Debug)]
pub(super) struct DenyCache {
    staleness: Span,
    /// Whether a bucket's denial is repeated for its hold.
    holds: bool,
    denials: Table<Denial>,
    /// Counters of returns, indexed by the print of the key: incremented before and after the store
    /// returns units.
    epochs: Box<[AtomicU64]>,
    hits: AtomicU64,
}

#[derive(Debug)]
struct Denial {
    limit: Limit,
    cost: u64,
    /// The state on which the store denied.
    state: DeniedState,
    /// How long this cost is denied, counted from that state and including the hold.
    wait: Span,
    /// The node's clock before the store was asked.
    sent: Timestamp,
}

/// A charge on its way to the store. Its denial is remembered unless units are returned meanwhile.
struct Watched {
    print: u64,
    epoch: u64,
    sent: Timestamp,
    /// Where the store puts the state of its denial.
    state: OnceLock<DeniedState>,
}

impl Denial {
    /// The store's answer to this cost, if it is certainly a denial.
    fn repeat(&mut self, now: Timestamp, cost: u64) -> Option<Decision> {
        // The log may be an excerpt, made for one cost.
        if matches!(self.limit, Limit::SlidingLog(_)) && cost != self.cost {
            return None;
        }
        let since = now.since(self.sent);
        let drift = Span::from_micros((since.as_micros() * DRIFT_PPM).div_ceil(1_000_000) + 1);
        // Reading changes nothing, so the state need not be copied.
        let DeniedState { state, at } = &mut self.state;
        let mut read = |at| self.limit.decide(state, at, Op::Read(cost));
        // A cost that never fits is denied by the store, which may count it.
        if cost >= self.cost && since + drift < self.wait {
            let decision = read(*at + since);
            let wait = Span::from_micros(self.wait.as_micros() - since.as_micros());
            return (!decision.is_never()).then(|| held(decision, wait));
        }
        let is_certain = cost != self.cost && read(*at + since + drift).retry_after().is_some();
        is_certain.then(|| read(*at + since))
    }
}

impl DenyCache {
    /// A cache; a small one for a simulation.
    pub(super) fn new(staleness: Span, holds: bool, is_small: bool) -> Self {
        let sets = if is_small { FEW_SETS } else { SETS };
        let epochs = (0..sets).map(|_| AtomicU64::new(0)).collect();
        Self { staleness, holds, denials: Table::new(sets), epochs, hits: AtomicU64::new(0) }
    }

    /// Number of charges that were denied without asking the store.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Number of denials, including expired ones that were not replaced yet.
    pub(super) fn entries(&self) -> usize {
        self.denials.len()
    }

    /// Drops all denials, including those of requests that are on their way to the store.
    pub(super) fn clear(&self) {
        self.epochs.iter().for_each(Self::end);
        self.denials.change_all(|denials| {
            denials.clear();
            true
        });
    }

    /// Drops the denial of one key, including that of a request on its way to the store.
    fn forget(&self, print: u64) {
        self.denials.change(print, |denials| {
            Self::end(self.epoch(print));
            denials.retain(|(known, _)| *known != print);
        });
    }

    fn epoch(&self, print: u64) -> &AtomicU64 {
        &self.epochs[place(print, self.epochs.len())]
    }

    fn end(epoch: &AtomicU64) {
        epoch.fetch_add(1, Ordering::AcqRel);
    }

    fn staleness(&self, charge: &Charge<'_>) -> Span {
        match charge.limit {
            Limit::InFlight(_) | Limit::Blocking(_) => Span::ZERO,
            _ => charge.options.refund_staleness.unwrap_or(self.staleness),
        }
    }

    /// Whether denials of a charge may be remembered.
    #[inline(always)]
    pub(super) fn is_cached(&self, charge: &Charge<'_>) -> bool {
        matches!(charge.op, Op::Take(1..)) && !self.staleness(charge).is_zero()
    }

    /// The denial of a charge, if the store would certainly deny it.
    #[inline(always)]
    pub(super) fn denial(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        print: u64,
    ) -> Option<Decision> {
        if self.denials.may_hold(print) { self.look(now, charge, print) } else { None }
    }

    #[inline(never)]
    fn look(&self, now: Timestamp, charge: &Charge<'_>, print: u64) -> Option<Decision> {
        let (Op::Take(cost), longest) = (charge.op, self.staleness(charge)) else { return None };
        let decision = self.denials.change(print, |denials| {
            let way = denials.iter().position(|(known, _)| *known == print)?;
            let denial = &mut denials[way].1;
            let is_new = denial.sent <= now && now.since(denial.sent) < longest;
            let holds = is_new && denial.limit == *charge.limit;
            let decision = if holds { denial.repeat(now, cost) } else { None };
            if decision.is_none() {
                // The request that asks the store now may take units that this denial counts as free.
                denials.swap_remove(way);
            }
            decision
        });
        self.hits.fetch_add(u64::from(decision.is_some()), Ordering::Relaxed);
        decision
    }

    /// Remembers a denial and adds its hold to `decision`, unless units were returned since the
    /// store was asked.
    fn remember(&self, watched: Option<Watched>, charge: &Charge<'_>, decision: &mut Decision) {
        let Some(Watched { print, epoch, sent, state }) = watched else { return };
        let Some(mut state) = state.into_inner() else { return };
        let (Op::Take(cost), limit) = (charge.op, *charge.limit) else { return };
        let is_long = matches!(&state.state, State::SlidingLog(it) if it.entries().len() > MAX_LOG);
        if is_long || limit.is_ahead(&state.state, state.at) {
            return;
        }
        let denied = limit.decide(&mut state.state, state.at, charge.op);
        let Some(wait) = denied.retry_after() else { return };
        let wait = match charge.options.tier {
            Tier::Exact if self.holds => wait.max(hold(&limit, denied.reset_after)),
            // Leases have a pause of their own.
            _ => wait,
        };
        let denial = Denial { limit, cost, state, wait, sent };
        self.denials.change(print, |denials| {
            if self.epoch(print).load(Ordering::Acquire) != epoch {
                return;
            }
            let same = denials.iter().position(|(known, _)| *known == print);
            let oldest = || (0..denials.len()).min_by_key(|way| denials[*way].1.sent);
            if let Some(way) = same.or_else(|| oldest().filter(|_| denials.len() == WAYS)) {
                denials.swap_remove(way);
            }
            denials.push((print, denial));
            if !decision.is_allowed() {
                *decision = held(*decision, wait);
            }
        });
    }
}

/// The shortest time for which a bucket's denial is repeated: the time in which 16 units refill,
/// within [`HOLD`], and at most half of `full`, the time until the bucket is full, so that no
/// refilled unit overflows.
fn hold(limit: &Limit, full: Span) -> Span {
    let Limit::Bucket(bucket) = limit else { return Span::ZERO };
    let unit = bucket.time_of(1).map_or(0, |unit| unit.ticks);
    let hold = Span::from_micros(unit.saturating_mul(16)).clamp(HOLD.0, HOLD.1);
    hold.min(Span::from_micros(full.as_micros() / 2))
}

/// The denial with a `retry_after` of at least `wait`.
fn held(decision: Decision, wait: Span) -> Decision {
    let wait = decision.retry_after().unwrap_or_default().max(wait);
    Decision { outcome: Outcome::Deny { retry_after: Some(wait) }, ..decision }
}

impl<S: Store + 'static> Layers<S> {
    /// The denial that answers a charge.
    fn denial(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        let is_cached = self.denials.is_cached(charge);
        if is_cached { self.denials.denial(now, charge, self.print(charge)) } else { None }
    }

    /// Before a charge is sent: what is needed to remember its denial.
    fn watch(&self, sent: Timestamp, charge: &Charge<'_>) -> Option<Watched> {
        self.denials.is_cached(charge).then(|| {
            let print = self.print(charge);
            let epoch = self.denials.epoch(print).load(Ordering::Acquire);
            Watched { print, epoch, sent, state: OnceLock::new() }
        })
    }

    /// Answers charges with remembered denials, and sends the others to the store.
    pub(super) async fn decide_cached(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charge = match batch.charges {
            [charge] if charge.is_deniable() => charge,
            _ => return Box::pin(self.decide_cached_each(now, batch, decisions)).await,
        };
        if let Some(denial) = self.denial(now, charge) {
            decisions.push(denial);
            return Ok(DecisionSource::Store);
        }
        let watched = self.watch(now, charge);
        let sent = Charge { denied_state: watched.as_ref().map(|it| &it.state), ..*charge };
        let source = self.send(now, batch.of(slice::from_ref(&sent)), decisions).await?;
        if let Some(decision) = decisions.last_mut() {
            self.denials.remember(watched, charge, decision);
        }
        Ok(source)
    }

    async fn decide_cached_each(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        let returned = charges.iter().filter(|charge| !charge.is_deniable());
        let returned: Vec<u64> = returned.map(|charge| self.print(charge)).collect();
        // Called again at the end, so that a denial decided meanwhile is not remembered.
        let forget = || returned.iter().for_each(|print| self.denials.forget(*print));
        forget();
        let _forgetting = Undo::new(forget);
        let is_group = batch.is_all_or_nothing();
        let takes = charges.iter().all(|charge| matches!(charge.op, Op::Take(_)));
        let repeat = |charge| if is_group && !takes { None } else { self.denial(now, charge) };
        let denials: Vec<Option<Decision>> = charges.iter().map(repeat).collect();
        let partition = Partition::new(charges, |i| denials[i].is_some());
        let (mut others, mut source) = (Vec::new(), DecisionSource::Store);
        if is_group && !partition.here.is_empty() {
            others = fresh(&partition.there, self.store.clock(now));
        } else if !partition.there.is_empty() {
            let there = &partition.there;
            let watched: Vec<_> = there.iter().map(|charge| self.watch(now, charge)).collect();
            let sent = there.iter().zip(&watched).map(|(charge, watched)| Charge {
                denied_state: watched.as_ref().map(|it| &it.state),
                ..*charge
            });
            let sent: Vec<Charge<'_>> = sent.collect();
            source = self.send(now, batch.of(&sent), &mut others).await?;
            for ((charge, watched), decision) in there.iter().zip(watched).zip(&mut others) {
                self.denials.remember(watched, charge, decision);
            }
        }
        partition.merge(denials.into_iter().flatten(), others, decisions);
        Ok(source)
    }
}
