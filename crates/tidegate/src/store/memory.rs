//! State in this process: keyed, concurrent, bounded in bytes, without a background thread.
//!
//! Expired state is indistinguishable from no state, so nothing is ever swept: a slot whose time
//! has passed is a free slot. When memory runs out, a new key takes the place of the key that owes
//! least (at most one unit, under an attack with random keys), never of one that is being denied;
//! what is forgotten is counted.

mod arena;
mod bucket;
mod budget;
mod debt;
mod growth;
mod heap;
mod overflow;
mod packing;
mod stats;
mod table;
mod together;

use std::hint::black_box;
use std::io;
use std::sync::Arc;

use tidegate_core::algorithm::bucket::Bucket;
use tidegate_core::{Algorithm, Decision, Explanation, Limit, Op, State, Timestamp};

use self::bucket::PRINT;
use self::budget::Budget;
use self::heap::Heap;
use self::overflow::Overflow;
use self::packing::{Narrow, Pack, Wide, is_narrow};
use self::table::{Ask, Begin, Change, End, Table};
use super::Charge;
use crate::key::{Hashing, Key, Secret};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

pub use self::stats::MemoryStats;

/// State in this process.
#[derive(Debug)]
pub struct MemoryStore {
    secret: Secret,
    budget: Arc<Budget>,
    narrow: Narrow,
    wide: Wide,
    heap: Heap,
    overflow: Mutex<Overflow>,
    overflowed: AtomicU64,
    /// Some bucket has had a denominator that needs wide slots, so a bucket's state may be in
    /// either table.
    mixed: AtomicBool,
    moving: Mutex<()>,
}

impl MemoryStore {
    /// The smallest bound.
    pub const MIN_BYTES: u64 = 64 << 10;
    /// The bound unless one is given: 256 MiB, for about 11 million keys of a token bucket.
    pub const DEFAULT_BYTES: u64 = 256 << 20;

    /// A store of at most `max_bytes`, of which only what is used is taken from the system.
    pub fn new(max_bytes: u64, hashing: Hashing) -> io::Result<Self> {
        let max_bytes = max_bytes.max(Self::MIN_BYTES);
        // A small store has few shards, and one of them copied is as large as the store itself.
        let scratch = Narrow::scratch_bytes(max_bytes).min(max_bytes / 8);
        let budget = Arc::new(Budget::new(max_bytes - scratch));
        Ok(Self {
            secret: Secret::new(hashing),
            narrow: Table::new(max_bytes, Arc::clone(&budget))?,
            wide: Table::new(max_bytes, Arc::clone(&budget))?,
            heap: Heap::new(Arc::clone(&budget)),
            budget,
            overflow: Mutex::default(),
            overflowed: AtomicU64::new(0),
            mixed: AtomicBool::new(false),
            moving: Mutex::default(),
        })
    }

    /// Decides one charge.
    #[inline]
    pub fn decide(&self, now: Timestamp, charge: &Charge<'_>) -> Decision {
        let print = self.print(charge.key);
        match self.decide_quickly(now, charge, print) {
            Some(decision) => decision,
            None => self.decide_fully(now, charge, print),
        }
    }

