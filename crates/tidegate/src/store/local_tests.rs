use std::sync::Mutex;

use tidegate_core::{Explanation, Limit, Rate, Span};

use super::*;
use crate::clock::ManualClock;
use crate::key::{Hashing, Key, Scope};
use crate::store::shared::{SharedOptions, SharedStore};
use crate::store::testing::{at_once, layered_with};
use crate::store::{LimitOptions, OnStoreFailure};

const NOW: Timestamp = Timestamp::from_secs(1_000_020);

/// A store that counts its charges, and may fail.
struct Watched {
    store: MemoryStore,
    asked: AtomicU64,
    failing: Mutex<Option<StoreError>>,
}

impl Store for Watched {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        assert!(!batch.charges.iter().any(is_local), "none of its business");
        self.asked.fetch_add(1, Ordering::Relaxed);
        let failing = self.failing.lock().unwrap().clone();
        match failing {
            Some(error) => Err(error),
            None => Store::decide(&self.store, now, batch, decisions).await,
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Store::explain(&self.store, now, charge).await
    }
}

fn node() -> SharedStore<Watched> {
    let store = MemoryStore::new(1 << 20, Hashing::Fast).unwrap();
    let watched = Watched { store, asked: AtomicU64::new(0), failing: Mutex::default() };
    let options = SharedOptions::default().on_store_failure(OnStoreFailure::Deny);
    layered_with(watched, ManualClock::at(NOW), &options)
}

fn bucket(rate: Rate) -> Limit {
    Limit::token_bucket(rate).build().unwrap()
}

/// A pre-limit and the limit behind it, charged together.
struct Pair(Limit, Limit);

impl Pair {
    fn charges(&self, op: Op) -> [Charge<'_>; 2] {
        let key = |name, limit| Key::new(Scope::new(name, limit), b"key");
        let local = LimitOptions::default().tier(Tier::Local);
        [
            Charge::new(key("global", &self.1), &self.1, op),
            Charge::new(key("local", &self.0), &self.0, op).on(local),
        ]
    }

    fn ask(&self, node: &SharedStore<Watched>, now: Timestamp, op: Op) -> Vec<Decision> {
        let mut decisions = Vec::new();
        at_once(node.decide(now, Batch::together(&self.charges(op)), &mut decisions)).unwrap();
        decisions
    }
}

/// The pre-limit denies a flood on one node without a call to the store.
#[test]
fn a_burst_is_absorbed_without_asking_the_store() {
    let pair = Pair(bucket(Rate::per_second(10)), bucket(Rate::per_minute(10_000)));
    let node = node();
    let mut allowed = 0;
    for millis in 0..10_000 {
        let decisions = pair.ask(&node, NOW + Span::from_millis(millis), Op::Take(1));
        let is_allowed = decisions.iter().all(Decision::is_allowed);
        allowed += u64::from(is_allowed);
        assert!(decisions[0].is_allowed() && decisions[0].limit == 10_000);
        assert!(is_allowed || decisions[1].retry_after().is_some());
    }
    let asked = node.store().asked.load(Ordering::Relaxed);
    // A burst of ten, and ten units per second for 9.9 seconds.
    assert_eq!((allowed, asked), (109, 109));
    assert_eq!(node.stats().local, LocalStats { allowed: 109, denied: 10_000 - 109 });
}

/// The limit behind is never exceeded, however much the pre-limit admits.
#[test]
fn the_limit_behind_holds_whatever_stands_in_front() {
    let pair = Pair(bucket(Rate::per_second(100)), bucket(Rate::per_minute(60)));
    let node = node();
    let allowed = (0..1_000).filter(|millis| {
        let decisions = pair.ask(&node, NOW + Span::from_millis(*millis), Op::Take(1));
        decisions.iter().all(Decision::is_allowed)
    });
    assert_eq!(allowed.count(), 60);
}

#[test]
fn units_are_given_back_if_the_limit_behind_denies_or_fails() {
    let pair = Pair(bucket(Rate::per_minute(5)), bucket(Rate::per_minute(3)));
    let node = node();
    let left =
        || pair.ask(&node, NOW, Op::Read(0)).iter().map(|it| it.remaining).collect::<Vec<_>>();
    for _ in 0..20 {
        pair.ask(&node, NOW, Op::Take(1));
    }
    assert_eq!(left(), [0, 2], "three of five");
    *node.store().failing.lock().unwrap() = Some(StoreError::Timeout);
    assert!(!pair.ask(&node, NOW, Op::Take(1))[0].is_allowed(), "`deny` while it is unavailable");
    *node.store().failing.lock().unwrap() = None;
    assert_eq!(left(), [0, 2], "nothing was taken");
}

/// Returns and resets reach both limits, and decisions keep the order of the charges.
#[test]
fn each_alone_goes_where_it_belongs() {
    let pair = Pair(bucket(Rate::per_minute(5)), bucket(Rate::per_minute(9)));
    let node = node();
    pair.ask(&node, NOW, Op::Take(4));
    let limits = |op| {
        let decisions = pair.ask(&node, NOW, op);
        decisions.iter().map(|it| (it.limit, it.remaining)).collect::<Vec<_>>()
    };
    assert_eq!(limits(Op::Return(1)), [(9, 6), (5, 2)]);
    let mut decisions = Vec::new();
    let [global, local] = pair.charges(Op::Take(2));
    at_once(node.decide(NOW, Batch::each(&[local, global, local]), &mut decisions)).unwrap();
    let told: Vec<_> = decisions.iter().map(|it| (it.is_allowed(), it.remaining)).collect();
    assert_eq!(told, [(true, 0), (true, 4), (false, 0)]);
    assert_eq!(limits(Op::Reset), [(9, 9), (5, 5)]);
    let explained = at_once(node.explain(NOW, &local)).unwrap();
    assert_eq!(explained.limit, 5);
}
