//! A table that grows, or reuses idle slots, loses no key with debt.

use fastrand::Rng;
use tidegate::store::Charge;
use tidegate::store::memory::MemoryStore;
use tidegate::{Decision, Hashing, Key, Limit, Op, Rate, Scope, Span, Timestamp};

use crate::reference::{Asked, Reference};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

fn decide(store: &MemoryStore, now: Timestamp, asked: &Asked) -> Decision {
    let scope = Scope::new(&asked.id.0.to_string(), &asked.limit);
    let text = asked.id.1.to_le_bytes();
    let key = Key::new(scope, &text);
    store.decide(now, &Charge::new(key, &asked.limit, asked.op))
}

fn store() -> MemoryStore {
    MemoryStore::new(256 << 20, Hashing::Fast).unwrap()
}

/// Adds keys one by one and asks for old ones in between.
fn grow(limits: &[Limit], keys: u64, seed: u64) {
    let (store, mut reference, mut rng) = (store(), Reference::default(), Rng::with_seed(seed));
    let mut now = START;
    let mut check = |now: Timestamp, asked: &Asked| {
        let answer = decide(&store, now, asked);
        let compared = reference.decide(now, asked, &answer);
        assert_eq!(compared, Ok(()), "seed {seed}, {asked:?} answered {answer:?}");
    };
    for key in 0..keys {
        now = now + Span::from_micros(rng.u64(0..3));
        let subject = rng.usize(0..limits.len());
        let new = Asked { id: (subject, key), limit: limits[subject], op: Op::Take(rng.u64(1..4)) };
        check(now, &new);
        let (subject, key) = (rng.usize(0..limits.len()), rng.u64(0..=key));
        let op = if rng.bool() { Op::Take(1) } else { Op::Read(1) };
        check(now, &Asked { id: (subject, key), limit: limits[subject], op });
    }
    for key in 0..keys {
        for (subject, limit) in limits.iter().enumerate() {
            check(now, &Asked { id: (subject, key), limit: *limit, op: Op::Read(1) });
        }
    }
    let stats = store.stats();
    assert_eq!((stats.evicted, stats.overflowed), (0, 0));
    assert!(stats.keys >= keys, "{} keys", stats.keys);
}

#[test]
fn a_growing_table_of_buckets_keeps_every_state() {
    let bucket = |rate| Limit::token_bucket(rate).burst(5).build().unwrap();
    grow(&[bucket(Rate::per_hour(100)), bucket(Rate::per_hour(7))], 120_000, 1);
}

#[test]
fn a_growing_table_of_windows_keeps_every_state() {
    let limits = [
        Limit::fixed_window(Rate::per_day(5)),
        Limit::sliding_window(Rate::per_day(5)),
        Limit::token_bucket(Rate::new(1_031, Span::from_secs(300_001))).burst(5),
    ];
    grow(&limits.map(|limit| limit.build().unwrap()), 120_000, 2);
}

#[test]
fn a_growing_heap_keeps_every_state() {
    let log = Limit::sliding_log(Rate::per_day(5)).build().unwrap();
    grow(&[log, Limit::in_flight(5, Span::from_secs(86_400)).unwrap()], 40_000, 3);
}

/// Takes `cost` for many keys at `START`. At `idle` minus one tick many others come; all of the
/// first still count. From `idle` on none does, and its slot is free.
fn reuse(limit: Limit, cost: u64, idle: Timestamp) {
    const KEYS: u64 = 30_000;
    let store = store();
    let ask = |now, key, op| decide(&store, now, &Asked { id: (0, key), limit, op });
    let fresh = ask(START, 0, Op::Read(1)).remaining;
    for key in 0..KEYS {
        assert!(ask(START, key, Op::Take(cost)).is_allowed());
    }
    let last = idle - Span::from_micros(1);
    for key in KEYS..2 * KEYS {
        assert!(ask(last, key, Op::Take(cost)).is_allowed());
    }
    for key in 0..KEYS {
        let left = ask(last, key, Op::Read(1)).remaining;
        assert!(left < fresh, "{limit:?}: key {key} was forgotten one tick early");
    }
    let before = store.stats();
    for key in 0..KEYS {
        assert_eq!(ask(idle, key, Op::Read(1)).remaining, fresh, "{limit:?}");
    }
    // As many new keys as slots are free now: the table has no need to grow for most of them.
    for key in 2 * KEYS..3 * KEYS {
        assert!(ask(idle, key, Op::Take(cost)).is_allowed());
    }
    let after = store.stats();
    assert!(after.bytes < before.bytes * 5 / 4, "{} bytes, then {}", before.bytes, after.bytes);
    assert_eq!((after.evicted, after.overflowed), (0, 0));
}

#[test]
fn a_bucket_counts_until_the_very_tick_it_is_full() {
    let bucket = |rate| Limit::token_bucket(rate).burst(10).build().unwrap();
    reuse(bucket(Rate::per_second(1)), 1, START + Span::from_secs(1));
    // A third of a tick past 333,333: it counts until the tick after.
    reuse(bucket(Rate::per_second(3)), 1, START + Span::from_micros(333_334));
    let wide = bucket(Rate::new(1_025, Span::from_secs(1_024)));
    reuse(wide, 1, START + Span::from_micros(999_025));
}

#[test]
fn a_window_counts_until_the_very_tick_it_ends() {
    let second = START + Span::from_secs(1);
    reuse(Limit::fixed_window(Rate::per_second(10)).build().unwrap(), 1, second);
    // The last step of the weight leaves 2^32 / 10^6 of so many units.
    let most = (1 << 32) - 1;
    let sliding = Limit::sliding_window(Rate::per_second(1 << 32)).build().unwrap();
    reuse(sliding, most, second + Span::from_secs(1));
}

#[test]
fn a_log_counts_until_the_very_tick_it_has_passed() {
    let log = Limit::sliding_log(Rate::per_second(10)).build().unwrap();
    reuse(log, 1, START + Span::from_secs(1));
    reuse(Limit::in_flight(10, Span::from_secs(1)).unwrap(), 1, START + Span::from_secs(1));
}
