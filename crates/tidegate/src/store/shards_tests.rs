use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock};

use tidegate_core::{Limit, Rate, Span};

use super::*;
use crate::clock::ManualClock;
use crate::key::{Hashing, Key, Scope};
use crate::store::background::Background;
use crate::store::circuits::Endpoints;
use crate::store::memory::MemoryStore;
use crate::store::shared::{SharedOptions, SharedStore};
use crate::store::testing::{Idle, at_once};
use crate::store::{DeniedState, LimitOptions};

const NOW: Timestamp = Timestamp::from_secs(1_000_020);

/// All layers, on a node whose turns start by this seed.
fn seeded<S: Store + 'static>(store: S, seed: u64) -> SharedStore<S> {
    let (clock, idle) = (ManualClock::at(NOW), Background::new(Idle));
    SharedStore::repeatable(store, &SharedOptions::default(), clock.into(), (&idle, seed)).unwrap()
}

fn sharded<S: Store + 'static>(store: S) -> SharedStore<S> {
    seeded(store, 0)
}

fn memory() -> MemoryStore {
    MemoryStore::new(64 << 20, Hashing::Fast).unwrap()
}

fn built(builder: tidegate_core::Builder) -> Limit {
    builder.build().unwrap()
}

fn options(shards: u16) -> LimitOptions {
    LimitOptions::default().shards(shards.try_into().unwrap())
}

fn charge<'a>(limit: &'a Limit, text: &'a str, op: Op, shards: u16) -> Charge<'a> {
    Charge::new(Key::new(Scope::new("hot", limit), text.as_bytes()), limit, op).on(options(shards))
}

fn decide<S: Store + 'static>(
    store: &SharedStore<S>,
    now: Timestamp,
    charges: &[Charge<'_>],
) -> Vec<Decision> {
    let mut decisions = Vec::new();
    at_once(store.0.decide_sharded(now, Batch::together(charges), &mut decisions)).unwrap();
    decisions
}

/// A store that several nodes share.
struct Same(Arc<MemoryStore>);

impl Store for Same {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        Store::decide(&*self.0, now, batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Store::explain(&*self.0, now, charge).await
    }
}

/// How a request chooses its shard.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Chance,
    ChanceTwice,
    Turns,
}

/// Number of admitted requests of `offered`, evenly spread over one minute, each on a random node.
fn admitted(limit: &Limit, shards: u16, offered: u64, (nodes, run): (u64, u64), way: Way) -> u64 {
    let memory = Arc::new(memory());
    let node = |node| seeded(Same(Arc::clone(&memory)), mixed(node ^ run << 32));
    let nodes = (0..nodes).map(node);
    let nodes: Vec<_> = nodes.collect();
    let division = Division::new(limit, shards.into()).unwrap();
    let whole = charge(limit, "whale", Op::Take(1), shards);
    let of = u64::from(shards);
    let is_allowed = |number: u64| {
        let now = NOW + Span::from_micros(number * 60_000_000 / offered);
        let node = &nodes[(mixed(number ^ run << 32) % nodes.len() as u64) as usize];
        let on = |shard: u32| {
            let shard = division.shard(whole.key, shard);
            node.store().0.decide(now, &shard.charge(&whole)).is_allowed()
        };
        let any = |salt: u64| (mixed(number ^ salt << 40 ^ run << 48) % of) as u32;
        match way {
            Way::Chance => on(any(1)),
            Way::ChanceTwice => on(any(1)) || on(any(2)),
            Way::Turns => decide(node, now, &[whole])[0].is_allowed(),
        }
    };
    (0..offered).filter(|number| is_allowed(*number)).count() as u64
}

/// 1,000,000 per minute divided into ten shards of 100,000: never admits more, and loses at most
/// 0.2 % if exactly the limit is offered. Prints the loss of each way to choose a shard.
#[test]
fn a_million_a_minute_in_ten_shards_loses_less_than_a_five_hundredth() {
    let limit = built(Limit::fixed_window(Rate::per_minute(1_000_000)));
    for nodes in [1, 8] {
        let lost = [Way::Chance, Way::ChanceTwice, Way::Turns]
            .map(|way| 1_000_000 - admitted(&limit, 10, 1_000_000, (nodes, 0), way));
        println!("1,000,000 in 10, {nodes} nodes: lost {lost:?}");
        assert!(lost[0] <= 2_000 && lost[1] <= 1_000, "by chance: {lost:?}");
        assert!(lost[2] <= 50, "by turns: {lost:?}");
    }
    let twice = admitted(&limit, 10, 2_000_000, (8, 0), Way::Turns);
    assert_eq!(twice, 1_000_000, "never more, and all of it");
}

