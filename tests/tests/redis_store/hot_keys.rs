//! Keys that one server cannot serve: divided into shards on real servers, held back on each node, and
//! decided by it alone.

mod transports;

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::time::Duration;

use redis::from_redis_value;
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::store::circuits::CircuitState;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{DecisionSource, Store};
use tidegate::{Clock, ManualClock, Timestamp, Verdict};
use tidegate_tests::servers::{Cluster, RedisServer, wait_until};
use tokio::runtime::Runtime;

const TIMEOUT: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_millis(250);

/// Nothing to speak of comes back while a test runs.
const POLICY: &str = "
domain: platform
descriptors:
  - {key: whale, rate: 803/year, shards: 8, on_store_failure: allow}
  - {key: window, rate: 800/year, algorithm: fixed_window, shards: 8}
  - {key: plain, rate: 100/year}
  - {key: fronted, rate: 100/year, local: {rate: 30/year}}
";

fn policy() -> Policy {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

/// A node, put together as the daemon is.
struct Node {
    runtime: Runtime,
    limiter: PolicyLimiter<SharedStore<RedisStore>>,
}

impl Node {
    fn start(url: &str) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let clock = Clock::default();
        let store = runtime.block_on(async {
            let config = RedisConfig::new(url).expect("an address").deadline(DEADLINE);
            let options = SharedOptions::default().nodes(NonZeroU32::MIN);
            let store = SharedStore::connect(config, options, clock.clone()).await;
            store.expect("a fresh server")
        });
        Self { runtime, limiter: PolicyLimiter::new(policy(), store, clock) }
    }

    fn request<T>(&self, keys: &[&str], ask: impl AsyncFnOnce(Request<'_>) -> T) -> T {
        let entries: Vec<[Entry<'_>; 1]> =
            keys.iter().map(|key| [Entry { key, value: "acme" }]).collect();
        let descriptors: Vec<_> = entries.iter().map(|it| Descriptor::new(it)).collect();
        let request = Request { domain: "platform", descriptors: &descriptors, hits: None };
        self.runtime.block_on(ask(request))
    }

    fn check(&self, keys: &[&str]) -> Verdict {
        let ask = async |request: Request<'_>| self.limiter.check(&request).await;
        self.request(keys, ask).expect("always an answer")
    }

    fn passing(&self, requests: usize, keys: &[&str]) -> usize {
        (0..requests).filter(|_| self.check(keys).is_allowed()).count()
    }

    fn remaining(&self, key: &str) -> u64 {
        let ask = async |request: Request<'_>| self.limiter.peek(&request).await;
        let answer = self.request(&[key], ask).expect("always an answer");
        answer.parts().next().expect("a part").decision.expect("decided").remaining
    }

    fn circuits(&self) -> Vec<CircuitState> {
        self.limiter.store().circuits().iter().map(|it| it.state).collect()
    }
}

fn keys_of(server: &RedisServer) -> Vec<String> {
    from_redis_value(server.command(&["KEYS", "tg:*{acme/*"])).expect("names of keys")
}

/// By the servers' own word, every shard lies in a slot of its own, and every primary has some.
#[test]
fn shards_lie_in_different_slots_on_every_server() {
    let cluster = Cluster::start();
    let nodes = [Node::start(&cluster.url()), Node::start(&cluster.url())];
    let admitted: usize = (0..30).map(|round| nodes[round % 2].passing(40, &["window"])).sum();
    // Nodes begin elsewhere, and meet all shards by turns.
    assert!((796..=800).contains(&admitted), "at most the limit, and nearly all: {admitted}");
    let primaries = cluster.servers().filter(|server| server.info("role") == "master");
    let each: Vec<Vec<String>> = primaries.map(keys_of).collect();
    let slots: HashSet<u16> = each.iter().flatten().map(|key| cluster.slot_of(key)).collect();
    assert_eq!(slots.len(), 8, "{each:?}");
    assert!(each.iter().all(|keys| keys.len() >= 2), "{each:?}");
}

/// On one server, two nodes, offered three times the limit, admit it and no more; what is given
/// back can be had again, and a reset is one of all shards.
#[test]
fn nodes_share_the_shards_of_a_key() {
    let redis = RedisServer::start();
    let nodes = [Node::start(&redis.url()), Node::start(&redis.url())];
    let admitted: usize = (0..48).map(|round| nodes[round % 2].passing(50, &["whale"])).sum();
    assert!((799..=803).contains(&admitted), "{admitted}");
    assert_eq!(keys_of(&redis).len(), 8);
    let denied = nodes[0].check(&["whale"]);
    let part = denied.parts().next().expect("a part").decision.expect("decided");
    assert!(!denied.is_allowed() && part.limit == 803, "{part:?}");

    let left = nodes[0].remaining("whale");
    for _ in 0..5 {
        let refund = async |request: Request<'_>| nodes[0].limiter.refund(&request).await;
        nodes[0].request(&["whale"], refund).expect("a store that is there");
    }
    assert_eq!(nodes[0].remaining("whale"), left + 5);
    assert_eq!(803 - left, admitted as u64);
    let reset = async |request: Request<'_>| nodes[1].limiter.reset(&request).await;
    nodes[1].request(&["whale"], reset).expect("a store that is there");
    assert_eq!(nodes[0].remaining("whale"), 803);
    let explain = async |request: Request<'_>| nodes[0].limiter.explain(&request).await;
    let explained = nodes[0].request(&["whale"], explain).expect("a store that is there");
    assert_eq!(
        explained.parts().find_map(|part| part.state).map(|it| it.limit),
        Some(100),
        "of one shard"
    );
}

/// Together with a limit that is not divided: all or nothing, over slots as on one server.
#[test]
fn shards_are_charged_together_with_other_limits() {
    let (redis, cluster) = (RedisServer::start(), Cluster::start());
    for url in [redis.url(), cluster.url()] {
        let node = Node::start(&url);
        assert_eq!(node.passing(150, &["whale", "plain"]), 100, "{url}");
        wait_until("what was reserved is back", TIMEOUT, || node.remaining("whale") == 703);
        assert_eq!(node.remaining("plain"), 0);
    }
}

/// What was admitted without the store is booked on the shards, where it would have been taken.
#[test]
fn pending_debits_are_booked_on_the_shards() {
    let redis = RedisServer::start();
    let node = Node::start(&redis.url());
    redis.kill();
    let mut admitted = 0;
    wait_until("the circuit opens", TIMEOUT, || {
        admitted += node.passing(1, &["whale"]);
        node.circuits()[0] == CircuitState::Open
    });
    admitted += node.passing(300, &["whale"]);
    assert!(
        admitted > 300 && matches!(node.check(&["whale"]).source(), DecisionSource::Fallback(_))
    );
    redis.restart();
    wait_until("no debit is pending", TIMEOUT, || {
        let stats = node.limiter.store().stats().fallback;
        stats.owing_keys == 0 && stats.booked_keys > 0
    });
    wait_until("the circuit closes", TIMEOUT, || node.circuits()[0] == CircuitState::Closed);
    let left = node.remaining("whale");
    // The one that was asked for its decision_source is owed too.
    assert_eq!(803 - left, admitted as u64 + 1, "{:?}", node.limiter.store().stats().fallback);
    assert_eq!(keys_of(&redis).len(), 8, "spread over all of them");
}

/// A primary that hangs costs its own shards; the others go on, and no more is admitted.
#[test]
fn shards_of_other_servers_go_on_without_one() {
    let cluster = Cluster::start();
    let node = Node::start(&cluster.url());
    assert!(node.check(&["window"]).is_allowed());
    let slot = cluster.slot_of("{acme/@@}");
    let paused = cluster.pause_primary_of(slot);
    let mut alone = 0;
    wait_until("its circuit opens", TIMEOUT, || {
        alone += usize::from(node.check(&["window"]).source() != DecisionSource::Store);
        node.circuits().contains(&CircuitState::Open)
    });
    // Before a replica takes over, which takes seconds.
    let answers: Vec<Verdict> = (0..60).map(|_| node.check(&["window"])).collect();
    assert!(
        answers.iter().all(|it| it.source() == DecisionSource::Store),
        "no charge is decided without the store"
    );
    assert!(answers.iter().all(Verdict::is_allowed), "there is room on the others");
    assert!(alone <= 20, "only who waited for it: {alone}");
    paused.resume();
}

/// Replicas that count each for itself multiply a limit; one store behind them does not.
#[test]
fn local_counting_multiplies_a_limit_by_its_replicas() {
    let text =
        "domain: platform\ndescriptors: [{key: plain, rate: 100/min, algorithm: fixed_window}]";
    let load = || Policy::load(&[("p", text)], Merging::Refuse).policy.expect("sound");
    let entries = [Entry { key: "plain", value: "acme" }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: "platform", descriptors: &descriptors, hits: None };
    let alone: Vec<usize> = (0..3)
        .map(|_| {
            let clock = Clock::from(ManualClock::at(Timestamp::from_secs(1_000_020)));
            let store = tidegate::store::memory::MemoryStore::new(1 << 20, Default::default());
            let store = store.expect("a megabyte").with_clock(clock.clone());
            let replica = PolicyLimiter::new(load(), store, clock);
            (0..150).filter(|_| replica.check_now(&request).expect("one").is_allowed()).count()
        })
        .collect();
    assert_eq!(alone[..2].iter().sum::<usize>(), 200, "A and B");
    assert_eq!(alone.iter().sum::<usize>(), 300, "three replicas of 100 a minute");

    let redis = RedisServer::start();
    let nodes: Vec<Node> = (0..3).map(|_| Node::start(&redis.url())).collect();
    let shared: usize = nodes.iter().map(|node| node.passing(150, &["plain"])).sum();
    assert_eq!(shared, 100, "the limit, however many replicas");
}

/// The bucket of each node goes first, and what it denies costs no call; both bounds hold.
#[test]
fn a_local_bucket_spares_the_store() {
    let redis = RedisServer::start();
    let nodes: Vec<Node> = (0..5).map(|_| Node::start(&redis.url())).collect();
    let asked = || -> u64 {
        let stats: String =
            from_redis_value(redis.command(&["INFO", "commandstats"])).expect("text");
        let calls = stats
            .lines()
            .filter_map(|line| line.split_once("cmdstat_eval")?.1.split_once("calls="));
        calls.filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok()).sum()
    };
    let before = asked();
    let passed: Vec<usize> = nodes.iter().map(|node| node.passing(200, &["fronted"])).collect();
    assert_eq!(passed, [30, 30, 30, 10, 0], "30 on each node, 100 over all");
    // The last two nodes ask about each until the deny cache knows, and give the units back.
    assert!(asked() - before <= 110, "{} of 1,000", asked() - before);
    let answer = nodes[0].check(&["fronted"]);
    let part = answer.parts().next().expect("a part").decision.expect("decided");
    assert!(answer.parts().len() == 1 && !answer.is_allowed() && part.limit == 30, "{part:?}");
    let now = Clock::default().now();
    assert!(nodes[0].limiter.store().clock(now) >= Timestamp::EPOCH);
}
