//! A bucket's denial is repeated for its hold: fewer store calls in an overload, and no unit lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::FutureExt;
use tidegate::store::memory::MemoryStore;
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{Batch, Charge, DecisionSource, LimitOptions, Store, StoreError, Tier};
use tidegate::{Decision, Explanation, Hashing, Key, Limit, Op, Rate, Scope, Span, Timestamp};
use tidegate_tests::deny_comparison::cached;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_700_000_000) + Span::from_millis(millis)
}

/// A store that several nodes share and that counts their calls.
#[derive(Clone)]
struct Counted(Arc<(MemoryStore, AtomicU64)>);

impl Default for Counted {
    fn default() -> Self {
        let store = MemoryStore::new(1 << 20, Hashing::Fast).expect("address space");
        Self(Arc::new((store, AtomicU64::new(0))))
    }
}

impl Counted {
    fn cache(&self) -> SharedStore<Self> {
        cached(self.clone(), &SharedOptions::default())
    }

    fn calls(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

impl Store for Counted {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.0.1.fetch_add(1, Ordering::Relaxed);
        Store::decide(&self.0.0, now, batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Store::explain(&self.0.0, now, charge).await
    }
}

/// A node that decides one key.
struct Caller {
    cache: SharedStore<Counted>,
    limit: Limit,
    tier: Tier,
}

impl Caller {
    fn ask(&self, now: Timestamp, op: Op) -> Decision {
        let key = Key::new(Scope::new("test", &self.limit), b"hot");
        let charge = Charge::new(key, &self.limit, op).on(LimitOptions::default().tier(self.tier));
        let mut decisions = Vec::new();
        let asked = self.cache.decide(now, Batch::one(&charge), &mut decisions);
        asked.now_or_never().expect("memory does not wait").expect("a decision");
        decisions[0]
    }
}

/// A hot bucket at ten times its limit on eight nodes: at most 0.15 store calls per request, at most 1 % of the
/// limit lost, and never more than the limit.
#[test]
fn a_held_denial_saves_calls_and_loses_no_units() {
    const NODES: usize = 8;
    for (rate, burst) in [(10_000, 10_000), (10_000, 400), (1_000, 1_000), (200, 200), (200, 50)] {
        let limit = Limit::token_bucket(Rate::per_second(rate)).burst(burst).build();
        let limit = limit.expect("a limit");
        let store = Counted::default();
        let nodes: [_; NODES] =
            std::array::from_fn(|_| Caller { cache: store.cache(), limit, tier: Tier::Exact });
        let (mut admitted, apart) = (0, 1_000_000 / (10 * rate));
        let requests = 10 * rate * 4;
        for number in 0..requests {
            let now = at(0) + Span::from_micros(number * apart);
            let node = &nodes[number as usize % NODES];
            let decision = node.ask(now, Op::Take(1));
            admitted += u64::from(decision.is_allowed());
            let wait = decision.retry_after().unwrap_or_default();
            assert!(wait <= Span::from_millis(100), "{wait}");
        }
        let promised = burst + 4 * rate;
        assert!(admitted <= promised, "{admitted} of {promised}");
        // What the store holds at the end is not lost.
        let end = at(0) + Span::from_secs(4);
        let kept = admitted + nodes[0].ask(end, Op::Read(0)).remaining;
        assert!(kept * 100 >= promised * 99, "{kept} of {promised}: {rate}/s, {burst}");
        let calls = store.calls() - burst;
        assert!(calls * 100 <= requests * 15, "{calls} calls of {requests}: {rate}/s, {burst}");
    }
}

/// A retry at the time that a held denial states succeeds if no other request spends units, on the node that
/// denied it; one microsecond earlier it fails.
#[test]
fn a_held_denial_says_how_long_it_is_held() {
    let limit = Limit::token_bucket(Rate::per_second(1_000)).burst(100).build().expect("a limit");
    let caller = Caller { cache: Counted::default().cache(), limit, tier: Tier::Exact };
    assert!(caller.ask(at(0), Op::Take(100)).is_allowed());
    let wait = caller.ask(at(0), Op::Take(1)).retry_after().expect("a denial");
    assert_eq!(wait, Span::from_millis(16), "16 units' time");
    let later = at(0) + Span::from_micros(7_000);
    let rest = caller.ask(later, Op::Take(2)).retry_after().expect("a denial");
    assert_eq!(later + rest, at(0) + wait, "a greater cost is held as long");
    let early = at(0) + Span::from_micros(wait.as_micros() - 10);
    assert!(!caller.ask(early, Op::Take(1)).is_allowed());
    assert!(caller.ask(at(0) + wait, Op::Take(16)).is_allowed(), "the units are there");
    // A return on this node ends the hold at once.
    assert!(!caller.ask(at(0) + wait, Op::Take(100)).is_allowed());
    caller.ask(at(0) + wait, Op::Return(100));
    assert!(caller.ask(at(0) + wait, Op::Take(100)).is_allowed());
}

/// Leases wait for units on their own, and a window's denial lasts until the window ends.
#[test]
fn only_buckets_of_the_exact_tier_are_held() {
    let bucket = Limit::token_bucket(Rate::per_second(1_000)).burst(100).build().expect("a limit");
    let window = Limit::fixed_window(Rate::per_second(100)).build().expect("a limit");
    for (limit, tier, wait) in
        [(bucket, Tier::Leased, Span::from_millis(1)), (window, Tier::Exact, Span::from_secs(1))]
    {
        let caller = Caller { cache: Counted::default().cache(), limit, tier };
        caller.ask(at(0), Op::Take(100));
        let denied = caller.ask(at(0), Op::Take(1));
        assert_eq!(denied.retry_after(), Some(wait), "{limit:?}");
    }
}
