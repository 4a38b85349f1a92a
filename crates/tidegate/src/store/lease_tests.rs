use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use tidegate_core::{Explanation, Limit, Rate};
use tokio::sync::Semaphore;

use super::*;
use crate::clock::ManualClock;
use crate::key::{Hashing, Key, Scope};
use crate::store::memory::MemoryStore;
use crate::store::shared::SharedStore;
use crate::store::testing::{at_once, layered};
use crate::store::{LimitOptions, Tier};

const START: Timestamp = Timestamp::from_secs(1_000_000_000);

/// One store for several nodes. It counts calls, and can delay or fail them.
#[derive(Clone, Debug)]
struct Shared(Arc<SharedInner>);

#[derive(Debug)]
struct SharedInner {
    memory: MemoryStore,
    calls: AtomicU64,
    is_away: AtomicBool,
    /// A call waits for a permit.
    turnstile: Semaphore,
}

impl Shared {
    fn new() -> Self {
        Self(Arc::new(SharedInner {
            memory: MemoryStore::new(4 << 20, Hashing::Fast).unwrap(),
            calls: AtomicU64::new(0),
            is_away: AtomicBool::new(false),
            turnstile: Semaphore::new(Semaphore::MAX_PERMITS),
        }))
    }

    fn calls(&self) -> u64 {
        self.0.calls.load(Ordering::Relaxed)
    }

    async fn enter(&self) -> Result<(), StoreError> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        self.0.turnstile.acquire().await.unwrap().forget();
        match self.0.is_away.load(Ordering::Relaxed) {
            true => Err(StoreError::Timeout),
            false => Ok(()),
        }
    }
}

impl Store for Shared {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.enter().await?;
        Store::decide(&self.0.memory, now, batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Store::explain(&self.0.memory, now, charge).await
    }
}

/// Nodes that share a store and a clock.
struct Fleet {
    store: Shared,
    clock: ManualClock,
    nodes: Vec<SharedStore<Shared>>,
    limit: Limit,
    scope: Scope,
}

impl Fleet {
    fn new(nodes: usize, limit: &Limit) -> Self {
        let (store, clock) = (Shared::new(), ManualClock::at(START));
        let node = |_| layered(store.clone(), clock.clone());
        let nodes = (0..nodes).map(node).collect();
        let scope = Scope::new("hot", limit);
        Self { store, clock, nodes, limit: leased(limit).unwrap(), scope }
    }

    fn charge<'a>(&'a self, text: &'a [u8], op: Op) -> Charge<'a> {
        let options = LimitOptions::default().tier(Tier::Leased);
        Charge::new(Key::new(self.scope, text), &self.limit, op).on(options)
    }

    fn decide(&self, node: usize, charge: &Charge<'_>) -> Decision {
        let mut decisions = Vec::new();
        let now = self.clock.now();
        let batch = Batch::together(slice::from_ref(charge));
        at_once(self.nodes[node].0.decide_leased(now, batch, &mut decisions)).unwrap();
        decisions[0]
    }

    fn take(&self, node: usize, cost: u64) -> bool {
        self.decide(node, &self.charge(b"whale", Op::Take(cost))).is_allowed()
    }

    fn pass(&self, span: Span) {
        self.clock.advance(span);
    }

    fn stats(&self) -> LeaseStats {
        self.nodes.iter().map(|node| node.stats().leases).fold(LeaseStats::default(), |a, b| {
            LeaseStats {
                granted: a.granted + b.granted,
                spent: a.spent + b.spent,
                unspent: a.unspent + b.unspent,
                returned: a.returned + b.returned,
                expired: a.expired + b.expired,
                outstanding: a.outstanding + b.outstanding,
                answered: a.answered + b.answered,
            }
        })
    }

    /// Sends requests until the node takes units in advance.
    fn warm(&self) {
        for _ in 0..60 {
            self.take(0, 1);
            self.pass(Span::from_millis(1));
        }
    }
}

fn conserves(stats: &LeaseStats) -> bool {
    stats.granted + stats.unspent
        == stats.spent + stats.returned + stats.expired + stats.outstanding
}

/// Checks that no interval admits more than the burst beyond the rate, in units times microseconds.
struct Envelope {
    per_second: u64,
    burst: u64,
    level: u64,
    last: Timestamp,
}

