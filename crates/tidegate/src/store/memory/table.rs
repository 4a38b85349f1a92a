//! The table: maps fingerprints to states, with one cache line per lookup.
//!
//! Keys are not stored: a slot holds 59 bits of a keyed hash and the packed state. The hash selects
//! a shard and, within it, a home bucket. A key whose home is full is stored a few buckets further
//! on; the home's *reach* limits the search. Shards grow separately, a few rows at a time:
//!
//! ```text
//!           shard 0    shard 1    shard 2   …
//!   row 0   8 buckets  8 buckets  8 buckets      a shard's bucket i lies in row i / 8;
//!   row 1   8 buckets  8 buckets                 memory is touched row by row, front to back,
//!   row 2   8 buckets                            and a bucket never moves
//! ```
//!
//! A decision takes one lock bit, which is in the cache line it loads anyway. Locks are taken in
//! ascending order or only tried. The lock of the home is held while a key is added, so no key is
//! added twice; growth holds all locks of its shard.

use std::hint::black_box;
use std::io;
use std::sync::Arc;

use tidegate_core::Timestamp;

use super::arena::Arena;
use super::budget::{Budget, Purpose};
use super::debt;
use super::slots::{self, Locked, Words};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Buckets by which a shard grows at a time.
pub(super) const CHUNK: u32 = 8;
/// Words in a cache line.
const LINE: usize = 8;
/// The most bits of a fingerprint that select a shard.
const MAX_SHARD_BITS: u32 = 14;
/// Low bits of the first state word that are not time.
pub(super) const FLAG_BITS: u32 = 10;

/// A table with `SLOTS` slots of `STATE` words in each bucket of `WORDS` words.
///
/// The upper bits of the first state word are a time: once it has passed, the slot is idle and
/// therefore free. `LATEST_FLAGS` are the low bits that the word may carry and still have passed.
#[derive(Debug)]
pub(super) struct Table<
    const SLOTS: usize,
    const STATE: usize,
    const WORDS: usize,
    const LATEST_FLAGS: u64,
> {
    pub(super) arena: Arena,
    pub(super) budget: Arc<Budget>,
    /// Buckets per row: as many for each shard as it grows by at a time.
    row_buckets: usize,
    /// Number of home buckets of each shard. Small, because every lookup reads it.
    homes: Box<[AtomicU32]>,
    pub(super) shards: Box<[Shard]>,
    /// Rows that may be touched; further ones are reserved in the budget.
    pub(super) rows: AtomicU32,
    pub(super) most_rows: u32,
    pub(super) losses: Losses,
}

/// Fields of a shard that only inserts and growth use.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) buckets: AtomicU32,
    /// Occupied slots, idle or not.
    pub(super) used: AtomicU32,
    /// No more memory is available.
    pub(super) capped: AtomicBool,
}

/// Evictions and the units lost with them.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) evicted: AtomicU64,
    pub(super) evicted_units: AtomicU64,
}

impl Losses {
    pub(super) fn forget(&self, class: u64) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.evicted_units.fetch_add(debt::most_units(class), Ordering::Relaxed);
    }
}

/// The state and class that a decision leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<const STATE: usize> {
    pub(super) state: [u64; STATE],
    pub(super) class: u64,
}

/// An operation on a state. A trait and not a closure, because the compiler does not inline a
/// closure that is called in three places.
pub(super) trait StateOp<const STATE: usize> {
    type Answer;

    /// Returns the answer for a state (all zeros if there is none), and the change. Called again if
    /// the change could not be stored.
    fn run(&self, state: [u64; STATE]) -> (Self::Answer, Change<STATE>);
}

/// Sets the state of a key that has none.
pub(super) struct Begin<const STATE: usize>(pub(super) Change<STATE>);

impl<const STATE: usize> StateOp<STATE> for Begin<STATE> {
    type Answer = ();

    fn run(&self, state: [u64; STATE]) -> ((), Change<STATE>) {
        // Denying until the next decision sets the class.
        let kept = Change { state, class: debt::DENYING };
        ((), if state == [0; STATE] { self.0 } else { kept })
    }
}

/// Deletes the state of a key.
pub(super) struct End;

impl<const STATE: usize> StateOp<STATE> for End {
    type Answer = ();

    fn run(&self, _state: [u64; STATE]) -> ((), Change<STATE>) {
        ((), Change { state: [0; STATE], class: 0 })
    }
}

