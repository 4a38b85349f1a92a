//! Whose clock is wrong, and what of it: a client's never matters, the store's heals (F7, F8).

mod stepped;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::store::redis::{RedisConfig, RedisStore, TimeSource};
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate::{
    Clock, Decision, Explanation, Key, Limit, Limiter, ManualClock, Op, Scope, SharedLimiter, Span,
    SystemClock, Timestamp,
};
use tidegate_tests::clients::limit;
use tidegate_tests::servers::RedisServer;

use stepped::Stepped;

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(30);
const HOUR: i64 = 3_600;

async fn store(server: &RedisServer, settles_after: Duration, time: TimeSource) -> RedisStore {
    let config = RedisConfig::new(&server.url())
        .expect("a valid address")
        .deadline(TIMEOUT)
        .connect_timeout(TIMEOUT)
        .settles_after(settles_after)
        .time(time);
    RedisStore::connect(config).await.expect("a fresh server")
}

/// One store under several limiters: what they ask at once is decided at one instant.
#[derive(Clone, Debug)]
struct SameStore(Arc<RedisStore>);

impl Store for SameStore {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.0.decide(now, batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.0.explain(now, charge).await
    }
}

/// A node whose clock is off by so many seconds.
struct Node {
    limiter: SharedLimiter<SameStore>,
    clock: ManualClock,
    skew: i64,
}

impl Node {
    fn new(store: &SameStore, text: &str, skew: i64) -> Self {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit(text, limit(text)).clock(clock.clone());
        let limiter = limiter.shared(store.clone()).expect("one limit");
        Self { limiter, clock, skew }
    }

    fn set(&self, now: Timestamp, skew: i64) {
        let skewed = now.as_micros().saturating_add_signed(skew * 1_000_000);
        self.clock.set(Timestamp::from_micros(skewed));
    }
}

/// Tens of milliseconds, so that time matters while the test runs.
const QUICK: [&str; 7] = [
    "token_bucket:10:30000:20",
    "gcra:7:30000:3",
    "leaky_bucket:10:30000",
    "fixed_window:10:30000",
    "sliding_window:10:30000",
    "sliding_log:10:30000",
    "in_flight:10:30000",
];

/// F7: the right clock, five seconds off either way, an hour off either way, and one that is
/// stepped by an hour to and fro.
#[tokio::test]
async fn clocks_of_nodes_change_no_decision() {
    let server = RedisServer::start();
    let store = store(&server, Duration::ZERO, TimeSource::Store).await;
    let (store, right) = (SameStore(Arc::new(store)), Clock::System(SystemClock::new()));
    for text in QUICK {
        let skews = [0, 5, -5, HOUR, -HOUR, 0];
        let nodes: Vec<Node> = skews.iter().map(|skew| Node::new(&store, text, *skew)).collect();
        let (mut admitted, mut denied, mut differences) = (0, 0, 0);
        for round in 0..1_000 {
            let stepped = [0, HOUR, 0, -HOUR][round / 50 % 4];
            let now = right.now();
            for (number, node) in nodes.iter().enumerate() {
                node.set(now, if number == 5 { stepped } else { node.skew });
            }
            let cost = fastrand::u64(0..=3);
            let asked = nodes.iter().enumerate().map(|(number, node)| async move {
                let key = format!("node:{number}");
                let verdict = node.limiter.report(key, cost).await.expect("a server");
                let decision = *verdict.decision();
                // Ids of leases are the store's time; they are its only trace in a decision.
                (decision.outcome, decision.remaining, decision.reset_after, decision.lease)
            });
            let decisions = join_all(asked).await;
            differences += decisions.iter().filter(|other| **other != decisions[0]).count();
            match decisions[0].0 {
                tidegate::Outcome::Deny { .. } => denied += 1,
                tidegate::Outcome::Allow | tidegate::Outcome::Delay(_) => admitted += 1,
            }
        }
        assert_eq!(differences, 0, "{text}");
        assert!(admitted > 50 && denied > 50, "{text}: {admitted} admitted, {denied} denied");
    }
}