impl Envelope {
    fn new(per_second: u64, burst: u64) -> Self {
        Self { per_second, burst, level: 0, last: START }
    }

    fn add(&mut self, now: Timestamp, units: u64) {
        let refilled = now.since(self.last).as_micros() * self.per_second;
        self.level = self.level.saturating_sub(refilled) + units * 1_000_000;
        self.last = now;
        assert!(self.level <= self.burst * 1_000_000, "above the limit at {now:?}");
    }
}

fn per_second(count: u64) -> Limit {
    Limit::token_bucket(Rate::per_second(count)).build().unwrap()
}

#[test]
fn a_leased_bucket_gives_up_what_nodes_may_hold() {
    let capacity = |limit: Option<Limit>| match limit {
        Some(Limit::Bucket(bucket)) => Some(bucket.capacity()),
        _ => None,
    };
    let bucket = |rate: Rate, burst| Limit::token_bucket(rate).burst(burst).build().unwrap();
    let second = Rate::per_second;
    assert_eq!(capacity(leased(&bucket(second(1_000), 1_000))), Some(900));
    assert_eq!(capacity(leased(&bucket(second(1_000), 400))), Some(300), "four times 100 ms");
    assert_eq!(capacity(leased(&bucket(second(1_000), 399))), None);
    assert_eq!(capacity(leased(&bucket(Rate::per_minute(100), 100))), Some(99), "rounded up");
    assert_eq!(capacity(leased(&bucket(Rate::per_minute(100), 1))), None, "nothing is left");
    let log = Limit::sliding_log(second(100)).build().unwrap();
    let leaky = Limit::leaky_bucket(second(100)).queue(100).build().unwrap();
    let counting = Limit::fixed_window(second(100)).count_denied().build().unwrap();
    let places = Limit::in_flight(100, Span::from_secs(1)).unwrap();
    for limit in [log, leaky, counting, places] {
        assert_eq!(leased(&limit), None, "{limit:?}");
    }
    let window = Limit::sliding_window(second(100)).build().unwrap();
    assert_eq!(leased(&window), Some(window));
}

/// Eight nodes that are offered the limit make at most one call per twenty requests, admit at least
/// 99 % of the limit, and never exceed it.
#[test]
fn a_hot_key_is_spent_locally_and_in_full() {
    const RATE: u64 = 8_000;
    let limit = per_second(RATE);
    let fleet = Fleet::new(8, &limit);
    let mut envelope = Envelope::new(RATE, RATE);
    let mut random = fastrand::Rng::with_seed(7);
    let (mut asked, mut admitted, mut counted) = (0, 0, 0);
    // The first two seconds offer twice the limit, to use up the burst.
    for micros in (0..70_000_000).step_by(1_000_000 / RATE as usize) {
        let times = if micros < 2_000_000 { 2 } else { 1 };
        for _ in 0..times {
            asked += 1;
            if fleet.take(random.usize(..8), 1) {
                admitted += 1;
                counted += u64::from(micros >= 10_000_000);
                envelope.add(fleet.clock.now(), 1);
            }
        }
        fleet.pass(Span::from_micros(1_000_000 / RATE));
    }
    let calls = fleet.store.calls();
    println!("{asked} asked, {admitted} admitted, {calls} calls, {counted} in the last 60 s");
    assert!(calls * 20 <= asked, "{calls} calls for {asked} decisions");
    assert!(counted * 100 >= 99 * 60 * RATE, "{counted} of {}", 60 * RATE);
    assert!(conserves(&fleet.stats()), "{:?}", fleet.stats());
}

/// A load of ten times the limit makes at most one call per twenty requests, and never exceeds the
/// limit.
#[test]
fn a_flood_hardly_reaches_the_store() {
    for skewed in [false, true] {
        const RATE: u64 = 1_000;
        let limit = per_second(RATE);
        let fleet = Fleet::new(8, &limit);
        let mut envelope = Envelope::new(RATE, RATE);
        let mut random = fastrand::Rng::with_seed(3);
        let (mut asked, mut admitted) = (0, 0);
        for _ in 0..100_000 {
            let node =
                if skewed { random.usize(..64) / 8 * random.usize(..2) } else { random.usize(..8) };
            asked += 1;
            if fleet.take(node, 1) {
                admitted += 1;
                envelope.add(fleet.clock.now(), 1);
            }
            fleet.pass(Span::from_micros(100));
        }
        let calls = fleet.store.calls();
        println!("{asked} asked, {admitted} admitted, {calls} calls");
        assert!(calls * 20 <= asked, "{calls} calls for {asked} requests");
        assert!(admitted * 100 >= 99 * RATE * 10, "{admitted} admitted");
        assert!(conserves(&fleet.stats()), "{:?}", fleet.stats());
    }
}

