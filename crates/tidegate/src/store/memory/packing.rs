//! States packed into the words of a slot.
//!
//! The upper bits of the first word are the time from which the state equals none, so a free slot
//! can be recognised without knowing its limit. All zeros is the state never seen.

use tidegate_core::Algorithm;
use tidegate_core::algorithm::bucket::{Bucket, BucketState, Moment, Whole};
use tidegate_core::algorithm::fixed_window::{FixedWindow, FixedWindowState};
use tidegate_core::algorithm::sliding_window::{SlidingWindow, SlidingWindowState};

use super::table::{FLAG_BITS, Table};

/// Slots of two words, four per cache line: buckets whose interval has a small denominator.
pub(super) type Narrow = Table<4, 1, 8, 0>;
/// Slots of three words, five per two cache lines: windows, and all other buckets.
pub(super) type Wide = Table<5, 2, 16, FLAGS>;

const FLAGS: u64 = (1 << FLAG_BITS) - 1;

/// The largest denominator that fits beside a time in one word.
pub(super) const NARROW_DENOMINATOR: u64 = 1 << FLAG_BITS;

/// An algorithm whose state fits `STATE` words.
pub(crate) trait Pack<const STATE: usize>: Algorithm {
    fn pack(&self, state: &Self::State) -> [u64; STATE];
    fn unpack(&self, words: [u64; STATE]) -> Self::State;
}

/// An algorithm for the table of narrow slots.
pub(crate) trait PackNarrow: Pack<1> {}
impl<A: Pack<1>> PackNarrow for A {}

/// An algorithm for the table of wide slots.
pub(crate) trait PackWide: Pack<2> {}
impl<A: Pack<2>> PackWide for A {}

/// True if the bucket's state fits one word.
#[inline(always)]
pub(crate) fn is_narrow(bucket: &Bucket) -> bool {
    bucket.denominator() <= NARROW_DENOMINATOR
}

impl Pack<1> for Bucket {
    #[inline(always)]
    fn pack(&self, state: &BucketState) -> [u64; 1] {
        pack_narrow(state)
    }

    #[inline(always)]
    fn unpack(&self, words: [u64; 1]) -> BucketState {
        unpack_narrow(words)
    }
}

impl Pack<1> for Whole {
    #[inline(always)]
    fn pack(&self, state: &BucketState) -> [u64; 1] {
        pack_narrow(state)
    }

    #[inline(always)]
    fn unpack(&self, words: [u64; 1]) -> BucketState {
        unpack_narrow(words)
    }
}

#[inline(always)]
fn pack_narrow(state: &BucketState) -> [u64; 1] {
    [state.full_at.ticks << FLAG_BITS | state.full_at.part]
}

#[inline(always)]
fn unpack_narrow([word]: [u64; 1]) -> BucketState {
    BucketState { full_at: Moment { ticks: word >> FLAG_BITS, part: word & FLAGS } }
}

impl Pack<2> for Bucket {
    #[inline(always)]
    fn pack(&self, state: &BucketState) -> [u64; 2] {
        let Moment { ticks, part } = state.full_at;
        let broken = u64::from(part > 0);
        [(ticks + broken) << FLAG_BITS | broken, part]
    }

    #[inline(always)]
    fn unpack(&self, [time, part]: [u64; 2]) -> BucketState {
        BucketState { full_at: Moment { ticks: (time >> FLAG_BITS) - (time & 1), part } }
    }
}

impl Pack<2> for FixedWindow {
    #[inline(always)]
    fn pack(&self, state: &FixedWindowState) -> [u64; 2] {
        [state.end << FLAG_BITS, state.count]
    }

    #[inline(always)]
    fn unpack(&self, [time, count]: [u64; 2]) -> FixedWindowState {
        FixedWindowState { end: time >> FLAG_BITS, count }
    }
}

/// Set if the newer window has a count, so that the state lives one window longer.
const CURRENT: u64 = 0b100;

impl Pack<2> for SlidingWindow {
    /// Counts go up to 2^32 inclusive; their top bits are among the flags.
    #[inline(always)]
    fn pack(&self, state: &SlidingWindowState) -> [u64; 2] {
        let SlidingWindowState { end, previous, current } = *state;
        let tail = if current > 0 { self.length().as_micros() } else { 0 };
        let flags = (previous >> 32) | (current >> 32) << 1 | u64::from(current > 0) << 2;
        [(end + tail) << FLAG_BITS | flags, previous << 32 | current & 0xffff_ffff]
    }

    #[inline(always)]
    fn unpack(&self, [time, counts]: [u64; 2]) -> SlidingWindowState {
        let tail = if time & CURRENT != 0 { self.length().as_micros() } else { 0 };
        SlidingWindowState {
            end: (time >> FLAG_BITS) - tail,
            previous: (time & 0b01) << 32 | counts >> 32,
            current: (time & 0b10) << 31 | counts & 0xffff_ffff,
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Rate, Span, Timestamp};

    use super::*;

    #[test]
    fn every_state_survives_a_round_trip() {
        let bucket = Bucket::new(Rate::per_second(3), 5).unwrap();
        for (ticks, part) in [(0, 0), (1, 0), (1, 2), (1_800_000_000_000_000, 1), (1 << 53, 2)] {
            let state = BucketState { full_at: Moment { ticks, part } };
            assert_eq!(bucket.unpack(Pack::<1>::pack(&bucket, &state)), state);
            assert_eq!(bucket.unpack(Pack::<2>::pack(&bucket, &state)), state);
        }
        let fixed =
            FixedWindow::new(1 << 52, Span::from_secs(1), Span::ZERO, Default::default()).unwrap();
        for (end, count) in [(0, 0), (1, 0), (1 << 53, 1 << 52)] {
            let state = FixedWindowState { end, count };
            assert_eq!(fixed.unpack(fixed.pack(&state)), state);
        }
        let sliding = SlidingWindow::new(1 << 32, Span::from_secs(1)).unwrap();
        for count in [0, 1, 7, (1 << 32) - 1, 1 << 32] {
            for other in [0, 1, 1 << 32] {
                let end = 1_800_000_000_000_000;
                let state = SlidingWindowState { end, previous: count, current: other };
                assert_eq!(sliding.unpack(sliding.pack(&state)), state);
            }
        }
        assert_eq!(sliding.pack(&SlidingWindowState::default()), [0, 0]);
    }

    #[test]
    fn a_state_is_free_from_the_very_instant_it_is_idle() {
        let now = |micros| Timestamp::from_micros(micros);
        let bucket = Bucket::new(Rate::per_second(3), 5).unwrap();
        let state = BucketState { full_at: Moment { ticks: 50, part: 1 } };
        let [narrow] = Pack::<1>::pack(&bucket, &state);
        assert!(narrow > Narrow::idle_below(now(50)));
        assert!(narrow <= Narrow::idle_below(now(51)));
        let [wide, _] = Pack::<2>::pack(&bucket, &state);
        assert!(wide > Wide::idle_below(now(50)));
        assert!(wide <= Wide::idle_below(now(51)));
        let whole = BucketState { full_at: Moment { ticks: 50, part: 0 } };
        assert!(Pack::<1>::pack(&bucket, &whole)[0] <= Narrow::idle_below(now(50)));
        assert!(Pack::<1>::pack(&bucket, &whole)[0] > Narrow::idle_below(now(49)));
        assert!(Pack::<2>::pack(&bucket, &whole)[0] <= Wide::idle_below(now(50)));
        assert!(Pack::<2>::pack(&bucket, &whole)[0] > Wide::idle_below(now(49)));
    }
}
