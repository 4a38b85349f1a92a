//! The same by a request that meets limits on two servers.

use std::sync::Arc;
use std::time::Duration;

use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::{Batch, Charge, Store};
use tidegate::{Decision, Key, Limit, Op, Scope, Timestamp};
use tidegate_tests::clients::limit;
use tidegate_tests::servers::{RedisServer, wait_until};
use tokio::task;

/// Long enough for a machine that builds at the same time.
const TIMEOUT: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600;

/// Whether so many units are taken from each of these limits.
async fn takes(store: &RedisStore, wanted: &[(Limit, u64)]) -> bool {
    let charge = |(limit, units): &'_ (Limit, u64)| (Scope::new("crossing", limit), *units);
    let named: Vec<(Scope, u64)> = wanted.iter().map(charge).collect();
    let charges: Vec<Charge<'_>> = named
        .iter()
        .zip(wanted)
        .map(|((scope, units), (limit, _))| {
            Charge::new(Key::new(*scope, b"key"), limit, Op::Take(*units))
        })
        .collect();
    let mut decisions = Vec::new();
    let decided = store.decide(Timestamp::EPOCH, Batch::together(&charges), &mut decisions).await;
    decided.expect("sound servers");
    decisions.iter().all(Decision::is_allowed)
}

fn scripts_run(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).expect("a number")
}

/// It reserves in one window; the next has begun, and is used up, when it is denied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_return_of_a_denied_request_takes_no_other_units() {
    let (long, short) = (RedisServer::builder().faketime().start(), RedisServer::start());
    let config = RedisConfig::new(&long.url()).expect("a valid address");
    let config = config.per_second(&short.url()).expect("a valid address");
    let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
    let store = Arc::new(RedisStore::connect(config).await.expect("sound servers"));
    let hourly = limit("fixed_window:2:3600000000");
    // More than it ever admits, so it denies.
    let (never, before) = ((limit("fixed_window:1:1000000"), 2), scripts_run(&long));
    short.pause();
    let asked = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { takes(&store, &[(hourly, 1), never]).await })
    };
    task::block_in_place(|| {
        wait_until("the first limit is reserved", TIMEOUT, || scripts_run(&long) > before);
    });
    long.step_clock(HOUR);
    assert!(takes(&store, &[(hourly, 2)]).await, "a new window");
    short.resume();
    // It looks at the first limit once more before it answers, behind what it gives back.
    assert!(!asked.await.expect("no panic"));
    assert!(!takes(&store, &[(hourly, 1)]).await, "the window had two, and both were taken");
}

/// And within the same window it is given back.
#[tokio::test]
async fn units_reserved_by_a_denied_request_are_returned() {
    let (long, short) = (RedisServer::start(), RedisServer::start());
    let config = RedisConfig::new(&long.url()).expect("a valid address");
    let config = config.per_second(&short.url()).expect("a valid address");
    let store = RedisStore::connect(config.deadline(TIMEOUT)).await.expect("sound servers");
    let never = (limit("fixed_window:1:1000000"), 2);
    let year = 365 * 86_400_000_000_u64;
    for family in ["token_bucket", "fixed_window", "sliding_window", "sliding_log"] {
        let yearly = limit(&format!("{family}:3:{year}"));
        assert!(!takes(&store, &[(yearly, 3), never]).await);
        assert!(takes(&store, &[(yearly, 3)]).await, "{family}");
        assert!(!takes(&store, &[(yearly, 1)]).await, "{family}");
    }
    let places = limit("in_flight:3:3600000000");
    assert!(!takes(&store, &[(places, 3), never]).await);
    assert!(takes(&store, &[(places, 3)]).await);
}