/// A node that holds units until the last moment and spends them then stays within the bound.
#[test]
fn hoarding_admits_no_more_than_the_limit() {
    for seed in 0..200 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (rate, nodes) = (random.u64(200..2_000), random.usize(1..6));
        let burst = rate.div_ceil(2) + random.u64(..rate);
        let limit = Limit::token_bucket(Rate::per_second(rate)).burst(burst).build().unwrap();
        let fleet = Fleet::new(nodes, &limit);
        let mut envelope = Envelope::new(rate, burst);
        for _ in 0..400 {
            let node = random.usize(..nodes);
            for _ in 0..random.u64(1..60) {
                let cost = random.u64(1..3);
                if fleet.take(node, cost) {
                    envelope.add(fleet.clock.now(), cost);
                }
            }
            fleet.pass(Span::from_micros(random.u64(..60_000)));
        }
        assert!(conserves(&fleet.stats()), "seed {seed}: {:?}", fleet.stats());
    }
}

#[test]
fn each_window_admits_its_limit_and_no_more() {
    for sliding in [false, true] {
        let rate = Rate::per_second(500);
        let builder = if sliding { Limit::sliding_window(rate) } else { Limit::fixed_window(rate) };
        let limit = builder.build().unwrap();
        let fleet = Fleet::new(4, &limit);
        let mut random = fastrand::Rng::with_seed(11);
        let mut each = [0_u64; 11];
        for step in 0..20_000_usize {
            let window = fleet.clock.now().since(START).as_micros() / 1_000_000;
            each[window as usize] += u64::from(fleet.take(random.usize(..4), 1));
            fleet.pass(Span::from_micros(500));
            assert!(step % 1_000 > 0 || conserves(&fleet.stats()));
        }
        assert!(each.iter().all(|count| *count <= 500), "{each:?}");
        let least = if sliding { 400 } else { 480 };
        assert!(each[..10].iter().all(|count| *count >= least), "{each:?}");
    }
}

#[test]
fn a_denial_elsewhere_gives_the_units_back() {
    let fleet = Fleet::new(1, &per_second(1_000));
    fleet.warm();
    let held = fleet.stats().outstanding;
    assert!(held > 0, "it takes units ahead by now");
    let none = Limit::fixed_window(Rate::per_second(0)).build().unwrap();
    let closed = Charge::new(Key::new(Scope::new("closed", &none), b""), &none, Op::Take(1));
    let mut decisions = Vec::new();
    let charges = [fleet.charge(b"whale", Op::Take(1)), closed];
    at_once(fleet.nodes[0].0.decide_leased(
        fleet.clock.now(),
        Batch::together(&charges),
        &mut decisions,
    ))
    .unwrap();
    assert_eq!(decisions.iter().map(Decision::is_allowed).collect::<Vec<_>>(), [true, false]);
    assert_eq!(fleet.stats().outstanding, held);
    // A denial from the budget sends no request for the other charges.
    let calls = fleet.store.calls();
    while fleet.take(0, 1) {}
    let charges = [fleet.charge(b"whale", Op::Take(1)), fleet.charge(b"other", Op::Take(1))];
    decisions.clear();
    at_once(fleet.nodes[0].0.decide_leased(
        fleet.clock.now(),
        Batch::together(&charges),
        &mut decisions,
    ))
    .unwrap();
    assert!(!decisions[0].is_allowed() && decisions[1].remaining == 900, "{decisions:?}");
    assert!(fleet.store.calls() > calls);
    assert!(conserves(&fleet.stats()));
}

