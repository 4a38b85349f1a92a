//! The deny cache denies only what Redis would have denied.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use futures_util::future::join_all;
use redis::from_redis_value;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{Batch, Charge, DecisionSource, LimitOptions, Store, StoreError};
use tidegate::{
    Clock, Decision, Explanation, Hashing, Key, Limit, Op, Rate, Scope, Span, Timestamp,
};
use tidegate_core::{Algorithm, AlgorithmName, State};
use tidegate_tests::deny_comparison::{cached, compare, hits};
use tidegate_tests::servers::RedisServer;
use tidegate_tests::shared_comparison::store;
use tidegate_tests::subject::Subject;

const IN_MEMORY: u64 = 1_000_000;
const IN_REDIS: u64 = 3_000;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn memory() -> MemoryStore {
    MemoryStore::new(64 << 20, Hashing::Fast).expect("address space")
}

/// Denials are repeated as long as the store would deny, and not held.
fn unheld() -> SharedOptions {
    SharedOptions::default().hold_denials(false)
}

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_700_000_000) + Span::from_millis(millis)
}

/// Asks about one key of one limit.
struct Caller<'a, S> {
    cache: &'a SharedStore<S>,
    limit: Limit,
    text: &'a str,
}

impl<S: Store + 'static> Caller<'_, S> {
    fn charge(&self, op: Op) -> Charge<'_> {
        Charge::new(
            Key::new(Scope::new("test", &self.limit), self.text.as_bytes()),
            &self.limit,
            op,
        )
    }

    async fn ask(&self, now: Timestamp, op: Op) -> Decision {
        let mut decisions = Vec::new();
        self.cache
            .decide(now, Batch::one(&self.charge(op)), &mut decisions)
            .await
            .expect("a decision");
        decisions[0]
    }

    fn ask_now(&self, now: Timestamp, op: Op) -> Decision {
        self.ask(now, op).now_or_never().expect("the memory store never waits")
    }
}

/// A bucket of so many units, one of which comes back in an hour.
fn bucket(units: u64) -> Limit {
    Limit::token_bucket(Rate::per_hour(1)).burst(units).build().expect("a limit")
}

/// Law: with the cache as without, decision by decision and field by field.
#[test]
fn a_node_with_the_cache_answers_as_one_without() {
    for subject in Subject::ALL {
        let cache = cached(memory(), &unheld());
        let decided = compare(&cache, subject, 0, IN_MEMORY).now_or_never().expect("no waiting");
        match subject {
            Subject::InFlight => assert_eq!(hits(&cache), 0, "places come back all the time"),
            Subject::Rated(_) => {
                assert!(hits(&cache) * 500 > decided, "{subject}: {} of {decided}", hits(&cache))
            }
        }
    }
}

#[test]
fn in_front_of_redis_it_answers_as_redis_does() {
    let server = RedisServer::start();
    runtime().block_on(async {
        for subject in Subject::ALL {
            let cache = cached(store(&server.url()).await, &unheld());
            compare(&cache, subject, 1, IN_REDIS).await;
            assert_eq!(hits(&cache) > 0, subject != Subject::InFlight, "{subject}");
        }
    });
}

/// What another node gives back is noticed within `refund_staleness`; what this one gives back, at once.
#[test]
fn a_refund_on_another_node_is_noticed_in_time() {
    let server = RedisServer::start();
    let longest = Span::from_millis(300);
    let wrongly_denied = runtime().block_on(async {
        let url = server.url();
        let new = async || cached(store(&url).await, &unheld().refund_staleness(longest));
        let nodes = [new().await, new().await];
        let (limit, mut state, mut rng) = (bucket(4), State::default(), Rng::with_seed(7));
        let callers = nodes.each_ref().map(|cache| Caller { cache, limit, text: "both" });
        let (mut now, mut refunded, mut wrongly) = (at(0), [None; 2], 0);
        for _ in 0..4_000 {
            now = now + Span::from_millis(rng.u64(0..40));
            let here = rng.usize(0..2);
            if rng.u32(0..12) == 0 {
                let op = if rng.bool() { Op::Return(rng.u64(1..4)) } else { Op::Reset };
                limit.decide(&mut state, now, op);
                callers[here].ask(now, op).await;
                refunded[here] = Some(now);
                continue;
            }
            let op = Op::Take(rng.u64(1..4));
            let found = callers[here].ask(now, op).await;
            let mut after = state.clone();
            let expected = limit.decide(&mut after, now, op);
            if found.is_allowed() || !expected.is_allowed() {
                // How long to wait may have changed elsewhere as well.
                assert_eq!(
                    found.is_allowed(),
                    expected.is_allowed(),
                    "no request is admitted wrongly"
                );
                state = after;
                continue;
            }
            let elsewhere = refunded[1 - here].expect("only what others give back goes unnoticed");
            assert!(now.since(elsewhere) < longest, "denied for {}", now.since(elsewhere));
            wrongly += 1;
        }
        wrongly
    });
    assert!(wrongly_denied > 10, "{wrongly_denied}: nothing was tried");
}

