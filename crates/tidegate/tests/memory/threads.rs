//! Real threads on the memory store: no token twice, no torn batch, all or nothing under contention.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;
use tidegate::store::Charge;
use tidegate::store::memory::MemoryStore;
use tidegate::{
    Admission, Clock, Decision, Hashing, InFlight, Key, Limit, Limiter, ManualClock, Op, Rate,
    Scope, Span, SystemClock, Timestamp,
};

const THREADS: u64 = 4;
const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn store() -> MemoryStore {
    MemoryStore::new(256 << 20, Hashing::Fast).unwrap()
}

fn charge<'a>(scope: Scope, text: &'a [u8], limit: &'a Limit, op: Op) -> Charge<'a> {
    Charge::new(Key::new(scope, text), limit, op)
}

/// Every family with room for `count` at once, and nothing comes back while a test runs.
fn families(count: u64) -> [(&'static str, Limit); 6] {
    let bucket = |rate| Limit::token_bucket(rate).burst(count).build().unwrap();
    [
        ("narrow", bucket(Rate::per_day(1))),
        ("wide", bucket(Rate::new(1_031, Span::from_secs(300_000_001)))),
        ("window", Limit::fixed_window(Rate::per_day(count)).build().unwrap()),
        ("sliding", Limit::sliding_window(Rate::per_day(count)).build().unwrap()),
        ("log", Limit::sliding_log(Rate::per_day(count)).build().unwrap()),
        ("places", Limit::in_flight(count, InFlight::NO_EXPIRY).unwrap()),
    ]
}

/// Two parallel clients never get the same token, and none is lost.
#[test]
fn threads_on_hot_keys_get_exactly_what_there_is() {
    const UNITS: u64 = 1_000;
    for (name, limit) in families(UNITS) {
        let (store, scope) = (store(), Scope::new(name, &limit));
        let admitted: [AtomicU64; 3] = Default::default();
        thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    for i in 0..3 * UNITS {
                        let key = i as usize % 3;
                        let text = [key as u8];
                        let decision =
                            store.decide(NOW, &charge(scope, &text, &limit, Op::Take(1)));
                        admitted[key].fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.map(AtomicU64::into_inner), [UNITS; 3], "{name}");
    }
}

/// The clock moves between rounds: exactly what refilled is admitted, to the unit.
#[test]
fn threads_get_exactly_what_refills_while_time_passes() {
    const BURST: u64 = 20;
    let limit = Limit::token_bucket(Rate::per_second(7)).burst(BURST).build().unwrap();
    let (store, scope) = (store(), Scope::new("hot", &limit));
    let mut rng = Rng::with_seed(3);
    let (mut elapsed, mut total) = (0, 0);
    for _ in 0..400 {
        let now = NOW + Span::from_micros(elapsed);
        let admitted = AtomicU64::new(0);
        thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    for _ in 0..2 * BURST {
                        let decision = store.decide(now, &charge(scope, b"k", &limit, Op::Take(1)));
                        admitted.fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                    }
                });
            }
        });
        total += admitted.into_inner();
        assert_eq!(total, BURST + elapsed * 7 / 1_000_000, "after {elapsed} us");
        elapsed += rng.u64(0..1_000_000);
    }
}

/// A thread reads the clock, is held up, and decides after others did with later times. That is no
/// clock that was set back: nothing may be freed by it.
#[test]
fn a_thread_that_comes_late_frees_nothing() {
    let limit = Limit::token_bucket(Rate::per_second(1_000)).burst(10).build().unwrap();
    let later = NOW + Span::from_millis(5);
    let clock = ManualClock::at(later);
    let (store, scope) = (store().with_clock(clock.into()), Scope::new("hot", &limit));
    let take = |now| store.decide(now, &charge(scope, b"k", &limit, Op::Take(1))).is_allowed();
    let pair = |now| {
        let charge = charge(scope, b"k", &limit, Op::Take(1));
        store.decide_together(now, &[charge, charge], |_| {})
    };
    assert_eq!((0..20).filter(|_| take(later)).count(), 10);
    assert!(!take(NOW), "nothing is left");
    assert!(!pair(NOW), "nothing is left");
    assert_eq!((0..20).filter(|_| take(later)).count(), 0, "no time has passed since");
}