#[test]
fn peeks_are_answered_by_what_is_here_and_take_nothing() {
    let fleet = Fleet::new(1, &per_second(1_000));
    fleet.warm();
    let (calls, stats) = (fleet.store.calls(), fleet.stats());
    let read = fleet.decide(0, &fleet.charge(b"whale", Op::Read(1)));
    assert!(read.is_allowed());
    assert_eq!((fleet.store.calls(), fleet.stats()), (calls, stats));
    fleet.decide(0, &fleet.charge(b"whale", Op::Read(500)));
    assert_eq!(fleet.store.calls(), calls + 1, "more than is here");
}

#[test]
fn what_is_not_spent_goes_back_at_the_end() {
    let fleet = Fleet::new(2, &per_second(1_000));
    fleet.warm();
    let held = fleet.stats().outstanding;
    let remaining = || {
        fleet.decide(
            1,
            &Charge { options: LimitOptions::default(), ..fleet.charge(b"whale", Op::Read(0)) },
        )
    };
    let before = remaining().remaining;
    at_once(fleet.nodes[0].return_leases());
    assert_eq!(remaining().remaining, (before + held).min(900));
    let stats = fleet.stats();
    assert!(stats.returned == held && stats.outstanding == 0 && conserves(&stats), "{stats:?}");
    at_once(fleet.nodes[0].return_leases());
    assert_eq!(fleet.stats().returned, held, "once");
}

#[test]
fn new_numbers_and_resets_take_away_what_is_held() {
    let fleet = Fleet::new(1, &per_second(1_000));
    fleet.warm();
    assert!(fleet.stats().outstanding > 0);
    fleet.nodes[0].0.leases.clear();
    assert_eq!(fleet.stats().outstanding, 0);
    fleet.warm();
    assert!(fleet.stats().outstanding > 0);
    fleet.decide(0, &fleet.charge(b"whale", Op::Reset));
    assert_eq!(fleet.stats().outstanding, 0);
    fleet.warm();
    let other = leased(&per_second(2_000)).unwrap();
    fleet.decide(0, &Charge { limit: &other, ..fleet.charge(b"whale", Op::Take(1)) });
    assert_eq!(fleet.stats().outstanding, 0, "units of other numbers");
    assert!(conserves(&fleet.stats()));
}

#[tokio::test]
async fn one_asks_and_the_others_wait_for_it() {
    let fleet = Arc::new(Fleet::new(1, &per_second(1_000)));
    let drain = || while fleet.stats().outstanding > 0 && fleet.take(0, 1) {};
    fleet.warm();
    drain();
    let before = fleet.store.calls();
    let permits = fleet.store.0.turnstile.available_permits();
    fleet.store.0.turnstile.forget_permits(permits);
    let ask = || {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let (mut decisions, now) = (Vec::new(), fleet.clock.now());
            let charge = fleet.charge(b"whale", Op::Take(1));
            fleet.nodes[0]
                .0
                .decide_leased(now, Batch::one(&charge), &mut decisions)
                .await
                .map(|_| decisions[0])
        })
    };
    let all: Vec<_> = (0..20).map(|_| ask()).collect();
    tokio::task::yield_now().await;
    fleet.store.0.turnstile.add_permits(1);
    for task in all {
        assert!(task.await.unwrap().unwrap().is_allowed());
    }
    assert_eq!(fleet.store.calls() - before, 1);
    // A failed refill fails all waiting requests, so none waits for a second deadline.
    drain();
    fleet.store.0.is_away.store(true, Ordering::Relaxed);
    let all: Vec<_> = (0..20).map(|_| ask()).collect();
    tokio::task::yield_now().await;
    fleet.store.0.turnstile.add_permits(1);
    for task in all {
        assert_eq!(task.await.unwrap(), Err(StoreError::Timeout));
    }
    assert_eq!(fleet.store.calls() - before, 2);
    // If the request that refills is cancelled, another one refills.
    fleet.store.0.is_away.store(false, Ordering::Relaxed);
    let (first, second) = (ask(), ask());
    tokio::task::yield_now().await;
    first.abort();
    tokio::task::yield_now().await;
    fleet.store.0.turnstile.add_permits(2);
    assert!(second.await.unwrap().unwrap().is_allowed());
    assert!(conserves(&fleet.stats()));
}

