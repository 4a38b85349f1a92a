//! One bucket of the table: a few slots, and one lock bit that guards them all.
//!
//! ```text
//!   word 0 … SLOTS-1   who: 59 bits of keyed hash | 3 bits debt class | 2 bits
//!   the rest           what: STATE words for each slot
//! ```
//!
//! The 2 lowest bits belong to the bucket, not to the slot. Slot 0 carries the lock. Slots 1 to 3
//! carry the *reach*: how many buckets after this one its keys may be in.

use super::debt;
use crate::sync::{AtomicU64, Ordering, pause};

/// The fingerprint bits of a word; all zero for a free slot.
pub(super) const PRINT: u64 = !0b1_1111;
const CLASS: u64 = 0b1_1100;
const CLASS_SHIFT: u32 = 2;
const LOCK: u64 = 0b1;
const REACH: u64 = 0b11;

/// The first state word of a slot that a batch has reserved for a key, while its class is denying.
pub(super) const KEPT_FREE: u64 = 1 << super::table::FLAG_BITS;

/// The largest distance of a key from its home bucket.
pub(super) const MAX_REACH: u32 = 63;

/// The words of a bucket.
pub(super) type Words<const WORDS: usize> = [AtomicU64; WORDS];

/// The slot that holds `print`, read without the lock.
#[expect(clippy::manual_find, clippy::needless_range_loop, reason = "iterators are not unrolled")]
#[inline(always)]
pub(super) fn find<const SLOTS: usize, const WORDS: usize>(
    words: &Words<WORDS>,
    print: u64,
) -> Option<usize> {
    for slot in 0..SLOTS {
        if (words[slot].load(Ordering::Relaxed) ^ print) & PRINT == 0 {
            return Some(slot);
        }
    }
    None
}

/// The reach of this bucket, read without the lock. Its bits are in three words, so the value may
/// mix an old and a new reach.
#[inline]
pub(super) fn reach<const WORDS: usize>(words: &Words<WORDS>) -> u32 {
    let bits = |slot: usize| (words[slot].load(Ordering::Relaxed) & REACH) as u32;
    bits(1) | bits(2) << 2 | bits(3) << 4
}

#[cold]
#[inline(never)]
fn reclass(word: u64, class: u64) -> u64 {
    word & !CLASS | class << CLASS_SHIFT
}

/// A locked bucket. Dropping it unlocks.
#[derive(Debug)]
pub(super) struct Locked<'a, const SLOTS: usize, const STATE: usize, const WORDS: usize> {
    words: &'a Words<WORDS>,
    /// Slot 0's word without the lock bit; written back on unlock.
    first: u64,
}

impl<'a, const SLOTS: usize, const STATE: usize, const WORDS: usize>
    Locked<'a, SLOTS, STATE, WORDS>
{
    const BASE: usize = WORDS - SLOTS * STATE;

    /// Tries once to lock the bucket.
    #[inline(always)]
    pub(super) fn try_new(words: &'a Words<WORDS>) -> Option<Self> {
        let first = words[0].load(Ordering::Relaxed) & !LOCK;
        words[0]
            .compare_exchange(first, first | LOCK, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            // Lazy, because a guard that is created and dropped would unlock a lock that another
            // thread holds.
            .then(|| Self { words, first })
    }

    #[inline(always)]
    pub(super) fn new(words: &'a Words<WORDS>) -> Self {
        match Self::try_new(words) {
            Some(locked) => locked,
            None => Self::contended(words),
        }
    }

    #[cold]
    #[inline(never)]
    fn contended(words: &'a Words<WORDS>) -> Self {
        let mut attempt = 0;
        loop {
            if words[0].load(Ordering::Relaxed) & LOCK == 0
                && let Some(locked) = Self::try_new(words)
            {
                return locked;
            }
            pause(attempt);
            attempt = attempt.saturating_add(1);
        }
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> u64 {
        if slot == 0 { self.first } else { self.words[slot].load(Ordering::Relaxed) }
    }

    #[inline(always)]
    fn set_word(&mut self, slot: usize, word: u64) {
        if slot == 0 {
            self.first = word;
        } else {
            self.words[slot].store(word, Ordering::Relaxed);
        }
    }

    /// The fingerprint in the slot; 0 if it is free.
    #[inline(always)]
    pub(super) fn print(&self, slot: usize) -> u64 {
        self.word(slot) & PRINT
    }

    pub(super) fn find(&self, print: u64) -> Option<usize> {
        (0..SLOTS).find(|slot| self.print(*slot) == print)
    }

    #[inline(always)]
    pub(super) fn class(&self, slot: usize) -> u64 {
        (self.word(slot) & CLASS) >> CLASS_SHIFT
    }

    /// Sets the slot's debt class. It seldom changes; the branch avoids a store, so that the unlock
    /// need not wait for the class.
    #[inline(always)]
    pub(super) fn set_class(&mut self, slot: usize, class: u64) {
        if self.class(slot) != class {
            let word = reclass(self.word(slot), class);
            self.set_word(slot, word);
        }
    }

    #[inline(always)]
    pub(super) fn state(&self, slot: usize) -> [u64; STATE] {
        std::array::from_fn(|i| self.words[Self::BASE + slot * STATE + i].load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(super) fn set_state(&mut self, slot: usize, state: &[u64; STATE]) {
        for (i, word) in state.iter().enumerate() {
            self.words[Self::BASE + slot * STATE + i].store(*word, Ordering::Relaxed);
        }
    }

    /// Puts `print` into the slot and keeps the bucket's own bits.
    pub(super) fn occupy(&mut self, slot: usize, print: u64, class: u64, state: &[u64; STATE]) {
        let own = self.word(slot) & REACH;
        self.set_word(slot, print | class << CLASS_SHIFT | own);
        self.set_state(slot, state);
    }

    /// A free slot, or one whose state is idle at `idle_below`.
    pub(super) fn vacancy(&self, idle_below: u64) -> Option<usize> {
        (0..SLOTS).find(|slot| {
            let idle = self.state(*slot)[0] <= idle_below && !self.is_kept_free(*slot);
            self.print(*slot) == 0 || idle
        })
    }

    /// Whether a batch has reserved this slot.
    pub(super) fn is_kept_free(&self, slot: usize) -> bool {
        self.state(slot)[0] == KEPT_FREE && self.class(slot) == debt::DENYING
    }

    pub(super) fn reach(&self) -> u32 {
        reach(self.words)
    }

    /// Allows keys of this bucket to be up to `distance` buckets after it.
    pub(super) fn extend_reach(&mut self, distance: u32) {
        if distance <= self.reach() {
            return;
        }
        for slot in 1..4 {
            let bits = u64::from(distance >> (2 * (slot - 1))) & REACH;
            let word = self.word(slot as usize) & !REACH | bits;
            self.set_word(slot as usize, word);
        }
    }

    /// Frees every slot and sets the reach to 0.
    pub(super) fn clear(&mut self) {
        for slot in 0..SLOTS {
            self.set_word(slot, 0);
        }
    }
}

impl<const SLOTS: usize, const STATE: usize, const WORDS: usize> Drop
    for Locked<'_, SLOTS, STATE, WORDS>
{
    #[inline(always)]
    fn drop(&mut self) {
        self.words[0].store(self.first, Ordering::Release);
    }
}
