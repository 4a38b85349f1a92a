//! The in-process store: concurrent, bounded in bytes, without a background thread.
//!
//! ```
//! use tidegate::{Limit, Limiter, Rate};
//!
//! let limiter = Limiter::builder()
//!     .limit("per address", Limit::token_bucket(Rate::per_second(10)).build()?)
//!     .max_bytes(64 << 20)
//!     .build()?;
//! assert!(limiter.check("192.0.2.1").is_allowed());
//! assert!(limiter.stats().bytes <= 64 << 20);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Expired state is equivalent to no state, so no sweep is needed: a slot whose time has passed is
//! a free slot. When memory runs out, a new key evicts the key with the least debt (under an attack
//! with random keys at most one unit), never one that is being denied. Evictions are counted.

mod arena;
mod budget;
mod debt;
mod growth;
mod heap;
mod locks;
mod lookup;
mod overflow;
mod packing;
mod put;
mod reservations;
mod slots;
mod stats;
mod table;
mod time;
mod together;

use std::hint::black_box;
use std::io;
use std::sync::Arc;

use tidegate_core::algorithm::bucket::{Bucket, Moment};
use tidegate_core::{Algorithm, Decision, Explanation, LeaseId, Limit, Op, State, Timestamp};

use self::budget::Budget;
use self::heap::Heap;
use self::lookup::{Lookup, TakeOne};
use self::overflow::Overflow;
use self::packing::{NARROW_DENOMINATOR, Narrow, Pack, Wide};
pub(crate) use self::packing::{PackNarrow, PackWide, is_narrow};
use self::reservations::Reservations;
use self::slots::PRINT;
use self::table::{Begin, Change, End, Table};
use super::{Batch, Charge, DecisionSource, DeniedState, Store, StoreError};
use crate::clock::Clock;
use crate::key::{Hashing, Key, Scope, Secret};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

#[doc(hidden)]
pub use self::stats::MemoryStats;

/// A store in this process.
#[derive(Debug)]
pub struct MemoryStore {
    secret: Secret,
    budget: Arc<Budget>,
    narrow: Narrow,
    wide: Wide,
    heap: Heap,
    reservations: Reservations,
    overflow: Mutex<Overflow>,
    overflowed: AtomicU64,
    /// Some bucket has had a denominator that needs wide slots, so its state may be in either
    /// table.
    mixed: AtomicBool,
    moving: Mutex<()>,
    /// Read again when the caller seems to have been delayed after it read the clock.
    clock: Option<Clock>,
}

impl MemoryStore {
    /// The smallest memory bound.
    #[doc(hidden)]
    pub const MIN_BYTES: u64 = 64 << 10;
    /// The default memory bound: 256 MiB, for about 11 million keys of a token bucket.
    #[doc(hidden)]
    pub const DEFAULT_BYTES: u64 = 256 << 20;

    /// A store of at most `max_bytes`. It reserves address space only; memory is used as keys are
    /// added.
    #[doc(hidden)]
    pub fn new(max_bytes: u64, hashing: Hashing) -> io::Result<Self> {
        Self::keyed(max_bytes, Secret::new(hashing))
    }

    /// The same for a simulation: a fixed hash puts a key into the same slot in every run.
    pub(crate) fn repeatable(max_bytes: u64) -> io::Result<Self> {
        Self::keyed(max_bytes, Secret::known())
    }

    fn keyed(max_bytes: u64, secret: Secret) -> io::Result<Self> {
        // A small store has few shards, and a copy of one of them is as large as the store itself.
        let scratch = Narrow::scratch_bytes(max_bytes).min(max_bytes / 8);
        let budget = Arc::new(Budget::new((max_bytes - scratch).max(Self::MIN_BYTES)));
        Ok(Self {
            secret,
            narrow: Table::new(max_bytes, Arc::clone(&budget))?,
            wide: Table::new(max_bytes, Arc::clone(&budget))?,
            heap: Heap::new(Arc::clone(&budget)),
            reservations: Reservations::new(Arc::clone(&budget)),
            budget,
            overflow: Mutex::default(),
            overflowed: AtomicU64::new(0),
            mixed: AtomicBool::new(false),
            moving: Mutex::default(),
            clock: None,
        })
    }