/// While the first of two charges waits for the store, the units held for the second expire.
#[test]
fn what_ended_while_another_charge_waited_is_not_spent() {
    let fleet = Fleet::new(1, &per_second(1_000));
    for _ in 0..60 {
        for text in [&b"shark"[..], b"whale"] {
            fleet.decide(0, &fleet.charge(text, Op::Take(1)));
        }
        fleet.pass(Span::from_millis(1));
    }
    // Repeats until the first key has to ask the store while the second still holds units.
    let (mut context, turnstile) = (Context::from_waker(Waker::noop()), &fleet.store.0.turnstile);
    let permits = turnstile.available_permits();
    let both = [b"shark", b"whale"].map(|text| fleet.charge(text, Op::Take(1)));
    loop {
        turnstile.forget_permits(permits);
        let (mut decisions, before) = (Vec::new(), fleet.store.calls());
        let deciding = fleet.nodes[0].0.decide_leased(
            fleet.clock.now(),
            Batch::together(&both),
            &mut decisions,
        );
        let mut deciding = pin!(deciding);
        let is_pending = deciding.as_mut().poll(&mut context).is_pending();
        turnstile.add_permits(permits);
        if is_pending {
            assert!(fleet.stats().outstanding > 0, "of the other");
            fleet.pass(LEASE);
            assert!(deciding.poll(&mut context).is_ready());
            // One call for each key, and one more for the first, whose units came too late.
            assert_eq!(fleet.store.calls() - before, 3);
            break;
        }
        fleet.decide(0, &both[0]);
    }
    assert!(conserves(&fleet.stats()));
}

/// The limit changes while a request waits, so the budget that it waits for is replaced.
#[tokio::test]
async fn no_request_waits_for_a_budget_that_is_gone() {
    let fleet = Arc::new(Fleet::new(1, &per_second(1_000)));
    fleet.warm();
    while fleet.stats().outstanding > 0 && fleet.take(0, 1) {}
    let permits = fleet.store.0.turnstile.available_permits();
    fleet.store.0.turnstile.forget_permits(permits);
    let (charge, now) = (fleet.charge(b"whale", Op::Take(1)), fleet.clock.now());
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let charges = [charge];
    let mut filler =
        Box::pin(fleet.nodes[0].0.decide_leased(now, Batch::together(&charges), &mut first));
    let mut waiter =
        Box::pin(fleet.nodes[0].0.decide_leased(now, Batch::together(&charges), &mut second));
    let mut context = Context::from_waker(Waker::noop());
    assert!(filler.as_mut().poll(&mut context).is_pending());
    assert!(waiter.as_mut().poll(&mut context).is_pending());
    // The request that refills the budget is cancelled, and the budget is replaced before the
    // waiting request is polled.
    drop(filler);
    fleet.store.0.turnstile.add_permits(2);
    let other = leased(&per_second(2_000)).unwrap();
    fleet.decide(0, &Charge { limit: &other, ..charge });
    let Poll::Ready(answered) = waiter.as_mut().poll(&mut context) else { panic!("it waits") };
    assert_eq!(answered, Ok(DecisionSource::Store));
    drop(waiter);
    assert!(second[0].is_allowed() && conserves(&fleet.stats()));
}

/// A request's budget is replaced before the request returns the units that it spent.
#[tokio::test]
async fn units_are_not_returned_to_another_budget() {
    let fleet = Arc::new(Fleet::new(1, &per_second(1_000)));
    fleet.warm();
    assert!(fleet.stats().outstanding > 0);
    let none = Limit::fixed_window(Rate::per_second(0)).build().unwrap();
    let closed = Charge::new(Key::new(Scope::new("closed", &none), b""), &none, Op::Take(1));
    let charge = fleet.charge(b"whale", Op::Take(1));
    let permits = fleet.store.0.turnstile.available_permits();
    fleet.store.0.turnstile.forget_permits(permits);
    let (mut decisions, charges) = (Vec::new(), [charge, closed]);
    let now = fleet.clock.now();
    let mut asking =
        Box::pin(fleet.nodes[0].0.decide_leased(now, Batch::together(&charges), &mut decisions));
    let mut context = Context::from_waker(Waker::noop());
    assert!(asking.as_mut().poll(&mut context).is_pending());
    fleet.store.0.turnstile.add_permits(2);
    let other = leased(&per_second(2_000)).unwrap();
    fleet.decide(0, &Charge { limit: &other, ..charge });
    assert!(asking.as_mut().poll(&mut context).is_ready());
    drop(asking);
    assert!(!decisions[1].is_allowed());
    let stats = fleet.stats();
    assert!(stats.outstanding == 0 && stats.unspent == 0 && conserves(&stats), "{stats:?}");
}

