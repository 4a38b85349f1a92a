//! The budgets of all keys in demand, within a bound.

use std::task::Waker;

use tidegate_core::{Limit, Timestamp};

use super::budget::LocalBudget;
use super::{LeaseStats, TURN};
use crate::key::OwnedKey;
use crate::store::StoreError;
use crate::store::table::{Entries, Table, WAYS, place};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The most keys that a node holds units of.
pub const MAX_BUDGETS: usize = SETS * WAYS;

const SETS: usize = 1 << 14;
/// Enough for a simulation.
const FEW_SETS: usize = 1 << 3;
/// Requests within two turns that give a key a budget; two bits count them.
const OFTEN: u64 = 3;

/// A budget for each key in demand.
#[derive(Debug)]
pub(super) struct LocalBudgets {
    slots: Table<Slot>,
    /// Recent requests for keys without a budget. Each word holds 32 bits of the key's print, 30
    /// bits of the turn of its first request, and 2 bits of the number of requests. Keys that share
    /// a word hide each other's requests, and concurrent requests may not be counted: such a key
    /// gets its budget a little later.
    visits: Box<[AtomicU64]>,
    /// Totals of the budgets that were removed.
    gone: Mutex<LeaseStats>,
}

/// A budget, its key, and the requests that wait for it.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) budget: LocalBudget,
    /// The key, to return units to the store; `None` if the budget never held any.
    pub(super) key: Option<OwnedKey>,
    waiting: Vec<Waker>,
    /// Number of completed refills, and the error of the last one, if any.
    pub(super) fillings: u32,
    failed: Option<StoreError>,
}

impl Slot {
    fn new(limit: &Limit, now: Timestamp) -> Self {
        let budget = LocalBudget::new(limit, now);
        Self { budget, key: None, waiting: Vec::new(), fillings: 0, failed: None }
    }

    /// A refill has ended. The caller wakes the waiting requests once it has released the lock.
    #[must_use]
    pub(super) fn filled(&mut self, failed: Option<StoreError>) -> Vec<Waker> {
        self.budget.filled();
        self.fillings = self.fillings.wrapping_add(1);
        self.failed = failed;
        std::mem::take(&mut self.waiting)
    }

    /// The outcome of the refill with this number. `None` while it is under way; its end wakes
    /// `waker`.
    pub(super) fn outcome(
        &mut self,
        filling: u32,
        waker: &Waker,
    ) -> Option<Result<(), StoreError>> {
        if self.fillings == filling && !self.budget.is_free() {
            if !self.waiting.iter().any(|known| known.will_wake(waker)) {
                self.waiting.push(waker.clone());
            }
            return None;
        }
        // Only the outcome of the last refill is known.
        let is_last = self.fillings == filling.wrapping_add(1);
        Some(self.failed.clone().filter(|_| is_last).map_or(Ok(()), Err))
    }
}

impl LocalBudgets {
    pub(super) fn new(is_small: bool) -> Self {
        let sets = if is_small { FEW_SETS } else { SETS };
        let visits = (0..sets).map(|_| AtomicU64::new(0)).collect();
        Self { slots: Table::new(sets), visits, gone: Mutex::default() }
    }

    /// Whether a key may have a budget; false if it certainly has none.
    #[inline]
    pub(super) fn may_hold(&self, print: u64) -> bool {
        self.slots.may_hold(print)
    }

    /// Runs `work` on the budget of a key, if there is one.
    #[inline]
    pub(super) fn with<T>(&self, print: u64, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.slots.with(print, work)
    }

