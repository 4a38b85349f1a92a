//! A Redis that hangs, dies, comes back or refuses: what each `on_store_failure` promises holds through
//! the library and over every transport (F1, F2, F4, F12, F13, F22).

#![expect(clippy::disallowed_methods, reason = "promises about time are what is tested")]

mod drill;
mod places;
mod refusal;
mod transports;

use std::time::{Duration, Instant};

use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::store::circuits::CircuitState;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{DecisionSource, Nodes, OnStoreFailure};
use tidegate::{Clock, Span, Verdict};
use tidegate_tests::servers::{Cluster, RedisServer, wait_until};
use tokio::runtime::Runtime;

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_millis(250);

/// One limit for each mode. Nothing to speak of comes back while a test runs.
const POLICY: &str = "
domain: shop
descriptors:
  - {key: local, rate: 20/year, on_store_failure: local}
  - {key: allow, rate: 1000/year, on_store_failure: allow}
  - {key: deny, rate: 1000/year, on_store_failure: deny}
";

fn policy() -> Policy {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

/// A node: the library as the guide puts it together.
struct Node {
    runtime: Runtime,
    limiter: PolicyLimiter<SharedStore<RedisStore>>,
}

impl Node {
    /// One of so many.
    fn start(url: &str, nodes: u32) -> Self {
        let config = RedisConfig::new(url).expect("an address").deadline(DEADLINE);
        Self::start_with(config, nodes)
    }

    fn start_with(config: RedisConfig, nodes: u32) -> Self {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
        let clock = Clock::default();
        let store = runtime.block_on(async {
            let nodes = Nodes::try_from(nodes).expect("at least one");
            let options = SharedOptions::default().nodes(nodes);
            let store = SharedStore::connect(config, options, clock.clone()).await;
            store.expect("a server, or no need for one")
        });
        let limiter = PolicyLimiter::new(policy(), store, clock);
        Self { runtime, limiter }
    }

    fn request<T>(&self, key: &str, value: &str, ask: impl AsyncFnOnce(Request<'_>) -> T) -> T {
        let entries = [Entry { key, value }];
        let descriptors = [Descriptor::new(&entries)];
        let request = Request { domain: "shop", descriptors: &descriptors, hits: None };
        self.runtime.block_on(ask(request))
    }

    /// There is always an answer.
    fn check(&self, key: &str) -> Verdict {
        let ask = async |request: Request<'_>| self.limiter.check(&request).await;
        self.request(key, "bob", ask).expect("a store that is away is no error")
    }

    /// How many of 200 requests for a user are admitted by `local`.
    fn admitted(&self, user: &str) -> u64 {
        let ask = async |request: Request<'_>| self.limiter.check(&request).await;
        let is_allowed = |_: &i32| {
            self.request("local", user, ask).expect("a store that is away is no error").is_allowed()
        };
        (0..200).filter(is_allowed).count() as u64
    }

    fn remaining(&self, key: &str) -> u64 {
        let ask = async |request: Request<'_>| self.limiter.peek(&request).await;
        let answer = self.request(key, "bob", ask).expect("as above");
        answer.parts().next().expect("a part").decision.expect("decided").remaining
    }

    fn state(&self) -> CircuitState {
        self.limiter.store().circuits()[0].state
    }

    /// Sends requests until none waits for the store, and returns how many were admitted.
    fn until_open(&self, key: &str) -> u64 {
        let mut admitted = 0;
        wait_until("the circuit opens", TIMEOUT, || {
            admitted += u64::from(self.check(key).is_allowed());
            self.state() == CircuitState::Open
        });
        admitted
    }

    fn until_closed(&self) {
        wait_until("the circuit closes", TIMEOUT, || self.state() == CircuitState::Closed);
    }

    fn until_booked(&self) {
        let store = self.limiter.store();
        wait_until("no debit is pending", TIMEOUT, || {
            let stats = store.stats().fallback;
            stats.owing_keys == 0 && stats.booked_keys > 0
        });
    }
}

/// How often scripts were called.
fn calls(redis: &RedisServer) -> u64 {
    let reply = redis.command(&["INFO", "commandstats"]);
    let reply = redis::from_redis_value::<String>(reply).expect("text");
    let calls =
        reply.lines().filter_map(|line| line.split_once("cmdstat_eval")?.1.split_once("calls="));
    calls.filter_map(|(_, rest)| rest.split(',').next()?.parse::<u64>().ok()).sum()
}

/// F1: each limit goes by its own word, and no further than that.
#[test]
fn a_store_that_dies_is_answered_for_as_each_policy_says() {
    let redis = RedisServer::start();
    let node = Node::start(&redis.url(), 2);
    for key in ["local", "allow", "deny"] {
        assert_eq!(node.check(key).source(), DecisionSource::Store);
    }
    redis.kill();
    let admitted = node.until_open("local");
    let asked = |key: &str| (0..200).filter(|_| node.check(key).is_allowed()).count() as u64;
    // 20 times 1.5 for two nodes, of which a twentieth was used.
    assert_eq!(admitted + asked("local"), 14, "this node's share, and not one more");
    assert_eq!(node.check("local").source(), DecisionSource::Fallback(OnStoreFailure::Local));
    assert!(!node.check("local").is_unavailable(), "an exceeded limit is no outage");
    assert_eq!(asked("allow"), 200);
    assert_eq!(node.check("allow").source(), DecisionSource::Fallback(OnStoreFailure::Allow));
    assert_eq!(asked("deny"), 0);
    let denied = node.check("deny");
    assert!(
        denied.is_unavailable()
            && denied.source() == DecisionSource::Fallback(OnStoreFailure::Deny)
    );
    let wait = denied.retry_after().expect("it is worth trying again");
    assert!(wait <= Duration::from_millis(300), "until the next probe: {wait:?}");
    let stats = node.limiter.store().stats().fallback;
    assert_eq!((stats.owing_keys, stats.answered[1]), (2, 201), "{stats:?}");
}

/// A process forgets its share when it restarts. Until Redis has answered, it admits a quarter of its part of
/// the limit and not one and a half times that part, so restarts during an outage admit little.
#[test]
fn a_node_that_restarts_during_an_outage_has_a_smaller_share() {
    let redis = RedisServer::start();
    let url = redis.url();
    let node = Node::start(&url, 1);
    assert_eq!(node.check("local").source(), DecisionSource::Store);
    redis.kill();
    assert_eq!(node.until_open("local") + node.admitted("bob"), 28, "20 times 1.5, one used");
    drop(node);
    let restart = || {
        let config = RedisConfig::new(&url).expect("an address").deadline(DEADLINE);
        Node::start_with(config.start_without_server(), 1)
    };
    for _ in 0..3 {
        assert_eq!(restart().admitted("bob"), 5, "a quarter of 20");
    }
    let node = restart();
    assert_eq!(node.admitted("bob"), 5);
    redis.restart();
    wait_until("Redis decides", TIMEOUT, || node.check("allow").source() == DecisionSource::Store);
    node.until_booked();
    redis.kill();
    node.until_open("allow");
    assert_eq!(node.admitted("ann"), 30, "20 times 1.5, once Redis has answered");
}

/// F13, F22: what was admitted is booked; what may have been booked twice is never taken back.
#[test]
fn units_admitted_in_an_outage_are_booked_after_it() {
    for hangs in [true, false] {
        let redis = RedisServer::start();
        let node = Node::start(&redis.url(), 1);
        let mut admitted = u64::from(node.check("allow").is_allowed());
        // One that dies forgets what it knew.
        if hangs {
            redis.pause()
        } else {
            redis.kill()
        }
        let waited = node.until_open("allow");
        admitted = if hangs { admitted + waited } else { waited };
        admitted += (0..100).filter(|_| node.check("allow").is_allowed()).count() as u64;
        if hangs {
            redis.resume()
        } else {
            redis.restart()
        }
        node.until_closed();
        node.until_booked();
        let taken = 1_000 - node.remaining("allow");
        assert!(taken >= admitted, "{admitted} were let in, {taken} booked; hangs: {hangs}");
        assert!(
            taken <= admitted + waited + 1,
            "each at most twice: {taken}, {admitted}, {waited}"
        );
        let stats = node.limiter.store().stats().fallback;
        assert!(stats.booked_keys >= 1 && stats.booked_units >= 100, "{stats:?}");
    }
}

/// F2: after five timeouts no request waits, and only the probe uses the store.
#[test]
fn a_store_that_hangs_is_asked_by_probes_alone() {
    let redis = RedisServer::start();
    let node = Node::start(&redis.url(), 1);
    node.check("allow");
    let before = calls(&redis);
    redis.pause();
    let start = Instant::now();
    let mut waited = 0;
    wait_until("some probes have been made", TIMEOUT, || {
        let asked = Instant::now();
        assert!(node.check("allow").is_allowed());
        waited += u32::from(asked.elapsed() >= DEADLINE);
        start.elapsed() >= Duration::from_secs(4)
    });
    // Five in a row, and as many again for a machine that stalls.
    assert!(waited <= 10, "{waited} requests waited for the deadline");
    assert!(
        node.limiter.store().stats().fallback.answered[1] > 100,
        "as many were answered at once"
    );
    redis.resume();
    wait_until("it answers", TIMEOUT, || redis.is_answering());
    let asked = calls(&redis) - before;
    // A probe every 200 ms at the most, and one more while we look.
    let probes = u64::try_from(start.elapsed().as_millis() / 200).expect("a few") + 2;
    assert!(asked <= 5 + probes, "{asked} calls in an outage with at most {probes} probes");
}

/// F13: back in time, and not thrown back.
#[test]
fn a_store_that_is_back_is_used_again_soon() {
    let redis = RedisServer::start();
    let node = Node::start(&redis.url(), 1);
    node.check("allow");
    redis.pause();
    node.until_open("allow");
    redis.resume();
    let start = Instant::now();
    wait_until("all go by the store", TIMEOUT, || {
        node.check("allow").source() == DecisionSource::Store
            && node.state() == CircuitState::Closed
    });
    // Two seconds, and ten times that for a slow machine.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// F4: keys of other nodes do not notice.
#[test]
fn one_node_of_a_cluster_takes_its_own_keys_with_it() {
    let cluster = Cluster::start();
    let node = Node::start(&cluster.url(), 1);
    // A descriptor's first entry is its tag.
    let users = || (0..40).map(|number| format!("user{number}"));
    let check = |user: &str| {
        let ask = async |request: Request<'_>| node.limiter.check(&request).await;
        node.request("allow", user, ask).expect("a store that is away is no error")
    };
    for user in users() {
        assert_eq!(check(&user).source(), DecisionSource::Store);
    }
    let paused = cluster.pause_primary_of(0);
    wait_until("its keys are decided here", TIMEOUT, || {
        let circuits = node.limiter.store().circuits();
        users().for_each(|user| assert!(check(&user).is_allowed()));
        circuits.iter().any(|circuit| circuit.state == CircuitState::Open)
    });
    let by_store = users().filter(|user| check(user).source() == DecisionSource::Store).count();
    let circuits = node.limiter.store().circuits();
    let open = circuits.iter().filter(|circuit| circuit.state != CircuitState::Closed).count();
    assert!(by_store > 0 && open == 1, "{by_store} of 40 by the store: {circuits:?}");
    paused.resume();
}