/// The home bucket of a key while the shard has `homes` home buckets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home<'a> {
    pub(super) shard: u32,
    pub(super) bucket: u32,
    homes: u32,
    current: &'a AtomicU32,
}

impl Home<'_> {
    /// False if the shard has grown meanwhile. Must be called under a lock of the shard.
    #[inline(always)]
    pub(super) fn is_current(&self) -> bool {
        self.current.load(Ordering::Acquire) == self.homes
    }
}

impl<const SLOTS: usize, const STATE: usize, const WORDS: usize, const LATEST_FLAGS: u64>
    Table<SLOTS, STATE, WORDS, LATEST_FLAGS>
{
    /// A table of at most `max_bytes`, reserved in `budget` as it grows.
    pub(super) fn new(max_bytes: u64, budget: Arc<Budget>) -> io::Result<Self> {
        let shard_bits = Self::shard_bits(max_bytes);
        let shards = 1_u64 << shard_bits;
        let row_bytes = Self::row_bytes(shard_bits);
        let most_rows = u32::try_from(max_bytes / row_bytes).unwrap_or(u32::MAX).max(1);
        let words = u64::from(most_rows) * row_bytes / size_of::<u64>() as u64;
        let words = usize::try_from(words).map_err(io::Error::other)?;
        let table = Self {
            arena: Arena::new(words)?,
            budget,
            row_buckets: (CHUNK as usize) << shard_bits,
            homes: (0..shards).map(|_| AtomicU32::new(Self::homes_of(CHUNK))).collect(),
            shards: (0..shards).map(|_| Shard::new()).collect(),
            rows: AtomicU32::new(1),
            most_rows,
            losses: Losses::default(),
        };
        match table.budget.reserve(row_bytes, Purpose::Table) {
            true => Ok(table),
            false => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
        }
    }

    /// The number of bits that select a shard. A full shard is at most 2 MiB, for up to 1 GiB in
    /// total. Growth copies a shard while its keys wait, so shards should be small; the fullest
    /// shard determines the number of rows, so there should be few.
    fn shard_bits(max_bytes: u64) -> u32 {
        let log = max_bytes.max(1).ilog2();
        log.saturating_sub(18).min(log.saturating_sub(21).clamp(9, MAX_SHARD_BITS))
    }

    /// Temporary memory of a growing shard: a copy of its slots, and a list of its locks.
    pub(super) fn scratch_bytes(max_bytes: u64) -> u64 {
        (max_bytes >> Self::shard_bits(max_bytes)) * 3
    }

    const fn row_bytes(shard_bits: u32) -> u64 {
        (CHUNK as u64 * WORDS as u64 * size_of::<u64>() as u64) << shard_bits
    }

    pub(super) fn bytes_per_row(&self) -> u64 {
        (self.row_buckets * WORDS * size_of::<u64>()) as u64
    }

    /// Home buckets of a shard with `buckets` buckets; the last few buckets only take overflow.
    pub(super) fn homes_of(buckets: u32) -> u32 {
        buckets - (buckets / 32).clamp(3, slots::MAX_REACH)
    }

    /// The largest first state word that is idle at `now`.
    #[inline(always)]
    pub(super) fn idle_below(now: Timestamp) -> u64 {
        now.as_micros() << FLAG_BITS | LATEST_FLAGS
    }

    #[inline(always)]
    pub(super) fn shard_of(&self, print: u64) -> u32 {
        (print >> (64 - MAX_SHARD_BITS)) as u32 & (self.homes.len() - 1) as u32
    }

    #[inline(always)]
    pub(super) fn home_among(print: u64, homes: u32) -> u32 {
        let rest = print << MAX_SHARD_BITS >> 32;
        ((rest * u64::from(homes)) >> 32) as u32
    }

    #[inline(always)]
    pub(super) fn home(&self, print: u64) -> Home<'_> {
        let shard = self.shard_of(print);
        let current = &self.homes[shard as usize];
        // Acquire: the buckets that a growth added are visible.
        let homes = current.load(Ordering::Acquire);
        Home { shard, bucket: Self::home_among(print, homes), homes, current }
    }

    pub(super) fn publish_homes(&self, shard: u32, homes: u32) {
        self.homes[shard as usize].store(homes, Ordering::Release);
    }

    #[inline(always)]
    pub(super) fn words(&self, shard: u32, bucket: u32) -> &Words<WORDS> {
        let (row, column) = (bucket / CHUNK, bucket % CHUNK);
        let index = row as usize * self.row_buckets + (shard * CHUNK + column) as usize;
        &self.arena.words().as_chunks::<WORDS>().0[index]
    }

    #[inline(always)]
    pub(super) fn lock(&self, shard: u32, bucket: u32) -> Locked<'_, SLOTS, STATE, WORDS> {
        Locked::new(self.words(shard, bucket))
    }

    /// The key's home bucket. Reading a word of it prefetches its memory.
    #[inline(always)]
    pub(super) fn home_line(&self, print: u64) -> &Words<WORDS> {
        let home = self.home(print);
        self.words(home.shard, home.bucket)
    }

    /// The reach of `home`, cut at the end of the shard.
    fn reach(&self, home: Home<'_>) -> u32 {
        let last = self.shards[home.shard as usize].buckets.load(Ordering::Relaxed) - 1;
        let room = last.saturating_sub(home.bucket);
        slots::reach(self.words(home.shard, home.bucket)).min(room)
    }

    /// Runs `op` on the state of `print` if the key is in its home bucket, as nearly all are. All
    /// calls are inlined, so that the answer stays in registers.
    #[inline(always)]
    pub(super) fn update_at_home<A: StateOp<STATE>>(
        &self,
        print: u64,
        op: &A,
    ) -> Option<A::Answer> {
        let home = self.home(print);
        let words = self.words(home.shard, home.bucket);
        if WORDS > LINE {
            // The states are in the next cache line: prefetch both at once.
            black_box(words[WORDS - 1].load(Ordering::Relaxed));
        }
        let slot = slots::find::<SLOTS, WORDS>(words, print)?;
        let locked = Locked::<SLOTS, STATE, WORDS>::new(words);
        if locked.print(slot) != print || !home.is_current() {
            return None;
        }
        Some(apply(locked, slot, op))
    }

    /// Runs `op` on the state of `print` (all zeros if it has none) and stores the change.
    ///
    /// `None` if the key has no slot and every slot it could have is denying.
    pub(super) fn update<A: StateOp<STATE>>(
        &self,
        print: u64,
        now: Timestamp,
        op: &A,
    ) -> Option<A::Answer> {
        self.update_at_home(print, op).or_else(|| self.update_away(print, now, op))
    }

    /// Like [`Self::update`], for a key that was not found in its home bucket.
    pub(super) fn update_away<A: StateOp<STATE>>(
        &self,
        print: u64,
        now: Timestamp,
        op: &A,
    ) -> Option<A::Answer> {
        let home = self.home(print);
        for distance in 1..=self.reach(home) {
            let words = self.words(home.shard, home.bucket + distance);
            if let Some(slot) = slots::find::<SLOTS, WORDS>(words, print) {
                let locked = Locked::<SLOTS, STATE, WORDS>::new(words);
                if locked.print(slot) == print && home.is_current() {
                    return Some(apply(locked, slot, op));
                }
                break;
            }
        }
        self.update_or_add(print, now, op)
    }

    #[cold]
    #[inline(never)]
    fn update_or_add<A: StateOp<STATE>>(
        &self,
        print: u64,
        now: Timestamp,
        op: &A,
    ) -> Option<A::Answer> {
        loop {
            let home = self.home(print);
            let mut at_home = self.lock(home.shard, home.bucket);
            if !home.is_current() {
                continue;
            }
            match self.seek(home, &at_home, print) {
                Seek::AtHome(slot) => return Some(apply(at_home, slot, op)),
                Seek::Away(locked, slot) => return Some(apply(locked, slot, op)),
                Seek::Absent => {}
            }
            let (answer, change) = op.run([0; STATE]);
            if change.state == [0; STATE] {
                return Some(answer);
            }
            match self.find_slot(home, &mut at_home, now) {
                FreeSlot::AtHome(slot) => {
                    at_home.occupy(slot, print, change.class, &change.state);
                }
                FreeSlot::Away(mut locked, slot) => {
                    locked.occupy(slot, print, change.class, &change.state);
                }
                FreeSlot::Crowded => {
                    drop(at_home);
                    self.grow(home, now, Growth::Needed);
                    continue;
                }
                FreeSlot::AllDenying => return None,
            }
            drop(at_home);
            self.grow_if_full(home, now);
            return Some(answer);
        }
    }

    /// The state of `print`; all zeros if it has none.
    pub(super) fn state(&self, print: u64) -> [u64; STATE] {
        loop {
            let home = self.home(print);
            let at_home = self.lock(home.shard, home.bucket);
            if home.is_current() {
                return match self.seek(home, &at_home, print) {
                    Seek::AtHome(slot) => at_home.state(slot),
                    Seek::Away(locked, slot) => locked.state(slot),
                    Seek::Absent => [0; STATE],
                };
            }
        }
    }

    /// The bucket and slot where `print` seems to be, read without a lock.
    #[inline(always)]
    pub(super) fn peek_slot(&self, print: u64) -> Option<(Home<'_>, u32, usize)> {
        let home = self.home(print);
        let words = self.words(home.shard, home.bucket);
        if let Some(slot) = slots::find::<SLOTS, WORDS>(words, print) {
            return Some((home, home.bucket, slot));
        }
        (1..=self.reach(home)).find_map(|distance| {
            let bucket = home.bucket + distance;
            let slot = slots::find::<SLOTS, WORDS>(self.words(home.shard, bucket), print)?;
            Some((home, bucket, slot))
        })
    }

    /// Gives `print` a slot with an empty state if it has none. False if there is no room.
    pub(super) fn ensure(&self, print: u64, now: Timestamp) -> bool {
        let mut long_past = [0; STATE];
        long_past[0] = slots::KEPT_FREE;
        // Occupied until the batch releases it; otherwise two new keys of one batch could evict
        // each other for ever.
        let begin = Begin(Change { state: long_past, class: debt::DENYING });
        self.update(print, now, &begin).is_some()
    }

    /// Occupied slots, idle or not.
    pub(super) fn keys(&self) -> u64 {
        self.shards.iter().map(|shard| u64::from(shard.used.load(Ordering::Relaxed))).sum()
    }

    /// Searches `print` while its home is locked, so that no other thread can add it meanwhile.
    pub(super) fn seek<'a>(
        &'a self,
        home: Home<'_>,
        at_home: &Locked<'a, SLOTS, STATE, WORDS>,
        print: u64,
    ) -> Seek<'a, SLOTS, STATE, WORDS> {
        if let Some(slot) = at_home.find(print) {
            return Seek::AtHome(slot);
        }
        for distance in 1..=at_home.reach() {
            let words = self.words(home.shard, home.bucket + distance);
            if slots::find::<SLOTS, WORDS>(words, print).is_some() {
                let locked = Locked::<SLOTS, STATE, WORDS>::new(words);
                if let Some(slot) = locked.find(print) {
                    return Seek::Away(locked, slot);
                }
            }
        }
        Seek::Absent
    }
}