    /// Sets the clock that `now` is read from. When threads decide concurrently on one key, a
    /// thread that was delayed after reading the clock reads it again; with an old `now` a sound
    /// state would look impossible, as if the clock had gone back.
    #[doc(hidden)]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Decides one charge.
    #[doc(hidden)]
    pub fn decide(&self, now: Timestamp, charge: &Charge<'_>) -> Decision {
        self.decide_fully(now, charge, self.print(charge.key))
    }

    /// Decides charges separately; prefetches the memory of all of them first.
    #[doc(hidden)]
    pub fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        mut each: impl FnMut(Decision),
    ) {
        const AT_ONCE: usize = 16;
        let mut prints = [0; AT_ONCE];
        for charges in charges.chunks(AT_ONCE) {
            let mut touched = 0;
            for (print, charge) in prints.iter_mut().zip(charges) {
                *print = self.print(charge.key);
                touched ^= self.read_ahead(charge.limit, *print);
            }
            black_box(touched);
            for (print, charge) in prints.iter().zip(charges) {
                each(self.decide_fully(now, charge, *print));
            }
        }
    }

    /// Explains the state of a key.
    #[doc(hidden)]
    pub fn explain(&self, now: Timestamp, key: Key<'_>, limit: &Limit) -> Explanation {
        limit.explain(&self.state(now, key, limit), now)
    }

    /// Usage and evictions.
    #[doc(hidden)]
    pub fn stats(&self) -> MemoryStats {
        let losses = [&self.narrow.losses, &self.wide.losses, &self.heap.losses];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MemoryStats {
            bytes: self.budget.used(),
            keys: self.narrow.keys() + self.wide.keys() + self.heap.keys(),
            evicted: losses.iter().map(|losses| load(&losses.evicted)).sum(),
            evicted_units: losses.iter().map(|losses| load(&losses.evicted_units)).sum(),
            overflowed: load(&self.overflowed),
            reservations: self.reservations.len(),
            unreserved: self.reservations.unopened(),
        }
    }

    /// Reads a word of the key's likely bucket, to prefetch it.
    #[inline(always)]
    fn read_ahead(&self, limit: &Limit, print: u64) -> u64 {
        let word = match limit {
            Limit::Bucket(bucket) if is_narrow(bucket) => &self.narrow.home_line(print)[0],
            Limit::SlidingLog(_) | Limit::InFlight(_) | Limit::Blocking(_) => return 0,
            _ => &self.wide.home_line(print)[0],
        };
        word.load(Ordering::Relaxed)
    }

    /// The fingerprint of a key; never 0, which marks a free slot.
    #[inline(always)]
    pub(crate) fn print(&self, key: Key<'_>) -> u64 {
        fingerprint(self.secret.hash(key))
    }

    /// Takes one unit of a narrow bucket if the key is in its home bucket: by far the most common
    /// charge. `None` otherwise; use [`MemoryStore::take_narrow_away`] then.
    #[inline(always)]
    pub(crate) fn take_narrow(
        &self,
        now: Timestamp,
        algorithm: &impl PackNarrow,
        print: u64,
    ) -> Option<Decision> {
        self.narrow.update_at_home(print, &TakeOne { algorithm, now, clock: self.clock.as_ref() })
    }

    /// Takes one unit of a narrow bucket for a key outside its home bucket. `None` if there is no
    /// room for the key.
    pub(crate) fn take_narrow_away(
        &self,
        now: Timestamp,
        algorithm: &impl PackNarrow,
        print: u64,
    ) -> Option<Decision> {
        self.narrow.update_away(print, now, &TakeOne { algorithm, now, clock: self.clock.as_ref() })
    }

    /// Takes one unit of a window. `None` if there is no room for the key.
    pub(crate) fn take_wide(
        &self,
        now: Timestamp,
        algorithm: &impl PackWide,
        print: u64,
    ) -> Option<Decision> {
        self.wide.update(print, now, &TakeOne { algorithm, now, clock: self.clock.as_ref() })
    }

    /// Whether a bucket's state may be in either table.
    pub(crate) fn is_mixed(&self) -> bool {
        self.mixed.load(Ordering::Relaxed)
    }

    /// The salt of a scope for [`MemoryStore::print_with`]; `None` if keys are hashed with the
    /// strong hash.
    pub(crate) fn salt(&self, scope: Scope) -> Option<u64> {
        self.secret.salt(scope)
    }

    /// The fingerprint of a key in the scope that `salt` was made for.
    #[inline(always)]
    pub(crate) fn print_with(&self, salt: u64, text: &[u8]) -> u64 {
        fingerprint(self.secret.hash_with(salt, text))
    }

    /// A word of the likely bucket of a key in the narrow table.
    #[inline(always)]
    pub(crate) fn first_narrow_word(&self, print: u64) -> &AtomicU64 {
        &self.narrow.home_line(print)[0]
    }

    /// A word of the likely bucket of a key in the wide table.
    #[inline(always)]
    pub(crate) fn first_wide_word(&self, print: u64) -> &AtomicU64 {
        &self.wide.home_line(print)[0]
    }

    /// Prepares the store for a limit, before the first decision.
    pub(crate) fn expect(&self, limit: &Limit) {
        if let Limit::Bucket(bucket) = limit
            && !is_narrow(bucket)
        {
            self.mixed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether some decision used a state shared by keys without room.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed) > 0
    }

    #[inline(never)]
    pub(crate) fn decide_fully(&self, now: Timestamp, charge: &Charge<'_>, print: u64) -> Decision {
        let (Charge { limit, op, .. }, past) = (*charge, self.past(now));
        let decided = match limit {
            Limit::Bucket(bucket) => {
                self.move_to_current_table(print, now, bucket);
                let lookup = self.lookup(bucket, now, op);
                match is_narrow(bucket) {
                    true => self.narrow.update(print, now, &lookup),
                    false => self.wide.update(print, past, &lookup),
                }
            }
            Limit::FixedWindow(window) if charge.options.is_calendar => {
                // A window that starts next is kept, so the clock need not be read again.
                let lookup = Lookup { algorithm: window, now: self.wall(now), op, clock: None };
                self.wide.update(print, past, &lookup)
            }
            Limit::FixedWindow(window) => {
                self.wide.update(print, past, &self.lookup(window, now, op))
            }
            Limit::SlidingWindow(window) => {
                self.wide.update(print, past, &self.lookup(window, now, op))
            }
            limit => {
                if let Op::Release(lease) | Op::Renew(lease) = op
                    && !self.heap.holds(print, lease)
                    && let Some(decision) = self.find_overflowing(now, charge, lease)
                {
                    return decision;
                }
                self.heap.decide(print, &self.lookup(limit, now, op))
            }
        };
        decided.unwrap_or_else(|| self.decide_overflowing(now, charge))
    }

    fn lookup<'a, A>(&'a self, algorithm: &'a A, now: Timestamp, op: Op) -> Lookup<'a, A> {
        Lookup { algorithm, now, op, clock: self.clock.as_ref() }
    }

    fn count_overflowed(&self, decisions: usize) {
        if decisions > 0 {
            self.overflowed.fetch_add(decisions as u64, Ordering::Relaxed);
        }
    }

    fn decide_overflowing(&self, now: Timestamp, charge: &Charge<'_>) -> Decision {
        let mut overflow = lock(&self.overflow);
        let mut state = overflow.state(charge.key.scope);
        let at = self.time_of(now, charge);
        let decision = self.lookup(charge.limit, at, charge.op).decide(&mut state);
        overflow.put(charge.key.scope, charge.limit, state, self.past(now));
        self.count_overflowed(1);
        decision
    }

    /// Releases or renews a lease on the state that keys without room share, if the lease was taken
    /// there.
    fn find_overflowing(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        lease: LeaseId,
    ) -> Option<Decision> {
        let mut overflow = lock(&self.overflow);
        let mut state = overflow.state(charge.key.scope);
        if !matches!(&state, State::InFlight(held) if held.holds(lease)) {
            return None;
        }
        let decision = charge.limit.decide(&mut state, now, charge.op);
        overflow.put(charge.key.scope, charge.limit, state, self.past(now));
        Some(decision)
    }

    /// Moves a bucket's state to the table of its current denominator. Needed only after a limit
    /// with a denominator above 1,024 has been used.
    fn move_to_current_table(&self, print: u64, now: Timestamp, bucket: &Bucket) {
        if is_narrow(bucket) {
            let settled = !self.mixed.load(Ordering::Relaxed) || self.narrow.state(print) != [0];
            if settled || self.wide.state(print) == [0; 2] {
                return;
            }
            let _moving = lock(&self.moving);
            move_state(&self.wide, &self.narrow, bucket, print, now);
        } else {
            self.mixed.store(true, Ordering::Relaxed);
            if self.wide.state(print) != [0; 2] || self.narrow.state(print) == [0] {
                return;
            }
            let _moving = lock(&self.moving);
            move_state(&self.narrow, &self.wide, bucket, print, self.past(now));
        }
    }

    /// Reports denied charges and their states to the charges' observers. Other threads may have
    /// decided since; units that they took only confirm a denial.
    fn report_denials(&self, now: Timestamp, charges: &[Charge<'_>], decisions: &[Decision]) {
        for (charge, decision) in charges.iter().rev().zip(decisions.iter().rev()) {
            if let Some(denied_state) = charge.denied_state
                && !decision.is_allowed()
            {
                let state = self.state(now, charge.key, charge.limit);
                let _ = denied_state.set(DeniedState { state, at: self.time_of(now, charge) });
            }
        }
    }

    fn state(&self, now: Timestamp, key: Key<'_>, limit: &Limit) -> State {
        let print = self.print(key);
        match limit {
            Limit::Bucket(bucket) => {
                self.move_to_current_table(print, now, bucket);
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

/// The part of a hash that is stored; never 0, which marks a free slot.
#[inline(always)]
fn fingerprint(hash: u64) -> u64 {
    (hash & PRINT).max(1 << 5)
}

impl Store for MemoryStore {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        match charges {
            _ if charges.iter().any(|charge| charge.reserving.is_some()) => {
                self.decide_reserving(now, batch, decisions);
            }
            [charge] => decisions.push(self.decide(now, charge)),
            _ if batch.is_all_or_nothing() => {
                self.decide_together(now, charges, |decision| decisions.push(decision));
            }
            _ => self.decide_each(now, charges, |decision| decisions.push(decision)),
        }
        self.report_denials(now, charges, decisions);
        Ok(DecisionSource::Store)
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Ok(self.explain(self.time_of(now, charge), charge.key, charge.limit))
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.wall(local)
    }

    fn is_local(&self) -> bool {
        true
    }
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
    let mut state = Pack::<STATE>::unpack(bucket, words);
    if TO_STATE == 1 && state.full_at.part >= NARROW_DENOMINATOR {
        // Rounds up by less than one tick, as every decision under this limit does.
        state.full_at = Moment { ticks: state.full_at.ticks + 1, part: 0 };
    }
    let moved = Pack::<TO_STATE>::pack(bucket, &state);
    let begin = Begin(Change { state: moved, class: debt::DENYING });
    if to.update(print, now, &begin).is_some() {
        from.update(print, now, &End);
    }
}
