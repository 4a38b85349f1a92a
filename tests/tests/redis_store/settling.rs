//! Limits that are settled after the response, in Redis that several nodes share.

use std::num::NonZeroU32;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Clock;
use tidegate::policy::{
    Descriptor, Entry, Merging, Policy, PolicyLimiter, Request, RequestOutcome, Reservations,
    Settled,
};
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http;
use tidegate_tests::servers::{Cluster, RedisServer};

use crate::load::TIMEOUT;

const POLICY: &str = "
domain: api
descriptors:
  - {key: login, rate: 5/15min, algorithm: sliding_log, count: [401]}
  - key: user
    limits:
      - {name: requests, rate: 100/min, algorithm: fixed_window, refund: [5xx]}
      - {name: tokens, rate: 100000/day, cost: 800, actual: {application: true}}
      - {name: money, rate: 1000/day, algorithm: sliding_window, cost: 50, actual: {application: true}}
";

fn policy() -> Policy {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

fn config(url: &str) -> RedisConfig {
    RedisConfig::new(url).expect("an address").deadline(TIMEOUT).connect_timeout(TIMEOUT)
}

async fn node(url: &str) -> PolicyLimiter<RedisStore> {
    let store = RedisStore::connect(config(url)).await.expect("a server");
    PolicyLimiter::new(policy(), store, Clock::default())
}

fn with_request<T>(key: &str, value: &str, ask: impl FnOnce(&Request<'_>) -> T) -> T {
    let entries = [Entry { key, value }];
    let descriptors = [Descriptor::new(&entries)];
    ask(&Request { domain: "api", descriptors: &descriptors, hits: None })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads")
}

/// Number of reservations that the server keeps; a replica only has copies.
fn open(server: &RedisServer) -> usize {
    if server.info("role") == "slave" {
        return 0;
    }
    let keys: Vec<String> =
        redis::from_redis_value(server.command(&["KEYS", "*:open:*"])).expect("keys");
    for key in &keys {
        let ttl: i64 =
            redis::from_redis_value(server.command(&["PTTL", key])).expect("a time to live");
        assert!((1..=3_600_000).contains(&ttl), "{key} lives for {ttl} ms");
    }
    keys.len()
}

/// A daemon whose state is in Redis.
struct Node {
    // Ends before the store that it asks.
    server: Server,
    _service: RateLimitService,
}

impl Node {
    fn start(redis: &RedisServer) -> Self {
        let service =
            RateLimitService::connect_with(config(&redis.url()), SharedOptions::default());
        let service = service.unwrap_or_else(|error| panic!("{error}"));
        service.replace(policy());
        let http = Some(([127, 0, 0, 1], 0).into());
        let settings = Settings { http, ..Settings::default() };
        Self { server: serve(&settings, &service).expect("it starts"), _service: service }
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let call = format!("POST {path}");
        let answer = http::ask(self.server.http().expect("open"), &call, "", &body.to_string());
        (answer.status, serde_json::from_str(&answer.body).expect("JSON"))
    }
}

/// At two daemons: what one has reserved, the other settles.
#[test]
fn ov_37_of_a_thousand_wrong_guesses_at_once_five_reach_the_handler() {
    const GUESSES: usize = 1_000;
    let redis = RedisServer::start();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    let (reached, returned) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let start = Barrier::new(GUESSES);
    let guess = |number: usize| {
        start.wait();
        let question = json!({"domain": "api", "descriptors": [{"login": "bob"}]});
        let (status, reply) = nodes[number % 2].post("/v1/check", &question);
        if status != 200 {
            assert_eq!(status, 429, "{reply}");
            return;
        }
        reached.fetch_add(1, Ordering::SeqCst);
        let outcome = json!({"reservation": reply["reservation"], "status": 401});
        let (_, settled) = nodes[(number + 1) % 2].post("/v1/settle", &outcome);
        assert_eq!((&settled["settled"], &settled["returned"]), (&json!(1), &json!(0)));
        // The other daemon finds nothing left to settle.
        let outcome = json!({"reservation": reply["reservation"], "status": 200});
        let (_, again) = nodes[number % 2].post("/v1/settle", &outcome);
        returned
            .fetch_add(again["returned"].as_u64().expect("a number") as usize, Ordering::SeqCst);
        assert_eq!(again["not_open"], 1);
    };
    thread::scope(|scope| {
        for number in 0..GUESSES {
            let guess = &guess;
            let thread = thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, move || guess(number)).expect("a thread");
        }
    });
    assert_eq!((reached.load(Ordering::SeqCst), returned.load(Ordering::SeqCst)), (5, 0));
    assert_eq!(open(&redis), 0);
}

/// Three limits of one request, each settled once, however many nodes settle it.
#[test]
fn ov_39_nodes_that_settle_one_request_at_once_settle_each_limit_once() {
    let (redis, runtime) = (RedisServer::start(), runtime());
    let nodes = runtime.block_on(async { [node(&redis.url()).await, node(&redis.url()).await] });
    let all = |round: u64| -> Settled {
        let (verdict, reservations) = with_request("user", "bob", |request| {
            runtime.block_on(nodes[0].reserve(request)).expect("a server")
        });
        assert!(verdict.is_allowed() && reservations.len() == 3);
        assert_eq!(open(&redis), 3);
        let text = reservations.to_string();
        let mut tasks = Vec::new();
        for number in 0..20 {
            let (node, text) = (nodes[number % 2].clone(), text.clone());
            tasks.push(runtime.spawn(async move {
                let reservations: Reservations = text.parse().expect("its own text");
                let costs = [("tokens", 300 + 900 * (round % 2)), ("money", 50)];
                let outcome = RequestOutcome::status(503).costs(&costs);
                node.settle(&reservations, &outcome).await.expect("a server")
            }));
        }
        let mut sum = Settled::default();
        for task in tasks {
            let settled = runtime.block_on(task).expect("no panic");
            sum.settled += settled.settled;
            sum.not_open += settled.not_open;
            sum.returned += settled.returned;
            sum.booked += settled.booked;
        }
        sum
    };
    for round in 0..20 {
        let Settled { settled, not_open, returned, booked, .. } = all(round);
        let expected = if round % 2 == 0 { (501, 0) } else { (1, 400) };
        assert_eq!((settled, not_open, (returned, booked)), (3, 57, expected), "round {round}");
    }
    assert_eq!(open(&redis), 0);
    let verdict = with_request("user", "bob", |request| {
        runtime.block_on(nodes[1].peek(request)).expect("a server")
    });
    let left: Vec<u64> =
        verdict.parts().map(|part| part.decision.expect("decided").remaining).collect();
    // Ten at 300 and ten at 1,200 tokens; a refill of one a second or so.
    assert_eq!((left[0], left[2]), (100, 0));
    assert!((85_000..85_100).contains(&left[1]), "{left:?}");
}

/// Keys of one tag are in one slot, reservations included.
#[test]
fn reservations_are_in_the_slot_of_their_key() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    runtime.block_on(async {
        let node = node(&cluster.url()).await;
        for number in 0..60 {
            let text = format!("user-{number}");
            let entries = [Entry { key: "user", value: &text }];
            let other = format!("other-{number}");
            let others = [Entry { key: "login", value: &other }];
            // Two tags: reserved route by route.
            let descriptors = [Descriptor::new(&entries), Descriptor::new(&others)];
            let request = Request { domain: "api", descriptors: &descriptors, hits: None };
            let (verdict, reservations) = node.reserve(&request).await.expect("a cluster");
            assert!(verdict.is_allowed() && reservations.len() == 4);
            let outcome = RequestOutcome::status(200).cost(10);
            let settled = node.settle(&reservations, &outcome).await.expect("a cluster");
            assert_eq!((settled.settled, settled.returned), (4, 790 + 40 + 1));
            let again = node.settle(&reservations, &outcome).await.expect("a cluster");
            assert_eq!((again.settled, again.not_open), (0, 4));
        }
    });
    assert_eq!(cluster.servers().map(open).sum::<usize>(), 0);
}

