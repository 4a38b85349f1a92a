//! The budgets of all keys in demand, within a bound.

use std::task::Waker;

use tidegate_core::{Limit, Timestamp};

use super::TURN;
use super::budget::{LocalBudget, Tally};
use crate::key::{Key, Scope};
use crate::store::StoreError;
use crate::store::tags::{Tags, WAYS};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The most keys that a node holds units of.
pub const MAX_BUDGETS: usize = SETS * WAYS;

const SETS: usize = 1 << 14;
/// Enough for a simulation.
const FEW_SETS: usize = 1 << 3;
/// Requests within two turns that give a key a budget; two bits count them.
const OFTEN: u16 = 3;

/// A budget for each key in demand, four to a set; the hash of the key chooses the set.
#[derive(Debug)]
pub(super) struct LocalBudgets {
    /// All that keys without a budget need, close together in memory.
    fronts: Box<[Front]>,
    sets: Box<[Line]>,
}

/// The part of a set that is read without its lock.
#[derive(Debug, Default)]
struct Front {
    tags: Tags,
    /// The last four keys without a slot that had a request. Concurrent visits may be lost.
    lately: AtomicU64,
}

/// A set, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Mutex<Set>);

#[derive(Debug, Default)]
struct Set {
    slots: Vec<Slot>,
    /// Totals of the budgets that were removed.
    gone: Option<Box<Tally>>,
}

/// A key with a recent request, in 16 bits: 9 of its print, 5 of the turn of its first request, 2 of their number.
/// If two keys look the same, one gets a budget too early.
#[derive(Clone, Copy, Debug)]
struct Visit(u16);

/// A budget, its key, and the requests that wait for it. The fields that every request needs come first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    print: u64,
    pub(super) budget: LocalBudget,
    /// The key, to return units to the store; `None` if the budget never held any.
    pub(super) owner: Option<Box<Owner>>,
    waiting: Vec<Waker>,
    /// Number of completed refills, and the error of the last one, if any.
    pub(super) fillings: u32,
    failed: Option<StoreError>,
}

/// An owned key and its limit.
#[derive(Debug)]
pub(super) struct Owner {
    scope: Scope,
    text: Box<[u8]>,
    tag: Box<[u8]>,
    pub(super) limit: Limit,
}

impl Owner {
    pub(super) fn of(key: Key<'_>, limit: &Limit) -> Box<Self> {
        let Key { scope, text, tag } = key;
        Box::new(Self { scope, text: text.into(), tag: tag.into(), limit: *limit })
    }

    pub(super) fn key(&self) -> Key<'_> {
        Key::new(self.scope, &self.text).tagged(&self.tag)
    }
}

impl Slot {
    /// A refill has ended. The caller wakes the waiting requests once it has released the lock.
    #[must_use]
    pub(super) fn filled(&mut self, failed: Option<StoreError>) -> Vec<Waker> {
        self.budget.filled();
        self.fillings = self.fillings.wrapping_add(1);
        self.failed = failed;
        std::mem::take(&mut self.waiting)
    }

    /// The outcome of the refill with this number; `None` while it is under way, and then `waker` is woken.
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
        let fronts = (0..sets).map(|_| Front::default()).collect();
        Self { fronts, sets: (0..sets).map(|_| Line::default()).collect() }
    }

    #[inline]
    fn set(&self, print: u64) -> (&Front, &Mutex<Set>) {
        let number = print as usize & (self.sets.len() - 1);
        (&self.fronts[number], &self.sets[number].0)
    }

    /// Runs `work` on the budget of a key, if there is one.
    #[inline]
    pub(super) fn with<T>(&self, print: u64, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let (front, set) = self.set(print);
        if !front.tags.may_hold(print) {
            return None;
        }
        lock(set).slots.iter_mut().find(|slot| slot.print == print).map(work)
    }

    /// Whether a key may have a budget; false if it certainly has none.
    #[inline]
    pub(super) fn may_hold(&self, print: u64) -> bool {
        self.set(print).0.tags.may_hold(print)
    }

    /// Whether a key may have a budget or gets one by a request now, which is counted.
    #[inline]
    pub(super) fn may_have(&self, print: u64, now: Timestamp) -> bool {
        let (front, _) = self.set(print);
        front.tags.may_hold(print) || front.is_in_demand(print, now)
    }

    /// Runs `work` on the budget of a key by these numbers. A key in demand gets a budget if there is room, and
    /// loses it when it no longer is. `None` if it has none, or one of other numbers is being filled.
    #[inline]
    pub(super) fn of<T>(
        &self,
        print: u64,
        limit: &Limit,
        now: Timestamp,
        work: impl FnOnce(&mut Slot) -> T,
    ) -> Option<T> {
        let (front, set) = self.set(print);
        // A key with fewer requests is decided in the store.
        let may_hold = front.tags.may_hold(print);
        if !may_hold && !front.is_in_demand(print, now) {
            return None;
        }
        let mut set = lock(set);
        let mut known = set.slots.iter().position(|slot| slot.print == print);
        if let Some(way) = known.filter(|way| set.slots[*way].budget.is_idle(now)) {
            set.remove(way);
            front.tag(&set.slots);
            known = None;
        }
        if known.is_none() && may_hold && !front.is_in_demand(print, now) {
            return None;
        }
        let way = match known {
            Some(way) if set.slots[way].budget.is_of(limit) => way,
            other => {
                let way = set.place(other, print, limit, now)?;
                front.tag(&set.slots);
                way
            }
        };
        set.slots.get_mut(way).map(work)
    }

    /// Drops the units of all budgets.
    pub(super) fn void(&self) {
        for set in &self.sets {
            let mut set = lock(&set.0);
            for slot in &mut set.slots {
                slot.budget.void();
            }
        }
    }

    /// Takes out the units of at most `most` keys.
    pub(super) fn empty(&self, now: Timestamp, most: usize) -> Vec<(Box<Owner>, u64)> {
        let mut emptied = Vec::new();
        for set in &self.sets {
            let mut set = lock(&set.0);
            for slot in &mut set.slots {
                if emptied.len() == most {
                    return emptied;
                }
                let Some(owner) = slot.owner.take() else { continue };
                // Units that are returned late would go to another window.
                if !matches!(owner.limit, Limit::Bucket(_)) {
                    slot.budget.void();
                    continue;
                }
                let units = slot.budget.empty(now);
                if units > 0 {
                    emptied.push((owner, units));
                }
            }
        }
        emptied
    }

    /// Totals of all units, and the number held now.
    pub(super) fn tally(&self, now: Timestamp) -> (Tally, u64) {
        let (mut tally, mut outstanding) = (Tally::default(), 0);
        for set in &self.sets {
            let mut set = lock(&set.0);
            tally.add(set.gone.as_deref().unwrap_or(&Tally::default()));
            for slot in &mut set.slots {
                outstanding += slot.budget.units(now);
                tally.add(&slot.budget.tally);
            }
        }
        (tally, outstanding)
    }
}

