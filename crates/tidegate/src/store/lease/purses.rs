//! The purses of all keys, within a bound.

use std::task::Waker;

use tidegate_core::{Limit, Timestamp};

use super::TURN;
use super::purse::{Purse, Tally};
use crate::key::{Hashing, Key, Scope, Secret};
use crate::store::StoreError;
use crate::sync::{Mutex, lock};

/// The most keys that a node holds units of.
pub const MAX_PURSES: usize = SETS * WAYS;

const SETS: usize = 1 << 14;
/// Enough for a simulation.
const FEW_SETS: usize = 1 << 3;
const WAYS: usize = 4;
/// A key that is asked for so many times within two turns gets a purse.
const OFTEN: u8 = 3;

/// A purse for each key that is asked for, four to a set that the hash of the key chooses.
#[derive(Debug)]
pub(super) struct Purses {
    secret: Secret,
    sets: Box<[Line]>,
}

/// A set, in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(Mutex<Set>);

#[derive(Debug, Default)]
struct Set {
    slots: Vec<Slot>,
    /// What became of the units of purses that are gone, if there are any.
    gone: Option<Box<Tally>>,
    /// 16 bits of the print of each slot, so that none of another key is looked at.
    tags: [u16; WAYS],
    /// Who was asked for lately, and has no slot yet.
    lately: [Visit; WAYS],
}

/// A key that was asked for: 16 bits of its print, in which turn the first time, counted round, and how
/// often since.
#[derive(Clone, Copy, Debug, Default)]
struct Visit {
    tag: u16,
    turn: u8,
    times: u8,
}

/// A purse, whose it is, and who waits for it to be filled. In this order, so that what every request
/// needs lies together.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Slot {
    print: u64,
    pub(super) purse: Purse,
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
        self.purse.filled();
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
        if self.fillings == filling && !self.purse.is_free() {
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

impl Purses {
    pub(super) fn new() -> Self {
        Self::of_size(Secret::new(Hashing::Fast), SETS)
    }

    /// A few, and where a key has its place is the same every time.
    pub(super) fn repeatable() -> Self {
        Self::of_size(Secret::known(), FEW_SETS)
    }

    fn of_size(secret: Secret, sets: usize) -> Self {
        Self { secret, sets: (0..sets).map(|_| Line::default()).collect() }
    }

    #[inline]
    pub(super) fn print(&self, key: Key<'_>) -> u64 {
        self.secret.hash(key)
    }

    fn set(&self, print: u64) -> &Mutex<Set> {
        &self.sets[print as usize & (self.sets.len() - 1)].0
    }

    /// Does something with the purse of a key, if there is one.
    #[inline]
    pub(super) fn with<T>(&self, print: u64, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        let mut set = lock(self.set(print));
        let way = set.find(print)?;
        set.slots.get_mut(way).map(work)
    }

    /// Does something with the purse that a key has by these numbers; it gets one if it is in demand and
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
        let mut set = lock(self.set(print));
        let mut known = set.find(print);
        if let Some(way) = known.filter(|way| set.slots[*way].purse.is_idle(now)) {
            set.remove(way);
            known = None;
        }
        let way = match known {
            Some(way) if set.slots[way].purse.is_of(limit) => way,
            other => set.place(other, print, limit, now)?,
        };
        set.slots.get_mut(way).map(work)
    }

    /// Takes away what all of them hold.
    pub(super) fn void(&self) {
        for set in &self.sets {
            let mut set = lock(&set.0);
            for slot in &mut set.slots {
                slot.purse.void();
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
                    slot.purse.void();
                    continue;
                }
                let units = slot.purse.empty(now);
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
                outstanding += slot.purse.units(now);
                tally.add(&slot.purse.tally);
            }
        }
        (tally, outstanding)
    }
}

impl Set {
    #[inline]
    fn find(&self, print: u64) -> Option<usize> {
        let mut tagged = self.slots.iter().zip(&self.tags);
        tagged.position(|(slot, it)| *it == tag(print) && slot.print == print)
    }

    /// Whether a key that has no slot is asked for [`OFTEN`] within two turns.
    fn is_in_demand(&mut self, print: u64, now: Timestamp) -> bool {
        let turn = (now.as_micros() / TURN.as_micros()) as u8;
        let is_it = |it: &&mut Visit| it.tag == tag(print) && turn.wrapping_sub(it.turn) <= 1;
        if let Some(visit) = self.lately.iter_mut().find(is_it) {
            visit.times = visit.times.saturating_add(1);
            return visit.times >= OFTEN;
        }
        self.lately.rotate_right(1);
        self.lately[0] = Visit { tag: tag(print), turn, times: 1 };
        false
    }

    /// Takes a purse away, whose units are void.
    fn remove(&mut self, way: usize) {
        let old = self.slots.swap_remove(way);
        self.tags[way] = self.tags[self.slots.len()];
        self.bury(old);
    }

    fn bury(&mut self, mut old: Slot) {
        old.purse.void();
        self.gone.get_or_insert_default().add(&old.purse.tally);
        // Nobody fills it, so nobody has to wait.
        old.waiting.drain(..).for_each(Waker::wake);
    }

    /// A place for a key: its own, a free one, or that of the key that has not been asked for for longest.
    /// None for one that is not in demand.
    fn place(
        &mut self,
        own: Option<usize>,
        print: u64,
        limit: &Limit,
        now: Timestamp,
    ) -> Option<usize> {
        // Whoever is asked for less often is decided in the store, with a purse or without.
        if own.is_none() && !self.is_in_demand(print, now) {
            return None;
        }
        let slot = Slot {
            print,
            purse: Purse::new(limit, now),
            owner: None,
            waiting: Vec::new(),
            fillings: 0,
            failed: None,
        };
        if own.is_none() && self.slots.len() < WAYS {
            self.tags[self.slots.len()] = tag(print);
            self.slots.push(slot);
            return Some(self.slots.len() - 1);
        }
        let slots = &mut self.slots;
        let mut free = (0..slots.len()).filter(|way| {
            let purse = &mut slots[*way].purse;
            purse.is_free() && (own == Some(*way) || purse.units(now) == 0)
        });
        let way = match own {
            Some(own) => free.find(|way| *way == own)?,
            None => {
                let free: Vec<usize> = free.collect();
                free.into_iter().min_by_key(|way| self.slots[*way].purse.since())?
            }
        };
        self.tags[way] = tag(print);
        let old = std::mem::replace(&mut self.slots[way], slot);
        self.bury(old);
        Some(way)
    }
}

/// Never nought, which stands for nobody.
#[inline(always)]
const fn tag(print: u64) -> u16 {
    (print >> 48) as u16 | 1
}