/// A request that a limit in another slot denies leaves neither units nor reservations.
#[test]
fn a_denial_in_another_slot_takes_the_reservations_back() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    runtime.block_on(async {
        let node = node(&cluster.url()).await;
        let left = async |key: &str, value: &str| {
            let entries = [Entry { key, value }];
            let descriptors = [Descriptor::new(&entries)];
            let request = Request { domain: "api", descriptors: &descriptors, hits: Some(1) };
            node.peek(&request)
                .await
                .expect("a cluster")
                .parts()
                .next()
                .and_then(|part| part.decision.map(|it| it.remaining))
        };
        for number in 0..20 {
            let (user, login) = (format!("user-{number}"), format!("login-{number}"));
            let (entries, others) =
                ([Entry { key: "user", value: &user }], [Entry { key: "login", value: &login }]);
            let descriptors = [Descriptor::new(&entries), Descriptor::new(&others)];
            let request = Request { domain: "api", descriptors: &descriptors, hits: None };
            for _ in 0..5 {
                assert!(node.reserve(&request).await.expect("a cluster").0.is_allowed());
            }
            let before = left("user", &user).await;
            let (verdict, reservations) = node.reserve(&request).await.expect("a cluster");
            assert!(verdict.is_denied() && reservations.is_empty());
            let mut pause = tokio::time::interval(Duration::from_millis(5));
            let mut tries = 0;
            while left("user", &user).await != before {
                tries += 1;
                assert!(tries < 1_000, "the units are not back");
                pause.tick().await;
            }
        }
    });
    // Those of the hundred requests that were admitted: three limits of the user and one of the login.
    assert_eq!(cluster.servers().map(open).sum::<usize>(), 20 * 5 * 4);
}