/// The promise of a bucket, burst + elapsed / interval, by the machine's own clock.
#[test]
fn threads_by_the_real_clock_get_no_more_than_was_promised() {
    let clock = SystemClock::new();
    let limiter = Limiter::builder()
        .limit("rate", Limit::token_bucket(Rate::per_second(1_000)).burst(10).build().unwrap())
        .clock(Clock::System(clock.clone()))
        .build()
        .unwrap();
    let (start, admitted) = (clock.now(), AtomicU64::new(0));
    thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                let passed = (0..1_000_000).filter(|_| limiter.check("k").is_allowed()).count();
                admitted.fetch_add(passed as u64, Ordering::Relaxed);
            });
        }
    });
    let promised = 10 + clock.now().since(start).as_micros() / 1_000;
    let admitted = admitted.into_inner();
    assert!(admitted <= promised, "{admitted} admitted, {promised} promised");
}

/// Keys that many threads add at the same time while their shards grow: no key is added twice,
/// and none is lost.
#[test]
fn growth_under_contention_gives_every_key_exactly_its_tokens() {
    const KEYS: u64 = 400_000;
    let limit = Limit::token_bucket(Rate::per_day(1)).burst(5).build().unwrap();
    let (store, scope) = (store(), Scope::new("k", &limit));
    let admitted: Vec<AtomicU8> = (0..KEYS).map(|_| AtomicU8::new(0)).collect();
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let (store, limit, admitted) = (&store, &limit, &admitted);
            threads.spawn(move || {
                // In pairs of threads on the same keys at the same time, 8 tries each in all.
                for i in 0..2 * KEYS {
                    let key = (i + thread / 2 * KEYS / 2) % KEYS;
                    let text = key.to_le_bytes();
                    let decision = store.decide(NOW, &charge(scope, &text, limit, Op::Take(1)));
                    admitted[key as usize]
                        .fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                }
            });
        }
    });
    let wrong = admitted.iter().filter(|count| count.load(Ordering::Relaxed) != 5).count();
    assert_eq!(wrong, 0, "keys with another number of admissions than 5");
    assert_eq!((store.stats().keys, store.stats().evicted), (KEYS, 0));
}

/// Adds keys to all tables until told to stop, so that shards grow while other threads use them.
fn keep_growing(store: &MemoryStore, limits: &[(&str, Limit)], stop: &AtomicBool) {
    let mut key = 0_u64;
    while !stop.load(Ordering::Relaxed) && key < 300_000 {
        for (name, limit) in limits {
            let text = key.to_le_bytes();
            let scope = Scope::new(&format!("growing {name}"), limit);
            assert!(store.decide(NOW, &charge(scope, &text, limit, Op::Take(1))).is_allowed());
        }
        key += 1;
    }
}

/// Random requests over shared keys, some naming one key twice; counts what was admitted.
fn request(
    store: &MemoryStore,
    limits: &[(&str, Limit)],
    admitted: &[[AtomicU64; 8]],
    rng: &mut Rng,
) {
    let picks: Vec<(usize, usize)> =
        (0..rng.usize(2..=3)).map(|_| (rng.usize(0..limits.len()), rng.usize(0..8))).collect();
    let texts: Vec<[u8; 1]> = picks.iter().map(|(_, key)| [*key as u8]).collect();
    let charges: Vec<Charge<'_>> = picks
        .iter()
        .zip(&texts)
        .map(|((limit, _), text)| {
            let (name, limit) = &limits[*limit];
            charge(Scope::new(name, limit), text, limit, Op::Take(1))
        })
        .collect();
    let mut answers: Vec<Decision> = Vec::new();
    let allowed = store.decide_together(NOW, &charges, |decision| answers.push(decision));
    assert_eq!(answers.len(), charges.len());
    assert_eq!(allowed, answers.iter().all(Decision::is_allowed));
    if allowed {
        for (limit, key) in picks {
            admitted[limit][key].fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Consumed = admitted, for every limit and key, whatever families a batch mixes.
fn batches_of(limits: &[(&'static str, Limit)], requests: usize) {
    let store = store();
    let admitted: Vec<[AtomicU64; 8]> = limits.iter().map(|_| Default::default()).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| keep_growing(&store, limits, &stop));
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                let (store, admitted) = (&store, &admitted);
                threads.spawn(move || {
                    let mut rng = Rng::with_seed(seed);
                    (0..requests).for_each(|_| request(store, limits, admitted, &mut rng));
                })
            })
            .collect();
        let finished: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(finished.iter().all(Result::is_ok));
    });
    for ((name, limit), admitted) in limits.iter().zip(&admitted) {
        for (key, admitted) in admitted.iter().enumerate() {
            let text = [key as u8];
            let read = charge(Scope::new(name, limit), &text, limit, Op::Read(0));
            let decision = store.decide(NOW, &read);
            let consumed = decision.limit - decision.remaining;
            assert_eq!(consumed, admitted.load(Ordering::Relaxed), "{name}, key {key}");
            assert!(consumed > 0, "{name}, key {key}: nothing was admitted");
        }
    }
    assert_eq!((store.stats().evicted, store.stats().overflowed), (0, 0));
}

