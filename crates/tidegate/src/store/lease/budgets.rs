//! The budgets of all keys, within a bound.

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
/// A key that is asked for so many times within two turns gets a budget. No more than two bits can count.
const OFTEN: u16 = 3;

/// A budget for each key that is in demand, four to a set that the hash of the key chooses.
#[derive(Debug)]
pub(super) struct LocalBudgets {
    /// All that keys without a budget need: close together, so that these hardly ever wait for memory.
    fronts: Box<[Front]>,
    sets: Box<[Line]>,
}

/// What is known of a set without its lock.
#[derive(Debug, Default)]
struct Front {
    tags: Tags,
    /// The last four keys that were asked for and have no slot. If two threads are here at once, one of
    /// their visits may be lost.
    lately: AtomicU64,
}

/// A set, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Mutex<Set>);

#[derive(Debug, Default)]
struct Set {
    slots: Vec<Slot>,
    /// What became of the units of budgets that are gone, if there are any.
    gone: Option<Box<Tally>>,
}

/// A key that was asked for, in 16 bits: 9 of its print, in which turn the first time, counted round in 5,
/// and how often since. Of two keys that are taken for one, one gets a budget too early.
#[derive(Clone, Copy, Debug)]
struct Visit(u16);

/// A budget, whose it is, and who waits for it to be filled. In this order, so that what every request
/// needs lies together.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    print: u64,
    pub(super) budget: LocalBudget,
    /// To give back what it holds; none if it has never held anything.
    pub(super) owner: Option<Box<Owner>>,
    waiting: Vec<Waker>,
    /// How often somebody has ended to fill it, and what went wrong the last time.
    pub(super) fillings: u32,
    failed: Option<StoreError>,
}

/// A key that somebody keeps.
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
    /// Nobody fills it any more. Whoever waits is to be woken, once nobody holds a lock.
    #[must_use]
    pub(super) fn filled(&mut self, failed: Option<StoreError>) -> Vec<Waker> {
        self.budget.filled();
        self.fillings = self.fillings.wrapping_add(1);
        self.failed = failed;
        std::mem::take(&mut self.waiting)
    }

    /// What came of the filling of this number; `None` if it is not over, and whom to wake then.
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
        // Of one that has long been over nobody knows any more; it is not asked about twice.
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

    /// Does something with the budget of a key, if there is one.
    #[inline]
    pub(super) fn with<T>(&self, print: u64, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let (front, set) = self.set(print);
        if !front.tags.may_hold(print) {
            return None;
        }
        lock(set).slots.iter_mut().find(|slot| slot.print == print).map(work)
    }

    /// Whether a key has a budget, as far as can be told at a glance: if not, it has none.
    #[inline]
    pub(super) fn may_hold(&self, print: u64) -> bool {
        self.set(print).0.tags.may_hold(print)
    }

    /// Whether a key has a budget or gets one if it is asked for now; that it is, is counted.
    #[inline]
    pub(super) fn may_have(&self, print: u64, now: Timestamp) -> bool {
        let (front, _) = self.set(print);
        front.tags.may_hold(print) || front.is_in_demand(print, now)
    }

    /// Does something with the budget that a key has by these numbers; it gets one if it is in demand and
    /// there is room, and loses it when it no longer is. `None` if it has none, or somebody fills the one
    /// of other numbers.
    #[inline]
    pub(super) fn of<T>(
        &self,
        print: u64,
        limit: &Limit,
        now: Timestamp,
        work: impl FnOnce(&mut Slot) -> T,
    ) -> Option<T> {
        let (front, set) = self.set(print);
        // Whoever is asked for less often is decided in the store, with a budget or without.
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

    /// Takes away what all of them hold.
    pub(super) fn void(&self) {
        for set in &self.sets {
            let mut set = lock(&set.0);
            for slot in &mut set.slots {
                slot.budget.void();
            }
        }
    }

    /// Takes what some of the keys hold, at most so many of them.
    pub(super) fn empty(&self, now: Timestamp, most: usize) -> Vec<(Box<Owner>, u64)> {
        let mut emptied = Vec::new();
        for set in &self.sets {
            let mut set = lock(&set.0);
            for slot in &mut set.slots {
                if emptied.len() == most {
                    return emptied;
                }
                let Some(owner) = slot.owner.take() else { continue };
                // What is given back late would be given to another window.
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

    /// What became of all units, and how many there are still.
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

    /// Whether a key that has no slot is asked for [`OFTEN`] within two turns, this time included.
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

    /// That of a key that was never asked for.
    const fn first(print: u64, now: Timestamp) -> Self {
        let turn = (now.as_micros() / TURN.as_micros()) as u16 & Self::TURNS;
        Self((print >> 55 << 7) as u16 | turn << 2 | 1)
    }

    const fn times(self) -> u16 {
        self.0 & Self::TIMES
    }

    /// Whether this is the same key, in this turn or the one before; nobody has not been here at all.
    const fn is_before(self, now: Self) -> bool {
        let turns = (now.0 >> 2).wrapping_sub(self.0 >> 2) & Self::TURNS;
        self.times() > 0 && self.0 >> 7 == now.0 >> 7 && turns <= 1
    }
}

impl Set {
    /// Takes a budget away, whose units are void.
    fn remove(&mut self, way: usize) {
        let old = self.slots.swap_remove(way);
        self.bury(old);
    }

    fn bury(&mut self, mut old: Slot) {
        old.budget.void();
        self.gone.get_or_insert_default().add(&old.budget.tally);
        // Nobody fills it, so nobody has to wait.
        old.waiting.drain(..).for_each(Waker::wake);
    }

    /// A place for a key: its own, a free one, or that of the key that has not been asked for for longest.
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