impl Front {
    fn tag(&self, slots: &[Slot]) {
        self.tags.set(slots.iter().map(|slot| slot.print));
    }

    /// Whether a key without a slot has had [`OFTEN`] requests within two turns, this one included.
    fn is_in_demand(&self, print: u64, now: Timestamp) -> bool {
        let first = Visit::first(print, now);
        let lately = self.lately.load(Ordering::Relaxed);
        let visit = |way: usize| Visit((lately >> (16 * way)) as u16);
        let (times, lately) = match (0..WAYS).find(|way| visit(*way).is_before(first)) {
            Some(way) => {
                let times = (visit(way).times() + 1).min(OFTEN);
                let mask = u64::from(Visit::TIMES) << (16 * way);
                (times, lately & !mask | u64::from(times) << (16 * way))
            }
            None => (first.times(), lately << 16 | u64::from(first.0)),
        };
        self.lately.store(lately, Ordering::Relaxed);
        times >= OFTEN
    }
}

impl Visit {
    const TIMES: u16 = 0b11;
    const TURNS: u16 = 0b1_1111;

    /// The first visit of a key.
    const fn first(print: u64, now: Timestamp) -> Self {
        let turn = (now.as_micros() / TURN.as_micros()) as u16 & Self::TURNS;
        Self((print >> 55 << 7) as u16 | turn << 2 | 1)
    }

    const fn times(self) -> u16 {
        self.0 & Self::TIMES
    }

    /// Whether this is a visit of the same key, in this turn or the one before.
    const fn is_before(self, now: Self) -> bool {
        let turns = (now.0 >> 2).wrapping_sub(self.0 >> 2) & Self::TURNS;
        self.times() > 0 && self.0 >> 7 == now.0 >> 7 && turns <= 1
    }
}

impl Set {
    /// Removes a budget and its units.
    fn remove(&mut self, way: usize) {
        let old = self.slots.swap_remove(way);
        self.bury(old);
    }

    fn bury(&mut self, mut old: Slot) {
        old.budget.void();
        self.gone.get_or_insert_default().add(&old.budget.tally);
        // No refill is under way, so these requests need not wait.
        old.waiting.drain(..).for_each(Waker::wake);
    }

    /// A place for a key: its own, a free one, or that of the key whose demand is oldest.
    fn place(
        &mut self,
        own: Option<usize>,
        print: u64,
        limit: &Limit,
        now: Timestamp,
    ) -> Option<usize> {
        let slot = Slot {
            print,
            budget: LocalBudget::new(limit, now),
            owner: None,
            waiting: Vec::new(),
            fillings: 0,
            failed: None,
        };
        if own.is_none() && self.slots.len() < WAYS {
            self.slots.push(slot);
            return Some(self.slots.len() - 1);
        }
        let slots = &mut self.slots;
        let mut free = (0..slots.len()).filter(|way| {
            let budget = &mut slots[*way].budget;
            budget.is_free() && (own == Some(*way) || budget.units(now) == 0)
        });
        let way = match own {
            Some(own) => free.find(|way| *way == own)?,
            None => {
                let free: Vec<usize> = free.collect();
                free.into_iter().min_by_key(|way| self.slots[*way].budget.since())?
            }
        };
        let old = std::mem::replace(&mut self.slots[way], slot);
        self.bury(old);
        Some(way)
    }
}