    /// Runs `work` on the budget of a key under this limit. A key in demand gets a budget if there
    /// is room, and an idle key loses it. `None` without a budget, or while a budget for another
    /// limit is being filled.
    pub(super) fn of<T>(
        &self,
        print: u64,
        limit: &Limit,
        now: Timestamp,
        work: impl FnOnce(&mut Slot) -> T,
    ) -> Option<T> {
        // A key with fewer requests is decided in the store, without a lock.
        let may_hold = self.may_hold(print);
        if !may_hold && !self.is_in_demand(print, now) {
            return None;
        }
        self.slots.change(print, |slots| {
            let mut way = slots.iter().position(|(known, _)| *known == print);
            if let Some(idle) = way.filter(|way| slots[*way].1.budget.is_idle(now)) {
                self.remove(slots, idle);
                way = None;
            }
            if way.is_none() && may_hold && !self.is_in_demand(print, now) {
                return None;
            }
            // A budget for another limit is replaced, and a full set drops the key with the oldest
            // demand.
            if let Some(other) = way.filter(|way| !slots[*way].1.budget.is_of(limit)) {
                if !slots[other].1.budget.is_free() {
                    return None;
                }
                self.remove(slots, other);
                way = None;
            }
            if way.is_none() && slots.len() == WAYS {
                let oldest = oldest(slots, now)?;
                self.remove(slots, oldest);
            }
            let way = way.unwrap_or_else(|| {
                slots.push((print, Slot::new(limit, now)));
                slots.len() - 1
            });
            slots.get_mut(way).map(|(_, slot)| work(slot))
        })
    }

    /// Removes a budget and its units. No refill is under way, so the requests that still wait are
    /// woken.
    fn remove(&self, slots: &mut Entries<Slot>, way: usize) {
        let (_, mut slot) = slots.swap_remove(way);
        slot.budget.void();
        lock(&self.gone).add(&slot.budget.stats);
        slot.waiting.drain(..).for_each(Waker::wake);
    }

    /// Whether a key without a budget has had [`OFTEN`] requests within two turns, this one included.
    fn is_in_demand(&self, print: u64, now: Timestamp) -> bool {
        const TURNS: u64 = (1 << 30) - 1;
        let place = &self.visits[place(print, self.visits.len())];
        let turn = (now.as_micros() / TURN.as_micros()) & TURNS;
        let (known, first) = (place.load(Ordering::Relaxed), print >> 32 << 32 | turn << 2 | 1);
        let turns = turn.wrapping_sub(known >> 2) & TURNS;
        let is_again = known >> 32 == first >> 32 && known & 0b11 > 0 && turns <= 1;
        let visits = match is_again {
            true if known & 0b11 >= OFTEN => return true,
            true => known + 1,
            false => first,
        };
        place.store(visits, Ordering::Relaxed);
        visits & 0b11 >= OFTEN
    }

    /// Drops the units of all budgets.
    pub(super) fn void(&self) {
        self.slots.change_all(|slots| {
            slots.iter_mut().for_each(|(_, slot)| slot.budget.void());
            true
        });
    }

    /// Takes out the units of at most `most` keys.
    pub(super) fn empty(&self, now: Timestamp, most: usize) -> Vec<(OwnedKey, Limit, u64)> {
        let mut emptied = Vec::new();
        self.slots.change_all(|slots| {
            for (_, Slot { budget, key, .. }) in slots {
                if emptied.len() == most {
                    return false;
                }
                let (Some(key), limit) = (key.take(), *budget.limit()) else { continue };
                // Units that are returned late would go to another window.
                if !matches!(limit, Limit::Bucket(_)) {
                    budget.void();
                }
                let units = budget.empty(now);
                if units > 0 {
                    emptied.push((key, limit, units));
                }
            }
            true
        });
        emptied
    }

    /// Totals of all units.
    pub(super) fn stats(&self, now: Timestamp) -> LeaseStats {
        let mut stats = *lock(&self.gone);
        self.slots.change_all(|slots| {
            for (_, slot) in slots {
                stats.outstanding += slot.budget.units(now);
                stats.add(&slot.budget.stats);
            }
            true
        });
        stats
    }
}

/// The budget that is replaced: of those without units, the one whose demand is oldest.
fn oldest(slots: &mut Entries<Slot>, now: Timestamp) -> Option<usize> {
    let budgets = slots.iter_mut().map(|(_, slot)| &mut slot.budget).enumerate();
    let free = budgets.filter_map(|(way, budget)| {
        let is_free = budget.is_free() && budget.units(now) == 0;
        is_free.then(|| (budget.since(), way))
    });
    free.min().map(|(_, way)| way)
}