impl Shard {
    fn new() -> Self {
        Self {
            buckets: AtomicU32::new(CHUNK),
            used: AtomicU32::new(0),
            capped: AtomicBool::new(false),
        }
    }
}

/// The result of a search.
pub(super) enum Seek<'a, const SLOTS: usize, const STATE: usize, const WORDS: usize> {
    AtHome(usize),
    Away(Locked<'a, SLOTS, STATE, WORDS>, usize),
    Absent,
}

/// A slot for a new key.
pub(super) enum FreeSlot<'a, const SLOTS: usize, const STATE: usize, const WORDS: usize> {
    AtHome(usize),
    Away(Locked<'a, SLOTS, STATE, WORDS>, usize),
    /// No slot, but the shard may grow.
    Crowded,
    /// No slot, and no key nearby may be evicted.
    AllDenying,
}

/// Why a shard grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// There is no room for a key.
    Needed,
    /// Most slots are used; many of them may be idle.
    Full,
}

#[inline(always)]
fn apply<A: StateOp<STATE>, const SLOTS: usize, const STATE: usize, const WORDS: usize>(
    mut locked: Locked<'_, SLOTS, STATE, WORDS>,
    slot: usize,
    op: &A,
) -> A::Answer {
    let before = locked.state(slot);
    let (answer, change) = op.run(before);
    if change.state != before {
        locked.set_state(slot, &change.state);
    }
    locked.set_class(slot, change.class);
    answer
}