/// What the same skew does where a client's clock decides, which only tests can ask for. It
/// shows that the comparison above would have noticed, and how much less a window suffers.
#[tokio::test]
async fn a_store_that_trusted_its_clients_would_decide_otherwise() {
    let server = RedisServer::start();
    let store = store(&server, Duration::ZERO, TimeSource::Caller).await;
    let store = SameStore(Arc::new(store));
    for text in ["gcra:10:10000000:10", "sliding_window:10:10000000"] {
        let admissions = async |key: &str, skews: [i64; 2]| {
            let nodes = skews.map(|skew| Node::new(&store, text, skew));
            let mut admitted = Vec::new();
            for tick in 0..3_000_u64 {
                let node = &nodes[usize::from(tick % 2 == 1)];
                node.set(Timestamp::from_micros(1_800_000_000_000_000 + tick * 20_000), node.skew);
                let verdict = node.limiter.check(key).await.expect("a server");
                admitted.push(verdict.is_allowed());
            }
            admitted
        };
        let right = admissions("right", [0, 0]).await;
        let skewed = admissions("skewed", [5, -5]).await;
        let differences = right.iter().zip(&skewed).filter(|(one, other)| one != other).count();
        let count = |admitted: &[bool]| admitted.iter().filter(|admitted| **admitted).count();
        let (right, skewed) = (count(&right), count(&skewed));
        println!(
            "{text} by clients' clocks, 5 s off either way: {differences} of 3000 decisions \
             differ, {skewed} instead of {right} admitted; by the store's clock none"
        );
        assert!(differences > 0, "{text}");
    }
}

async fn check_steps(text: &str) {
    let stepped = Stepped::start(text).await;
    // An hour is many windows, a second is one.
    for seconds in [HOUR, -HOUR, -1, 1, -HOUR] {
        stepped.step(seconds).await;
    }
}

#[tokio::test]
async fn a_stepped_store_neither_locks_out_of_a_bucket_nor_fills_it_twice() {
    check_steps("token_bucket:10:1000000:10").await;
}

#[tokio::test]
async fn a_stepped_store_neither_locks_out_of_a_leaky_bucket_nor_fills_it_twice() {
    check_steps("leaky_bucket:7:1000000").await;
}

#[tokio::test]
async fn a_stepped_store_neither_locks_out_of_a_fixed_window_nor_grants_two() {
    check_steps("fixed_window:10:1000000").await;
}

#[tokio::test]
async fn a_stepped_store_neither_locks_out_of_a_sliding_window_nor_grants_two() {
    check_steps("sliding_window:10:1000000").await;
}

#[tokio::test]
async fn a_stepped_store_neither_locks_out_of_a_sliding_log_nor_grants_two() {
    check_steps("sliding_log:10:1000000").await;
}

#[tokio::test]
async fn a_stepped_store_neither_keeps_leases_for_ever_nor_frees_places_twice() {
    check_steps("in_flight:10:1000000").await;
}

/// A window that starts next is kept within an hour of its start only: at noon, a window of a day that was
/// exhausted tomorrow denies until midnight, and a sliding one until its units have left.
#[tokio::test]
async fn a_store_that_was_a_day_ahead_denies_no_longer_than_a_window_and_an_hour() {
    let hours = |hours: u64| Span::from_secs(hours * 3_600);
    for (text, most) in
        [("fixed_window:10:86400000000", hours(12)), ("sliding_window:10:86400000000", hours(24))]
    {
        let denied = Stepped::start(text).await.denied_after_a_day_ahead().await;
        assert!(denied <= most, "{text}: denied for {denied} after the clock went back");
    }
}

/// A node with lower numbers repairs nothing before they have settled, or it would
/// refill the bucket for the nodes that have the old ones.
#[tokio::test]
async fn numbers_that_have_not_settled_repair_nothing() {
    let server = RedisServer::start();
    let high = [limit("token_bucket:10:600000000:100"), limit("in_flight:5:600000000")];
    let low = [limit("token_bucket:10:600000000:10"), limit("in_flight:5:60000000")];
    for (high, low) in high.into_iter().zip(low) {
        let settled = store(&server, Duration::ZERO, TimeSource::Store).await;
        let unsettled = store(&server, Duration::from_secs(600), TimeSource::Store).await;
        let take = async |store: &RedisStore, limit: &Limit| {
            let (key, mut decisions) = (Key::new(Scope::new("x", limit), b"x"), Vec::new());
            let charge = Charge::new(key, limit, Op::Take(1));
            store
                .decide(Timestamp::EPOCH, Batch::one(&charge), &mut decisions)
                .await
                .expect("a server");
            decisions[0].is_allowed()
        };
        let dump = || {
            let key = format!("tg:{}:{{x}}", Scope::new("x", &high));
            let dump = server.command(&["DUMP", &key]);
            redis::from_redis_value::<Vec<u8>>(dump).expect("a key")
        };
        while take(&settled, &high).await {}
        let before = dump();
        assert!(!take(&unsettled, &low).await, "nothing is left");
        assert_eq!(dump(), before, "a node that is not sure has written: {low:?}");
        assert!(!take(&settled, &high).await, "refilled by a node that is not sure: {high:?}");
        assert!(!take(&settled, &low).await, "nothing is left");
        assert_ne!(dump(), before, "a node that is sure has not repaired: {low:?}");
    }
}