    /// Decides charges each alone, asking for all their memory before waiting for any of it.
    #[inline]
    pub fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        mut each: impl FnMut(Decision),
    ) {
        const AT_ONCE: usize = 16;
        let mut prints = [0; AT_ONCE];
        for charges in charges.chunks(AT_ONCE) {
            for (print, charge) in prints.iter_mut().zip(charges) {
                *print = self.print(charge.key);
            }
            let mut touched = 0;
            for (print, charge) in prints.iter().zip(charges) {
                touched ^= match charge.limit {
                    Limit::Bucket(bucket) if is_narrow(bucket) => self.narrow.touch(*print),
                    Limit::SlidingLog(_) | Limit::InFlight(_) => 0,
                    _ => self.wide.touch(*print),
                };
            }
            black_box(touched);
            for (print, charge) in prints.iter().zip(charges) {
                if let Limit::Bucket(bucket) = charge.limit
                    && is_narrow(bucket)
                {
                    touched ^= self.narrow.touch_away(*print);
                }
            }
            black_box(touched);
            for (print, charge) in prints.iter().zip(charges) {
                match self.decide_quickly(now, charge, *print) {
                    Some(decision) => each(decision),
                    None => each(self.decide_fully(now, charge, *print)),
                }
            }
        }
    }

    /// What the state of a key means.
    pub fn explain(&self, now: Timestamp, key: Key<'_>, limit: &Limit) -> Explanation {
        limit.explain(&self.state(now, key, limit), now)
    }

    /// What the store holds, and what it had to forget.
    pub fn stats(&self) -> MemoryStats {
        let losses = [&self.narrow.losses, &self.wide.losses, &self.heap.losses];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MemoryStats {
            bytes: self.budget.used(),
            keys: self.narrow.keys() + self.wide.keys() + self.heap.keys(),
            evicted: losses.iter().map(|losses| load(&losses.evicted)).sum(),
            forgotten_units: losses.iter().map(|losses| load(&losses.forgotten_units)).sum(),
            overflowed: load(&self.overflowed),
        }
    }

    /// The fingerprint of a key; never 0, which means nobody.
    #[inline(always)]
    pub(crate) fn print(&self, key: Key<'_>) -> u64 {
        (self.secret.hash(key) & PRINT).max(1 << 5)
    }

    /// By far the commonest charge, one unit of a bucket whose key is known, has code of its own,
    /// made from the same function. `None` for all others.
    #[inline(always)]
    pub(crate) fn decide_quickly(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        print: u64,
    ) -> Option<Decision> {
        let (Limit::Bucket(bucket), Op::Take(1)) = (charge.limit, charge.op) else { return None };
        if !is_narrow(bucket) || self.mixed.load(Ordering::Relaxed) {
            return None;
        }
        self.narrow.update_at_home(print, &TakeOne { algorithm: bucket, now })
    }

    #[inline(never)]
    pub(crate) fn decide_fully(&self, now: Timestamp, charge: &Charge<'_>, print: u64) -> Decision {
        let op = charge.op;
        let decided = match charge.limit {
            Limit::Bucket(bucket) => {
                self.bring_home(print, now, bucket);
                let question = Question { algorithm: bucket, now, op };
                match is_narrow(bucket) {
                    true => self.narrow.update(print, now, &question),
                    false => self.wide.update(print, now, &question),
                }
            }
            Limit::FixedWindow(algorithm) => match op {
                Op::Take(1) => self.wide.update(print, now, &TakeOne { algorithm, now }),
                op => self.wide.update(print, now, &Question { algorithm, now, op }),
            },
            Limit::SlidingWindow(algorithm) => match op {
                Op::Take(1) => self.wide.update(print, now, &TakeOne { algorithm, now }),
                op => self.wide.update(print, now, &Question { algorithm, now, op }),
            },
            limit => self.heap.decide(print, limit, now, op),
        };
        decided.unwrap_or_else(|| self.decide_overflowing(now, charge))
    }

    fn decide_overflowing(&self, now: Timestamp, charge: &Charge<'_>) -> Decision {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let mut overflow = lock(&self.overflow);
        let mut state = overflow.state(charge.key.scope);
        let decision = charge.limit.decide(&mut state, now, charge.op);
        overflow.put(charge.key.scope, charge.limit, state, now);
        decision
    }

    /// Moves a bucket's state to the table that its present denominator asks for. Rare: only once
    /// a limit with a denominator above 1,024 has been seen, and then once per key and change.
    fn bring_home(&self, print: u64, now: Timestamp, bucket: &Bucket) {
        if is_narrow(bucket) {
            if !self.mixed.load(Ordering::Relaxed) || self.narrow.state(print) != [0] {
                return;
            }
            let _moving = lock(&self.moving);
            move_state(&self.wide, &self.narrow, bucket, print, now);
        } else {
            self.mixed.store(true, Ordering::Relaxed);
            if self.wide.state(print) != [0; 2] {
                return;
            }
            let _moving = lock(&self.moving);
            move_state(&self.narrow, &self.wide, bucket, print, now);
        }
    }

    fn state(&self, now: Timestamp, key: Key<'_>, limit: &Limit) -> State {
        let print = self.print(key);
        match limit {
            Limit::Bucket(bucket) => {
                self.bring_home(print, now, bucket);
                State::Bucket(match is_narrow(bucket) {
                    true => bucket.unpack(self.narrow.state(print)),
                    false => bucket.unpack(self.wide.state(print)),
                })
            }
            Limit::FixedWindow(window) => State::FixedWindow(window.unpack(self.wide.state(print))),
            Limit::SlidingWindow(window) => {
                State::SlidingWindow(window.unpack(self.wide.state(print)))
            }
            _ => self.heap.lock(self.heap.shard_of(print)).state(print),
        }
    }
}

/// An operation on a packed state.
struct Question<'a, A> {
    algorithm: &'a A,
    now: Timestamp,
    op: Op,
}

impl<A: Pack<STATE>, const STATE: usize> Ask<STATE> for Question<'_, A> {
    type Answer = Decision;

    fn ask(&self, words: [u64; STATE]) -> (Decision, Change<STATE>) {
        packed(self.algorithm, words, self.now, self.op)
    }
}

/// The commonest operation, with code of its own made from the same function.
struct TakeOne<'a, A> {
    algorithm: &'a A,
    now: Timestamp,
}

impl<A: Pack<STATE>, const STATE: usize> Ask<STATE> for TakeOne<'_, A> {
    type Answer = Decision;

    #[inline(always)]
    fn ask(&self, words: [u64; STATE]) -> (Decision, Change<STATE>) {
        packed(self.algorithm, words, self.now, Op::Take(1))
    }
}

/// Decides on a packed state.
#[inline(always)]
fn packed<A: Pack<STATE>, const STATE: usize>(
    algorithm: &A,
    words: [u64; STATE],
    now: Timestamp,
    op: Op,
) -> (Decision, Change<STATE>) {
    let mut state = algorithm.unpack(words);
    let decision = algorithm.decide(&mut state, now, op);
    let change = Change { state: algorithm.pack(&state), class: debt::class(&decision) };
    (decision, change)
}

/// Moves a bucket's state from one table to the other, unless the other has one.
fn move_state<
    const SLOTS: usize,
    const STATE: usize,
    const WORDS: usize,
    const FLAGS: u64,
    const TO_SLOTS: usize,
    const TO_STATE: usize,
    const TO_WORDS: usize,
    const TO_FLAGS: u64,
>(
    from: &Table<SLOTS, STATE, WORDS, FLAGS>,
    to: &Table<TO_SLOTS, TO_STATE, TO_WORDS, TO_FLAGS>,
    bucket: &Bucket,
    print: u64,
    now: Timestamp,
) where
    Bucket: Pack<STATE> + Pack<TO_STATE>,
{
    let words = from.state(print);
    if words == [0; STATE] {
        return;
    }
    let state = Pack::<STATE>::unpack(bucket, words);
    let moved = Pack::<TO_STATE>::pack(bucket, &state);
    let begin = Begin(Change { state: moved, class: debt::DENYING });
    if to.update(print, now, &begin).is_some() {
        from.update(print, now, &End);
    }
}