/// A limit that says nought is asked about each time; so is a shadow, whose options say the same.
#[test]
fn nought_means_that_the_store_is_asked() {
    let cache = cached(memory(), &unheld());
    let caller = Caller { cache: &cache, limit: bucket(1), text: "a" };
    caller.ask_now(at(0), Op::Take(1));
    let options = LimitOptions::default().refund_staleness(Span::ZERO);
    let charge = caller.charge(Op::Take(1)).on(options);
    for _ in 0..3 {
        let mut decisions = Vec::new();
        let asked = cache.decide(at(1), Batch::one(&charge), &mut decisions).now_or_never();
        assert!(asked.is_some() && !decisions[0].is_allowed());
    }
    assert_eq!((hits(&cache), cache.stats().deny_cache_entries), (0, 0));
}

/// One certain denial decides a request that is all or nothing, and no limit is charged.
#[test]
fn together_one_certain_denial_denies_all() {
    let cache = cached(memory(), &unheld());
    let denied = Caller { cache: &cache, limit: bucket(1), text: "denied" };
    let free = Caller { cache: &cache, limit: bucket(5), text: "free" };
    denied.ask_now(at(0), Op::Take(1));
    let expected = denied.ask_now(at(0), Op::Take(1));
    let mut decisions = Vec::new();
    let charges = [free.charge(Op::Take(1)), denied.charge(Op::Take(1))];
    let batch = Batch::together(&charges);
    cache.decide(at(0), batch, &mut decisions).now_or_never().expect("no waiting").expect("one");
    assert_eq!(decisions[1], expected);
    assert!(decisions[0].is_allowed());
    assert_eq!(hits(&cache), 1);
    assert_eq!(free.ask_now(at(0), Op::Read(0)).remaining, 5, "no limit is charged");
    decisions.clear();
    cache
        .decide(at(0), Batch::each(&charges), &mut decisions)
        .now_or_never()
        .expect("no waiting")
        .expect("");
    assert_eq!((decisions[0].remaining, decisions[1]), (4, expected), "each alone: the other is");
}

/// A clock of the store that runs a little faster than ours frees units before ours says so.
#[test]
fn a_store_whose_clock_is_fast_is_asked_in_time() {
    let limit = Limit::token_bucket(Rate::per_hour(1)).build().expect("a limit");
    let cache = cached(memory(), &unheld().refund_staleness(Span::MAX));
    let caller = Caller { cache: &cache, limit, text: "a" };
    caller.ask_now(at(0), Op::Take(1));
    assert!(!caller.ask_now(at(0), Op::Take(1)).is_allowed());
    let hour = 3_600_000;
    let hits_at = |millis| {
        let before = hits(&cache);
        assert!(!caller.ask_now(at(millis), Op::Take(1)).is_allowed());
        hits(&cache) - before
    };
    assert_eq!(hits_at(hour - 1_000), 1, "719 ms is as far as the clocks can be apart by then");
    assert_eq!(hits_at(hour - 700), 0);
}

/// A denial that was on its way when units were given back is not remembered.
#[test]
fn a_denial_that_a_refund_overtook_is_not_repeated() {
    const ROUNDS: usize = 50_000;
    let cache = cached(memory(), &unheld().refund_staleness(Span::MAX));
    let caller = Caller { cache: &cache, limit: bucket(2), text: "a" };
    assert!(caller.ask_now(at(0), Op::Take(2)).is_allowed());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // One unit is never free long enough for two.
                    assert!(!caller.ask_now(at(0), Op::Take(2)).is_allowed());
                }
            });
        }
        let denied = (0..ROUNDS).filter(|_| {
            caller.ask_now(at(0), Op::Return(1));
            let denied = !caller.ask_now(at(0), Op::Take(1)).is_allowed();
            if denied {
                // Once more, past the cache, so that one unit is out in every round.
                caller.ask_now(at(0), Op::Force(1));
            }
            denied
        });
        let denied = denied.count();
        done.store(true, Ordering::Relaxed);
        assert_eq!(denied, 0, "of {ROUNDS} that had been given back before");
    });
    assert!(hits(&cache) > 0);
}

