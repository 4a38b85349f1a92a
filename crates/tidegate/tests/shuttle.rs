//! The table's primitives under schedules that a scheduler chooses.
//!
//! ```text
//! RUSTFLAGS="--cfg tidegate_shuttle" cargo test -p tidegate --test shuttle --target-dir target/shuttle
//! ```
//!
//! A failure prints its schedule; `shuttle::replay` runs it again.

#![cfg(tidegate_shuttle)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use tidegate::concurrency::{Class, ConcurrencyLimiter, Outcome, ShedReason};
use tidegate::store::Charge;
use tidegate::store::memory::MemoryStore;
use tidegate::{Decision, Hashing, Key, Limit, ManualClock, Op, Rate, Scope, Span, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);
/// A few dozen slots: small enough to grow, and to be full, within a schedule.
const TINY: u64 = 2_048;

/// A store of one limit; keys are numbers.
struct Town {
    store: MemoryStore,
    limit: Limit,
    scope: Scope,
    /// Where keys lie differs from one schedule to the next.
    salt: u64,
}

impl Town {
    fn new(bytes: u64, limit: Limit) -> Arc<Self> {
        let store = MemoryStore::new(bytes, Hashing::Fast).unwrap();
        let scope = Scope::new("town", &limit);
        Arc::new(Self { store, limit, scope, salt: thread_rng().gen_range(0..1 << 40) })
    }

    fn text(&self, key: u64) -> [u8; 8] {
        (self.salt + key).to_le_bytes()
    }

    fn ask(&self, key: u64, op: Op) -> Decision {
        let text = self.text(key);
        let key = Key::new(self.scope, &text);
        self.store.decide(NOW, &Charge::new(key, &self.limit, op))
    }

    fn take(&self, key: u64) -> u64 {
        self.ask(key, Op::Take(1)).is_allowed().into()
    }

    /// One unit of each key, or of none.
    fn take_together(&self, keys: &[u64]) -> u64 {
        let texts: Vec<[u8; 8]> = keys.iter().map(|key| self.text(*key)).collect();
        let charge = |text| Charge::new(Key::new(self.scope, text), &self.limit, Op::Take(1));
        let charges: Vec<Charge<'_>> = texts.iter().map(|text| charge(text)).collect();
        self.store.decide_together(NOW, &charges, |_| {}).into()
    }

    fn consumed(&self, key: u64) -> u64 {
        let decision = self.ask(key, Op::Read(0));
        decision.limit - decision.remaining
    }
}

fn bucket(burst: u64) -> Limit {
    Limit::token_bucket(Rate::per_day(1)).burst(burst).build().unwrap()
}

fn window(limit: u64) -> Limit {
    Limit::fixed_window(Rate::per_day(limit)).build().unwrap()
}

/// Random schedules, and schedules with few but nasty changes of thread.
fn explore(schedules: usize, scenario: impl Fn() + Clone + Send + Sync + 'static) {
    shuttle::check_random(scenario.clone(), schedules);
    shuttle::check_pct(scenario, schedules / 2, 3);
}

/// Runs all at once and adds up what they admitted.
fn together<F: FnOnce() -> u64 + Send + 'static>(work: Vec<F>) -> u64 {
    let threads: Vec<_> = work.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

#[test]
fn threads_on_one_key_admit_exactly_what_there_is() {
    for limit in [bucket(3), window(3)] {
        explore(3_000, move || {
            let town = Town::new(TINY, limit);
            assert_eq!(town.take(7), 1);
            let work =
                (0..3).map(|_| Arc::clone(&town)).map(|town| move || town.take(7) + town.take(7));
            assert_eq!(together(work.collect()), 2);
        });
    }
}

#[test]
fn a_key_that_several_threads_add_at_once_is_added_once() {
    for limit in [bucket(2), window(2)] {
        explore(3_000, move || {
            let town = Town::new(TINY, limit);
            let work = (0..3_u64).map(|thread| {
                let town = Arc::clone(&town);
                move || {
                    // Neighbours come at the same time.
                    assert_eq!(town.take(100 + thread), 1);
                    town.take(7)
                }
            });
            assert_eq!(together(work.collect()), 2);
            assert_eq!((town.consumed(7), town.store.stats().keys), (2, 4));
        });
    }
}

/// Opposite orders, one key twice, new keys: no deadlock, and never torn.
#[test]
fn overlapping_batches_are_never_torn() {
    for limit in [bucket(2), window(2)] {
        explore(3_000, move || {
            let town = Town::new(TINY, limit);
            let batches: [&[u64]; 3] = [&[1, 2], &[2, 1, 3], &[3, 3, 1]];
            let work = batches.map(|keys| {
                let town = Arc::clone(&town);
                move || town.take_together(keys) << (8 * keys.len() + keys[0] as usize)
            });
            let admitted = together(work.into());
            let times = |batch: usize, key: u64| {
                let keys = batches[batch];
                let passed = admitted >> (8 * keys.len() + keys[0] as usize) & 1;
                passed * keys.iter().filter(|other| **other == key).count() as u64
            };
            for key in 1..=3 {
                let expected: u64 = (0..3).map(|batch| times(batch, key)).sum();
                assert_eq!(town.consumed(key), expected, "key {key}, {admitted:#b}");
            }
            assert_eq!(town.store.stats().overflowed, 0);
        });
    }
}