/// The losses that the guide states; `--nocapture` prints them.
#[test]
fn losses_are_as_the_guide_tells() {
    const RUNS: u64 = 10;
    for (count, shards) in [(100_000, 10), (10_000, 10), (1_000, 10), (1_000, 100)] {
        let limit = built(Limit::fixed_window(Rate::per_minute(count)));
        let lost = [Way::Chance, Way::ChanceTwice, Way::Turns].map(|way| {
            (0..RUNS).map(|run| count - admitted(&limit, shards, count, (8, run), way)).sum()
        });
        println!("{RUNS} times {count} in {shards}, 8 nodes: lost {lost:?}");
        let [by_chance, by_chance_twice, here]: [u64; 3] = lost;
        assert!(here < by_chance_twice && by_chance_twice < by_chance, "{lost:?}");
        assert!(here * 100 <= RUNS * count * 5, "{lost:?}");
    }
}

/// Two keys that alternate may share a counter of turns; each still uses all shards.
#[test]
fn keys_that_alternate_meet_all_shards() {
    let limit = built(Limit::fixed_window(Rate::per_minute(1_000)));
    for pair in 0..50 {
        let store = seeded(memory(), pair);
        let names = [format!("a{pair}"), format!("b{pair}")];
        for name in (0..1_000).flat_map(|_| &names) {
            decide(&store, NOW, &[charge(&limit, name, Op::Take(1), 10)]);
        }
        for name in &names {
            let left = decide(&store, NOW, &[charge(&limit, name, Op::Read(0), 10)])[0].remaining;
            assert!(left <= 5, "{left} left of {name}");
        }
    }
}

/// For every family under ten times the limit, no window and no interval admits more than the whole
/// limit.
#[test]
fn no_family_admits_more_than_the_whole() {
    let rate = Rate::per_second(1_003);
    for limit in [
        built(Limit::token_bucket(rate).burst(101)),
        built(Limit::fixed_window(rate)),
        built(Limit::sliding_window(rate)),
        built(Limit::sliding_log(rate)),
    ] {
        let admitted = |shards: u16| {
            let store = seeded(memory(), 3);
            let whole = charge(&limit, "whale", Op::Take(1), shards);
            let ask = |micros: &u64| {
                decide(&store, NOW + Span::from_micros(*micros), &[whole])[0].is_allowed()
            };
            (0..5_000_000).step_by(100).filter(ask).count()
        };
        let (whole, divided) = (admitted(1), admitted(7));
        assert!(divided <= whole && divided * 100 >= whole * 98, "{limit:?}: {divided} of {whole}");
    }
}

/// Records the charges on shards.
struct Watched {
    store: MemoryStore,
    asked: Mutex<Vec<(Scope, Op)>>,
}

impl Watched {
    fn new() -> Self {
        Self { store: memory(), asked: Mutex::default() }
    }