/// A store whose answers take a while: each waits until it is asked for a second time.
struct Late(MemoryStore);

impl Store for Late {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let decision_source = Store::decide(&self.0, now, batch, decisions).await;
        let mut is_asked_again = false;
        poll_fn(|_| match std::mem::replace(&mut is_asked_again, true) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
        decision_source
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Store::explain(&self.0, now, charge).await
    }
}

/// The same for certain: the denial is decided, the refund is carried out, the denial arrives.
#[test]
fn a_denial_that_arrives_after_a_refund_is_not_repeated() {
    let cache = cached(Late(memory()), &unheld().refund_staleness(Span::MAX));
    let caller = Caller { cache: &cache, limit: bucket(2), text: "a" };
    let mut context = Context::from_waker(Waker::noop());
    let mut finish = |op| {
        let mut asked = pin!(caller.ask(at(0), op));
        assert!(asked.as_mut().poll(&mut context).is_pending(), "answers come late");
        let Poll::Ready(decision) = asked.poll(&mut context) else { panic!("asked twice") };
        decision
    };
    assert!(finish(Op::Take(2)).is_allowed());
    let mut denied = pin!(caller.ask(at(0), Op::Take(1)));
    assert!(denied.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    finish(Op::Return(1));
    let denied = denied.now_or_never().expect("it was decided long ago");
    assert!(!denied.is_allowed());
    assert!(finish(Op::Take(1)).is_allowed(), "the unit was given back before");
}

/// One key at ten times its limit.
#[test]
fn most_of_what_is_over_the_limit_never_reaches_redis() {
    const LIMIT: u64 = 1_000;
    const OFFERED: u64 = 10 * LIMIT;
    const AT_ONCE: u64 = 64;
    let server = RedisServer::start();
    let (limit, clock) = (bucket(LIMIT), Clock::default());
    let (allowed, calls) = runtime().block_on(async {
        let config = RedisConfig::new(&server.url()).expect("an address");
        let config = config.deadline(Duration::from_secs(10));
        let cache = cached(RedisStore::connect(config).await.expect("a server"), &unheld());
        let caller = Caller { cache: &cache, limit, text: "hot" };
        server.command(&["CONFIG", "RESETSTAT"]);
        let client = async |_| {
            let mut allowed = 0;
            for _ in 0..OFFERED / AT_ONCE {
                allowed += u64::from(caller.ask(clock.now(), Op::Take(1)).await.is_allowed());
            }
            allowed
        };
        let allowed: u64 = join_all((0..AT_ONCE).map(client)).await.into_iter().sum();
        (allowed, calls(&server))
    });
    assert_eq!(allowed, LIMIT, "an hour gives one unit");
    assert!(calls * 20 <= OFFERED, "{calls} calls for {OFFERED} requests");
}

/// Scripts that a server has run.
fn calls(server: &RedisServer) -> u64 {
    let answer: String =
        from_redis_value(server.command(&["INFO", "commandstats"])).expect("a text");
    let calls = |line: &str| {
        let rest = line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    answer.lines().filter_map(calls).sum()
}

/// The algorithm decides, not the name: all six are cached.
#[test]
fn every_family_of_rates_is_repeated() {
    for name in AlgorithmName::ALL {
        let limit = tidegate_core::Builder::new(name, Rate::per_hour(3)).build().expect("a limit");
        let cache = cached(memory(), &unheld());
        let caller = Caller { cache: &cache, limit, text: "a" };
        while caller.ask_now(at(0), Op::Take(1)).is_allowed() {}
        assert_eq!((hits(&cache), cache.stats().deny_cache_entries), (0, 1), "{name}");
        assert!(!caller.ask_now(at(0), Op::Take(1)).is_allowed());
        assert_eq!(hits(&cache), 1, "{name}");
        let read = caller.charge(Op::Read(0));
        let changed = Batch::one(&read).revision(1);
        cache
            .decide(at(0), changed, &mut Vec::new())
            .now_or_never()
            .expect("at once")
            .expect("one");
        assert_eq!(cache.stats().deny_cache_entries, 0, "{name}");
    }
}