#[test]
fn a_batch_and_single_charges_share_a_key_exactly() {
    explore(3_000, || {
        let town = Town::new(TINY, bucket(2));
        let singles = Arc::clone(&town);
        let single = thread::spawn(move || [singles.take(1), singles.take(2)]);
        let batches = Arc::clone(&town);
        let batch =
            thread::spawn(move || batches.take_together(&[2, 1]) + batches.take_together(&[1, 2]));
        let (single, batch) = (single.join().unwrap(), batch.join().unwrap());
        assert_eq!([town.consumed(1), town.consumed(2)], [single[0] + batch, single[1] + batch]);
        assert!(batch >= 1, "there was room for one batch in every order");
    });
}

/// A town of so many keys that has not grown yet, and its bytes. Keys that happen to lie close together may
/// need room before there are so many: then there is another town, where they lie elsewhere.
fn nearly_full(limit: Limit, keys: u64) -> (Arc<Town>, u64) {
    const TRIES: usize = 100;
    let town = || {
        let town = Town::new(TINY, limit);
        let bytes = (town.take(0), town.store.stats().bytes).1;
        let taken: u64 = (1..keys).map(|key| town.take(key)).sum();
        assert_eq!(taken, keys - 1);
        (town.store.stats().bytes == bytes).then_some((town, bytes))
    };
    (0..TRIES).find_map(|_| town()).unwrap()
}

/// Growing moves all keys while other threads decide; no key is lost.
#[test]
fn a_shard_that_grows_under_decisions_loses_nothing() {
    for (limit, keys) in [(bucket(2), 26), (window(2), 33)] {
        explore(1_200, move || {
            let (town, bytes) = nearly_full(limit, keys - 2);
            let work = (0..3_u64).map(|thread| {
                let town = Arc::clone(&town);
                move || match thread {
                    0 => (keys..keys + 6).map(|key| town.take(key)).sum(),
                    1 => town.take(3) + town.take(3) + town.take_together(&[4, keys + 7]),
                    _ => town.take(3) + town.take(5) + town.take(5),
                }
            });
            assert_eq!(together(work.collect()), 6 + 1 + 1 + 1);
            assert!(town.store.stats().bytes > bytes, "the shard did not grow");
            let consumed: Vec<u64> = (0..keys - 2).map(|key| town.consumed(key)).collect();
            let expected: Vec<u64> =
                (0..keys - 2).map(|key| if (3..=5).contains(&key) { 2 } else { 1 }).collect();
            assert_eq!(consumed, expected);
            assert_eq!(town.store.stats().evicted, 0);
        });
    }
}

/// Where nothing can grow, a key in denial is never the one to go.
#[test]
fn eviction_never_takes_a_key_that_denies() {
    for limit in [bucket(2), window(2)] {
        explore(1_000, move || {
            let town = Town::new(1_024, limit);
            assert_eq!(town.take(0) + town.take(0), 2);
            let mut key = 1;
            while town.store.stats().evicted == 0 {
                assert_eq!(town.take(key), 1);
                key += 1;
            }
            let work = (0..3_u64).map(|thread| {
                let town = Arc::clone(&town);
                move || match thread {
                    0 => (key..key + 6).map(|key| town.take(key)).sum::<u64>() - 6,
                    1 => (0..4).map(|_| town.take(0)).sum(),
                    _ => town.take_together(&[0, key + 10]) + town.take_together(&[key + 11, 0]),
                }
            });
            assert_eq!(together(work.collect()), 0);
            assert_eq!(town.consumed(0), 2);
            let stats = town.store.stats();
            assert_eq!((stats.overflowed, stats.evicted), (0, stats.evicted_units));
        });
    }
}

/// Numbers that change tables for a key while others decide by the new ones.
#[test]
fn a_state_that_changes_tables_is_moved_once() {
    let wide = Rate::new(1_031, Span::from_secs(300_001));
    let wide = Limit::token_bucket(wide).burst(3).build().unwrap();
    explore(2_000, move || {
        let town = Town::new(TINY, bucket(3));
        assert_eq!(town.take(1), 1);
        let work = (0..3).map(|_| {
            let town = Arc::clone(&town);
            move || {
                let text = town.text(1);
                let key = Key::new(town.scope, &text);
                let charge = Charge::new(key, &wide, Op::Take(1));
                (0..2).filter(|_| town.store.decide(NOW, &charge).is_allowed()).count() as u64
            }
        });
        // A day of debt is more than two of the new intervals: all of the bucket.
        assert_eq!(together(work.collect()), 0);
    });
}

/// Two permits for three threads.
#[test]
fn ov_01_a_concurrency_limit_is_never_exceeded() {
    explore(3_000, || {
        let limiter = ConcurrencyLimiter::fixed(2).clock(ManualClock::new()).build();
        let running = Arc::new(AtomicU32::new(0));
        let work = (0..3).map(|_| {
            let (limiter, running) = (limiter.clone(), Arc::clone(&running));
            move || {
                let mut admitted = 0;
                for _ in 0..2 {
                    let Ok(permit) = limiter.try_acquire(Class::CRITICAL) else { continue };
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 2);
                    thread::yield_now();
                    running.fetch_sub(1, Ordering::SeqCst);
                    permit.finish(Outcome::Success);
                    admitted += 1;
                }
                admitted
            }
        });
        let admitted = together(work.collect());
        let stats = limiter.stats();
        assert_eq!(stats.in_flight, 0);
        assert_eq!(stats.sheds(Class::CRITICAL, ShedReason::Limit) + admitted, 6);
    });
}