#[test]
fn units_that_are_held_need_no_store() {
    let fleet = Fleet::new(1, &per_second(1_000));
    fleet.warm();
    fleet.store.0.is_away.store(true, Ordering::Relaxed);
    let held = fleet.stats().outstanding;
    assert!(held > 0);
    let charge = fleet.charge(b"whale", Op::Take(1));
    assert!((0..held).all(|_| fleet.decide(0, &charge).is_allowed()));
    let mut decisions = Vec::new();
    let answered = at_once(fleet.nodes[0].0.decide_leased(
        fleet.clock.now(),
        Batch::one(&charge),
        &mut decisions,
    ));
    assert_eq!((answered, decisions), (Err(StoreError::Timeout), vec![]));
}

#[test]
fn a_decision_at_once_is_the_same_as_by_asking() {
    let (asked, looked) = (Fleet::new(1, &per_second(1_000)), Fleet::new(1, &per_second(1_000)));
    for fleet in [&asked, &looked] {
        fleet.warm();
    }
    let try_decide_locally = |text| {
        let (layers, charge) = (&looked.nodes[0].0, looked.charge(text, Op::Take(1)));
        layers.decide_at_once(looked.clock.now(), &charge, layers.print(&charge))
    };
    let held = looked.stats().outstanding;
    for _ in 0..held {
        assert_eq!(
            try_decide_locally(b"whale"),
            Some(asked.decide(0, &asked.charge(b"whale", Op::Take(1))))
        );
    }
    let before = (looked.stats(), looked.store.calls());
    assert_eq!(
        (try_decide_locally(b"whale"), try_decide_locally(b"minnow")),
        (None, None),
        "the store has to be asked"
    );
    assert_eq!((looked.stats(), looked.store.calls()), before);
    assert_eq!(looked.stats().spent, asked.stats().spent);
}

/// The store decides a key without a budget, and the deny cache repeats its denial.
#[test]
fn a_denial_of_a_key_without_a_budget_is_repeated_at_once() {
    let fleet = Fleet::new(1, &per_second(1_000));
    let node = &fleet.nodes[0];
    let one = fleet.charge(b"minnow", Op::Take(1));
    let decide = |op| {
        let mut decisions = Vec::new();
        let charge = Charge { op, ..one };
        at_once(node.0.decide_leased(START, Batch::one(&charge), &mut decisions)).unwrap();
        decisions[0]
    };
    let free = decide(Op::Read(1)).remaining;
    assert!(decide(Op::Take(free)).is_allowed());
    assert_eq!(
        node.0.decide_at_once(START, &one, node.0.print(&one)),
        None,
        "no request has been denied"
    );
    let denied = decide(Op::Take(1));
    assert_eq!(node.0.decide_at_once(START, &one, node.0.print(&one)), Some(denied));
    assert!(!denied.is_allowed());
    assert_eq!(fleet.store.calls(), 3);
}

#[test]
fn a_key_takes_up_room_only_while_it_is_in_demand() {
    let (budgets, limit) = (LocalBudgets::new(true), per_second(1_000));
    // All keys are in one set.
    let gets_one = |key: u64, millis: u64| {
        let now = START + Span::from_millis(millis);
        budgets.of(key << 56, &limit, now, |_| ()).is_some()
    };
    for key in 1..=4 {
        assert!(!gets_one(key, 0) && !gets_one(key, 20) && gets_one(key, 40 + key), "{key}");
    }
    assert!(!gets_one(5, 0) && !gets_one(5, 100) && !gets_one(5, 120), "three times, but not soon");
    assert!(gets_one(5, 149), "three times within two turns");
    assert!(!gets_one(1, 150), "who was there longest has made room");
    assert!((2..=5).all(|key| gets_one(key, 160)), "and no other key");
    assert!(!gets_one(5, 400), "no request for a long time");
}