    fn asked(&self) -> Vec<(Scope, Op)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Store for Watched {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let asked = batch.charges.iter().map(|it| (it.key.scope, it.op));
        self.asked.lock().unwrap().extend(asked);
        Store::decide(&self.store, now, batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Store::explain(&self.store, now, charge).await
    }
}

#[test]
fn what_is_not_divided_passes_as_it_is() {
    let limit = built(Limit::token_bucket(Rate::per_second(10)));
    let store = sharded(Watched::new());
    let key = Key::new(Scope::new("cool", &limit), b"key");
    let plain = Charge::new(key, &limit, Op::Take(1));
    decide(&store, NOW, &[plain]);
    decide(&store, NOW, &[plain, plain]);
    assert_eq!(store.store().asked(), [(key.scope, Op::Take(1)); 3]);
}

/// A denied state belongs to one shard: no layer may apply it to the whole key.
#[test]
fn what_a_shard_is_denied_on_is_not_told_of_the_whole() {
    let limit = built(Limit::fixed_window(Rate::per_minute(2)));
    let store = sharded(Watched::new());
    let denied_state: OnceLock<DeniedState> = OnceLock::new();
    for _ in 0..5 {
        decide(
            &store,
            NOW,
            &[charge(&limit, "whale", Op::Take(1), 2).denied_state_in(&denied_state)],
        );
    }
    assert!(denied_state.get().is_none());
}

#[test]
fn each_request_asks_one_shard() {
    let limit = built(Limit::token_bucket(Rate::per_minute(100)));
    let store = seeded(Watched::new(), 1);
    let mut shards: HashSet<Scope> = HashSet::new();
    let mut take = || {
        let decision = decide(&store, NOW, &[charge(&limit, "whale", Op::Take(1), 50)])[0];
        let asked = store.store().asked();
        assert!(asked.len() <= 1, "{asked:?}");
        shards.extend(asked.iter().map(|(scope, _)| *scope));
        decision.is_allowed()
    };
    assert_eq!((0..400).filter(|_| take()).count(), 100);
    assert_eq!(shards.len(), 50);
}

/// `retry_after` is that of the shard asked; `remaining` and `reset_after` are estimated from it.
#[test]
fn a_denial_says_when_its_shard_is_free() {
    let limit = built(Limit::token_bucket(Rate::per_second(2)).burst(4));
    let store = sharded(memory());
    let take = |micros, cost| {
        let now = NOW + Span::from_micros(micros);
        decide(&store, now, &[charge(&limit, "whale", Op::Take(cost), 2)])[0]
    };
    let first = take(0, 2);
    assert_eq!((first.limit, first.remaining), (4, 0), "as much as the shard that was asked has");
    assert!(take(300_000, 2).is_allowed(), "the other one");
    let denied = take(300_000, 1);
    // Each shard refills one unit per second, the first one in 0.7 s.
    assert_eq!(denied.retry_after(), Some(Span::from_millis(700)));
    assert_eq!((denied.limit, denied.remaining), (4, 0));
    assert_eq!(denied.reset_after, Span::from_millis(1_700));
}

/// A cost above the capacity of every shard is never admitted, and a cost that only some shards can
/// hold goes to those.
#[test]
fn a_cost_above_what_shards_hold_is_denied_for_good() {
    let limit = built(Limit::token_bucket(Rate::per_second(11)));
    let store = sharded(memory());
    let take = |cost| decide(&store, NOW, &[charge(&limit, "whale", Op::Take(cost), 4)])[0];
    assert!(take(4).is_never());
    let larger = (0..9).filter(|_| take(3).is_allowed()).count();
    assert!((2..=3).contains(&larger), "of three shards with three: {larger}");
    assert!(take(3).retry_after().is_some());
}

#[test]
fn charges_together_are_all_or_nothing() {
    let (hot, cool) = (Rate::per_minute(20), Rate::per_minute(12));
    let (hot, cool) = (built(Limit::fixed_window(hot)), built(Limit::fixed_window(cool)));
    let store = seeded(memory(), 5);
    let plain = Charge::new(Key::new(Scope::new("cool", &cool), b"key"), &cool, Op::Take(1));
    let both = [charge(&hot, "whale", Op::Take(1), 10), plain];
    let allowed = || decide(&store, NOW, &both).iter().all(Decision::is_allowed);
    assert_eq!((0..100).filter(|_| allowed()).count(), 12, "the plain one is used up first");
    let left = |charge: &Charge<'_>| {
        decide(&store, NOW, &[Charge { op: Op::Read(0), ..*charge }])[0].remaining
    };
    assert_eq!((left(&both[0]), left(&plain)), (8, 0), "what was denied took nothing");
    decide(&store, NOW, &[Charge { op: Op::Reset, ..plain }]);
    assert_eq!((0..100).filter(|_| allowed()).count(), 8, "now the divided one is");
    assert_eq!((left(&both[0]), left(&plain)), (0, 4));
    let decisions = decide(&store, NOW, &both);
    assert_eq!(decisions.iter().map(|it| it.limit).collect::<Vec<_>>(), [20, 12]);
}

