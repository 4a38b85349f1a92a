//! Stores states that another store returned.

use tidegate_core::algorithm::bucket::{BucketState, Moment};
use tidegate_core::algorithm::fixed_window::FixedWindowState;
use tidegate_core::algorithm::sliding_window::SlidingWindowState;
use tidegate_core::{Algorithm, Decision, Limit, State, Timestamp};

use super::MemoryStore;
use super::debt;
use super::packing::{Pack, is_narrow};
use super::table::{Change, StateOp};

/// Sets the state of a key, unless the key already owes more.
struct Put<'a, A: Algorithm> {
    algorithm: &'a A,
    state: A::State,
    class: u64,
    merge: fn(A::State, &A::State) -> A::State,
}

impl<A: Pack<STATE>, const STATE: usize> StateOp<STATE> for Put<'_, A> {
    type Answer = ();

    fn run(&self, words: [u64; STATE]) -> ((), Change<STATE>) {
        let state = (self.merge)(self.algorithm.unpack(words), &self.state);
        ((), Change { state: self.algorithm.pack(&state), class: self.class })
    }
}

impl MemoryStore {
    /// Sets the state of the key with this print to one that another store returned, or keeps the
    /// stored state if it owes more. `decision` is the other store's decision; it gives the debt
    /// class. A key without room is not stored.
    pub(crate) fn put(
        &self,
        now: Timestamp,
        print: u64,
        limit: &Limit,
        (state, decision): (State, &Decision),
    ) {
        let class = debt::class(decision);
        match (limit, state) {
            (Limit::Bucket(bucket), State::Bucket(BucketState { full_at })) => {
                self.move_to_current_table(print, now, bucket);
                // Rounded up by less than a tick, as for a bucket with another denominator.
                let ticks = full_at.ticks + u64::from(full_at.part > 0);
                let state = BucketState { full_at: Moment { ticks, part: 0 } };
                let merge = |own: BucketState, other: &BucketState| {
                    if own.full_at > other.full_at { own } else { *other }
                };
                let put = Put { algorithm: bucket, state, class, merge };
                match is_narrow(bucket) {
                    true => self.narrow.update(print, now, &put),
                    false => self.wide.update(print, now, &put),
                };
            }
            (Limit::FixedWindow(algorithm), State::FixedWindow(state)) => {
                let merge = |own: FixedWindowState, other: &FixedWindowState| {
                    if (own.end, own.count) > (other.end, other.count) { own } else { *other }
                };
                self.wide.update(print, now, &Put { algorithm, state, class, merge });
            }
            (Limit::SlidingWindow(algorithm), State::SlidingWindow(state)) => {
                self.wide.update(print, now, &Put { algorithm, state, class, merge: newer_window });
            }
            (limit, state) => self.heap.replace(print, now, limit, (state, decision)),
        }
    }
}

/// The one of two sliding-window states that owes more, with the larger count of the previous
/// window.
fn newer_window(own: SlidingWindowState, other: &SlidingWindowState) -> SlidingWindowState {
    if own.end > other.end {
        return own;
    }
    let (previous, current) = match own.end == other.end {
        true => (own.previous, own.current),
        // Windows before the previous one have no weight.
        false => (own.current, 0),
    };
    let previous = previous.max(other.previous);
    SlidingWindowState { end: other.end, previous, current: current.max(other.current) }
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithm::sliding_log::{Entry, SlidingLogState};
    use tidegate_core::{Op, Rate};

    use super::*;
    use crate::key::{Hashing, Key, Scope};
    use crate::store::Charge;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn store() -> MemoryStore {
        MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).unwrap()
    }

    /// Every family decides on a put state as the store that returned it would.
    #[test]
    fn a_state_that_was_put_is_decided_on() {
        let rate = Rate::per_minute(10);
        for builder in [
            Limit::token_bucket(rate),
            Limit::token_bucket(Rate::per_minute(10_007)).burst(10),
            Limit::fixed_window(rate),
            Limit::sliding_window(rate),
            Limit::sliding_log(rate),
        ] {
            let (limit, store, mut state) = (builder.build().unwrap(), store(), State::default());
            let key = Key::new(Scope::new("put", &limit), b"key");
            let said = limit.decide(&mut state, NOW, Op::Take(10));
            store.put(NOW, store.print(key), &limit, (state.clone(), &said));
            let ours = store.decide(NOW, &Charge::new(key, &limit, Op::Take(1)));
            assert!(!ours.is_allowed(), "{limit:?}");
            assert_eq!(ours.remaining, 0, "{limit:?}");
            // A state that owes less does not replace it.
            let mut state = State::default();
            let said = limit.decide(&mut state, NOW, Op::Take(4));
            store.put(NOW, store.print(key), &limit, (state, &said));
            let ours = store.decide(NOW, &Charge::new(key, &limit, Op::Read(1)));
            assert_eq!(ours.remaining, 0, "{limit:?}");
        }
    }

    #[test]
    fn a_list_that_finds_no_room_is_left_out() {
        let limit = Limit::sliding_log(Rate::per_minute(10_000)).build().unwrap();
        let store = store();
        let entry = |n| Entry { at: NOW.as_micros() - 10_000 + n, weight: 1 };
        for number in 0..100_u64 {
            let text = number.to_le_bytes();
            let key = Key::new(Scope::new("put", &limit), &text);
            let mut state = State::SlidingLog(SlidingLogState::restore((0..500).map(entry)));
            let said = limit.decide(&mut state, NOW, Op::Read(1));
            store.put(NOW, store.print(key), &limit, (state, &said));
        }
        assert!(store.stats().bytes <= MemoryStore::MIN_BYTES * 2, "{:?}", store.stats());
    }
}