/// What is admitted without Redis stands; what Redis holds can be settled once it is back.
#[test]
fn settling_fails_while_redis_is_unavailable_and_may_be_repeated() {
    let (redis, runtime) = (RedisServer::start(), runtime());
    runtime.block_on(async {
        let clock = Clock::default();
        let config = RedisConfig::new(&redis.url()).expect("an address");
        let store = SharedStore::connect(
            config,
            SharedOptions::default().nodes(NonZeroU32::MIN),
            clock.clone(),
        );
        let node = PolicyLimiter::new(policy(), store.await.expect("a server"), clock);
        let entries = [Entry { key: "login", value: "bob" }];
        let descriptors = [Descriptor::new(&entries)];
        let request = Request { domain: "api", descriptors: &descriptors, hits: None };
        let (verdict, reservations) = node.reserve(&request).await.expect("a server");
        assert_eq!(verdict.remaining(), 4);
        redis.pause();
        let ok = RequestOutcome::status(200);
        assert!(node.settle(&reservations, &ok).await.expect_err("no answer").is_outage());
        let (verdict, without) = node.reserve(&request).await.expect("the share");
        assert!(verdict.is_allowed());
        assert!(node.settle(&without, &ok).await.is_err());
        assert_eq!(node.settle_stats().failed, 2);
        redis.resume();
        let mut settled = node.settle(&reservations, &ok).await;
        let mut pause = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..1_000 {
            if settled.is_ok() {
                break;
            }
            pause.tick().await;
            settled = node.settle(&reservations, &ok).await;
        }
        let settled = settled.expect("the server is back");
        // The call that got no answer may have arrived.
        assert_eq!(settled.settled + settled.not_open, 1);
        let settled = node.settle(&without, &ok).await.expect("the server is back");
        assert_eq!((settled.not_open, settled.returned), (1, 0), "the store never knew of it");
    });
}
