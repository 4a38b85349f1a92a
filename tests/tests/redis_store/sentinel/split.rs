//! Limits of a second or less have a server of their own.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::from_redis_value;
use tidegate::store::redis::{RedisConfig, RedisStore, TimeSource};
use tidegate::store::{Batch, Charge, Store, StoreError};
use tidegate::{Decision, Key, Limit, Op, Rate, Scope, Timestamp};
use tidegate_tests::servers::{RedisServer, wait_until};

use crate::load::{DEADLINE, TIMEOUT, runtime};

/// Time stands still, or what is taken from a second would be back at once.
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limits() -> [(&'static str, Limit); 2] {
    let built = |builder: tidegate_core::Builder| builder.build().expect("plain numbers");
    [
        ("second", built(Limit::token_bucket(Rate::per_second(10)))),
        ("minute", built(Limit::fixed_window(Rate::per_minute(100)))),
    ]
}

async fn connect(minutes: &RedisServer, seconds: &RedisServer) -> RedisStore {
    let config = RedisConfig::new(&minutes.url()).expect("a valid address");
    let config = config.per_second(&seconds.url()).expect("a valid address");
    let config = config.deadline(DEADLINE).time(TimeSource::Caller);
    RedisStore::connect(config).await.expect("fresh servers")
}

async fn decide(store: &RedisStore, text: &str, ops: [Op; 2]) -> Result<Vec<Decision>, StoreError> {
    let limits = limits();
    let charges = limits.iter().zip(ops).map(|((name, limit), op)| {
        let key = Key::new(Scope::new(name, limit), text.as_bytes());
        Charge::new(key, limit, op)
    });
    let (charges, mut decisions) = (charges.collect::<Vec<_>>(), Vec::new());
    store.decide(NOW, Batch::together(&charges), &mut decisions).await.map(|_| decisions)
}

async fn take(store: &RedisStore, text: &str) -> Result<bool, StoreError> {
    let decisions = decide(store, text, [Op::Take(1); 2]).await?;
    Ok(decisions.iter().all(Decision::is_allowed))
}

async fn remaining(store: &RedisStore, text: &str) -> [u64; 2] {
    let decisions = decide(store, text, [Op::Read(0); 2]).await.expect("both servers are well");
    [decisions[0].remaining, decisions[1].remaining]
}

fn keys(server: &RedisServer) -> u64 {
    from_redis_value(server.command(&["DBSIZE"])).expect("a count")
}

#[test]
fn limits_of_a_second_have_a_server_of_their_own_and_requests_are_all_or_nothing_across_both() {
    let (minutes, seconds, runtime) = (RedisServer::start(), RedisServer::start(), runtime());
    let store = Arc::new(runtime.block_on(connect(&minutes, &seconds)));
    let before = (keys(&minutes), keys(&seconds));
    assert_eq!(runtime.block_on(take(&store, "user:1")), Ok(true));
    assert_eq!((keys(&minutes), keys(&seconds)), (before.0 + 1, before.1 + 1));
    assert_eq!(runtime.block_on(remaining(&store, "user:1")), [9, 99]);

    // The shorter limit denies: the longer gives back what was reserved, and the reverse.
    runtime.block_on(async {
        for _ in 0..9 {
            assert_eq!(take(&store, "user:1").await, Ok(true));
        }
        assert_eq!(take(&store, "user:1").await, Ok(false));
        assert_eq!(remaining(&store, "user:1").await, [0, 90]);
        decide(&store, "user:2", [Op::Take(0), Op::Take(98)]).await.expect("a decision");
        let admitted = join_all((0..50).map(|_| take(&store, "user:2"))).await;
        let admitted = admitted.into_iter().filter(|taken| *taken == Ok(true)).count();
        assert!(admitted <= 2, "{admitted} of 2");
    });
    wait_until("what was denied is given back", TIMEOUT, || {
        let [second, minute] = runtime.block_on(remaining(&store, "user:2"));
        10 - second == 2 - minute
    });
}

#[test]
fn without_one_of_two_servers_only_its_limits_fail_and_nothing_stays_reserved() {
    let (minutes, seconds, runtime) = (RedisServer::start(), RedisServer::start(), runtime());
    let store = Arc::new(runtime.block_on(connect(&minutes, &seconds)));
    assert_eq!(runtime.block_on(take(&store, "user")), Ok(true));
    seconds.kill();
    let refused = |_| {
        let error = runtime.block_on(take(&store, "user")).expect_err("one server is gone");
        assert!(error.is_outage(), "{error}");
    };
    (0..20).for_each(refused);
    let (name, limit) = limits()[1];
    let key = Key::new(Scope::new(name, &limit), b"user");
    wait_until("what was reserved is given back", TIMEOUT, || {
        let mut decisions = Vec::new();
        let charge = Charge::new(key, &limit, Op::Read(0));
        let decided = runtime.block_on(store.decide(NOW, Batch::one(&charge), &mut decisions));
        decided.expect("the other server is well");
        decisions[0].remaining == 99
    });
    seconds.restart();
    wait_until("both decide again", TIMEOUT, || runtime.block_on(take(&store, "user")) == Ok(true));
}