#[test]
fn reading_resetting_giving_back_and_booking_see_all_shards() {
    for builder in [
        Limit::token_bucket(Rate::per_minute(103)),
        Limit::fixed_window(Rate::per_minute(103)),
        Limit::sliding_window(Rate::per_minute(103)),
        Limit::sliding_log(Rate::per_minute(103)),
    ] {
        let (limit, store) = (built(builder), sharded(memory()));
        let ask = |op| decide(&store, NOW, &[charge(&limit, "whale", op, 10)])[0];
        assert_eq!((ask(Op::Read(1)).remaining, ask(Op::Read(1)).limit), (103, 103));
        let taken = (0..40).filter(|_| ask(Op::Take(1)).is_allowed()).count();
        assert_eq!((taken, ask(Op::Read(1)).remaining), (40, 63), "{limit:?}");
        assert_eq!(ask(Op::Return(30)).remaining, 93, "{limit:?}");
        assert_eq!(ask(Op::Return(30)).remaining, 103, "never more than there is");
        let forced = ask(Op::Force(60));
        assert_eq!((forced.remaining, forced.unbooked), (43, 0), "{limit:?}");
        let forced = ask(Op::Force(60));
        assert_eq!((forced.remaining, forced.unbooked), (0, 17), "never more than there is");
        let denied = ask(Op::Read(1));
        assert!(denied.retry_after().is_some() && ask(Op::Take(1)).retry_after().is_some());
        assert_eq!(ask(Op::Reset).remaining, 103);
        assert!(ask(Op::Read(11)).is_allowed() && ask(Op::Read(12)).is_never());
    }
}

#[test]
fn an_explanation_is_of_the_shard_with_least_left() {
    let limit = built(Limit::fixed_window(Rate::per_minute(20)));
    let store = sharded(memory());
    let take = charge(&limit, "whale", Op::Take(7), 2);
    decide(&store, NOW, &[take]);
    let explained = at_once(store.explain(NOW, &take)).unwrap();
    assert_eq!((explained.limit, explained.remaining), (10, 3));
}

/// Changing the number of shards makes a new key, without the old state.
#[test]
fn another_number_of_shards_starts_afresh() {
    let limit = built(Limit::fixed_window(Rate::per_minute(100)));
    let store = sharded(memory());
    let left =
        |shards| decide(&store, NOW, &[charge(&limit, "whale", Op::Read(0), shards)])[0].remaining;
    decide(&store, NOW, &[charge(&limit, "whale", Op::Force(60), 10)]);
    assert_eq!([1, 2, 9, 10, 11].map(left), [100, 100, 100, 40, 100]);
}

/// A shard whose server is unavailable is skipped: fewer units are admitted, and never more.
#[test]
fn shards_that_are_unavailable_are_left_out() {
    let limit = built(Limit::fixed_window(Rate::per_minute(100)));
    let take = charge(&limit, "whale", Op::Take(1), 4);
    let division = Division::new(&limit, 4).unwrap();
    let shards: Vec<Shard> = (0..4).map(|number| division.shard(take.key, number)).collect();
    let tags: Vec<Vec<u8>> = shards.iter().map(|it| it.charge(&take).key.tag.to_vec()).collect();
    let number = move |charge: &Charge<'_>| tags.iter().position(|tag| tag == charge.key.tag);
    let endpoints = Endpoints::by(move |charge| number(charge).unwrap_or(4));
    let (clock, idle) = (ManualClock::at(NOW), Background::new(Idle));
    let options = SharedOptions::default().endpoints(endpoints);
    let store = SharedStore::start(memory(), &options, clock.into(), &idle).unwrap();
    let open = |number: usize| store.open_circuit(&shards[number].charge(&take));
    [0, 2].into_iter().for_each(open);
    let admitted = (0..400).filter(|_| decide(&store, NOW, &[take])[0].is_allowed()).count();
    assert_eq!(admitted, 50, "two shards of four");
    assert!(store.0.is_shard_sendable(&take).is_ok());
    let reset = charge(&limit, "whale", Op::Reset, 4);
    assert!(store.0.is_shard_sendable(&reset).is_err(), "all shards have to be reset");
    [1, 3].into_iter().for_each(open);
    assert!(matches!(store.0.is_shard_sendable(&take), Err(StoreError::CircuitOpen { .. })));
    let asked = at_once(store.0.decide_sharded(NOW, Batch::one(&reset), &mut Vec::new()));
    assert!(matches!(asked, Err(StoreError::CircuitOpen { .. })), "the fallback decides");
}