/// A batch is never torn.
#[test]
fn batches_over_one_family_are_never_torn() {
    for family in families(500) {
        batches_of(&[family], 10_000);
    }
}

#[test]
fn batches_over_all_families_are_never_torn() {
    batches_of(&families(500), 30_000);
    batches_of(&families(10_000), 10_000);
}

/// No request is refused that a sequential order would admit: users with plenty of their own share
/// a tenant's limit, which is used up to the last unit.
#[test]
fn a_shared_limit_is_used_up_to_the_last_unit() {
    const UNITS: u64 = 5_000;
    for (name, tenant) in families(UNITS) {
        for (user_name, user) in families(10_000) {
            let store = store();
            let scopes = [Scope::new("tenant", &tenant), Scope::new("user", &user)];
            let admitted = AtomicU64::new(0);
            thread::scope(|threads| {
                for thread in 0..THREADS {
                    let (store, admitted, tenant, user) = (&store, &admitted, &tenant, &user);
                    threads.spawn(move || {
                        for i in 0..UNITS / 2 {
                            let text = (thread * 100 + i % 100).to_le_bytes();
                            let mut charges = [
                                charge(scopes[0], b"t", tenant, Op::Take(1)),
                                charge(scopes[1], &text, user, Op::Take(1)),
                            ];
                            // In both orders, because the order does not matter.
                            charges.rotate_left((thread % 2) as usize);
                            let allowed = store.decide_together(NOW, &charges, |_| {});
                            admitted.fetch_add(allowed.into(), Ordering::Relaxed);
                        }
                    });
                }
            });
            assert_eq!(admitted.into_inner(), UNITS, "{name} tenant, {user_name} users");
        }
    }
}

/// Never more permits are held than there are places, and none gets lost.
#[test]
fn permits_across_threads_never_exceed_the_places() {
    const PLACES: u64 = 5;
    let limiter = Limiter::builder()
        .limit("places", Limit::in_flight(PLACES, InFlight::NO_EXPIRY).unwrap())
        .limit("rate", Limit::token_bucket(Rate::per_second(1_000_000_000)).build().unwrap())
        .build()
        .unwrap();
    let (held, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|threads| {
        for thread in 0..THREADS {
            let (limiter, held, granted) = (&limiter, &held, &granted);
            threads.spawn(move || {
                let mut rng = Rng::with_seed(thread);
                let mut permits = Vec::new();
                for _ in 0..20_000 {
                    if rng.bool() {
                        if let Admission::Granted(permit) = limiter.acquire("job") {
                            let others = held.fetch_add(1, Ordering::SeqCst);
                            assert!(others < PLACES, "{others} others hold a permit");
                            granted.fetch_add(1, Ordering::Relaxed);
                            permits.push(permit);
                        }
                    } else if let Some(permit) = permits.pop() {
                        held.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                }
                held.fetch_sub(permits.len() as u64, Ordering::SeqCst);
            });
        }
    });
    assert!(granted.into_inner() > PLACES);
    let verdict = limiter.report("job", 0);
    assert_eq!(verdict.remaining(), PLACES, "all places are free again");
}
