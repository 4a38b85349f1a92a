//! Which node decides what, and with how many commands.

use std::collections::HashSet;
use std::sync::Arc;

use redis::from_redis_value;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::{Misconfigured, StoreError};
use tidegate::{Limit, Limiter, Rate};
use tidegate_tests::servers::{Cluster, RedisServer};

use crate::load::{connect, runtime};

/// Calls of a command that the server carried out, by clients and by scripts.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats: String =
        from_redis_value(server.command(&["INFO", "commandstats"])).expect("a text");
    let start = format!("cmdstat_{command}:calls=");
    let count = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
    count.map_or(0, |count| count.parse().expect("a count"))
}

fn script_calls(cluster: &Cluster) -> u64 {
    cluster.servers().map(|server| calls(server, "evalsha") + calls(server, "eval")).sum()
}

fn keys(cluster: &Cluster) -> Vec<String> {
    let primaries = cluster.servers().filter(|server| server.info("role") == "master");
    let keys = primaries.flat_map(|server| -> Vec<String> {
        from_redis_value(server.command(&["KEYS", "tg:*"])).expect("names of keys")
    });
    keys.collect()
}

fn three_limits(store: RedisStore) -> tidegate::SharedLimiter<RedisStore> {
    let bucket = Limit::token_bucket(Rate::per_hour(1_000)).build().expect("plain numbers");
    let window = Limit::fixed_window(Rate::per_day(5_000)).build().expect("plain numbers");
    let log = Limit::sliding_log(Rate::per_hour(2_000)).build().expect("plain numbers");
    let limiter = Limiter::builder().limit("hour", bucket).limit("day", window).limit("log", log);
    limiter.shared(store).expect("different names")
}

#[test]
fn limits_of_one_tenant_share_a_slot_and_cost_one_command() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    let quiet = crate::client::config(&cluster.url()).without_registry();
    let store = runtime.block_on(RedisStore::connect(quiet)).expect("a sound cluster");
    let limiter = three_limits(store);
    let ask = |round: u32| {
        for tenant in 0..4 {
            let text = format!("tenant:{tenant}");
            // The tenant itself, a user of it, and an address of that.
            let keys =
                [text.clone(), format!("{text}:user:{round}"), format!("{text}:address:{round}")];
            let alike = runtime.block_on(limiter.check(&text)).expect("a decision");
            let tagged = runtime.block_on(limiter.check_together_in(&text, &keys));
            assert!(alike.is_allowed() && tagged.expect("a decision").is_allowed());
        }
    };
    // A node learns a script when it first needs it.
    ask(0);
    let before = script_calls(&cluster);
    (1..50).for_each(ask);
    assert_eq!(script_calls(&cluster) - before, 49 * 4 * 2, "one command for each request");

    // By the servers' own word: keys of one text, and keys of one tag.
    let keys = keys(&cluster);
    assert_eq!(keys.len(), 4 * (3 + 50 * 2));
    let slots = (0..4).map(|tenant| {
        let text = format!("tenant:{tenant}");
        let slot = cluster.slot_of(&text);
        let own: Vec<&String> = keys.iter().filter(|key| key.contains(&text)).collect();
        assert_eq!(own.len(), 103);
        for key in own.iter().step_by(5).chain(own.iter().filter(|key| key.ends_with('}'))) {
            assert_eq!(cluster.slot_of(key), slot, "{key}");
        }
        slot
    });
    assert_eq!(slots.collect::<HashSet<u16>>().len(), 4, "tenants do not share one slot");
}

#[test]
fn decisions_never_read_a_replica_and_a_node_alone_is_refused() {
    let (cluster, runtime) = (Cluster::start(), runtime());
    let limiter = Arc::new(three_limits(runtime.block_on(connect(&cluster.url()))));
    runtime.block_on(async {
        for user in 0..300 {
            let text = format!("user:{user}");
            limiter.check(&text).await.expect("a decision");
            limiter.peek(&text, 1).await.expect("a decision");
            limiter.explain(&text).await.expect("an explanation");
        }
    });
    let (mut primaries, mut replicas) = (0, 0);
    for server in cluster.servers() {
        let reads = ["evalsha", "eval", "get", "lrange"].map(|command| calls(server, command));
        match server.info("role").as_str() {
            "slave" => {
                replicas += 1;
                assert_eq!(reads, [0; 4], "a replica only follows");
            }
            _ => {
                primaries += 1;
                assert!(reads[0] > 300, "each primary decides its share: {reads:?}");
            }
        }
    }
    assert_eq!((primaries, replicas), (3, 3));

    for server in cluster.servers() {
        let config = RedisConfig::new(&server.url()).expect("a valid address");
        let refused = runtime.block_on(RedisStore::connect(config));
        let error = refused.expect_err("a node alone cannot decide for all slots");
        let StoreError::Misconfigured(what, _) = &error else { panic!("{error:?}") };
        match server.info("role").as_str() {
            "slave" => assert_eq!(*what, Misconfigured::ReadOnly),
            _ => {
                assert_eq!(*what, Misconfigured::CrossSlot);
                assert!(error.to_string().contains("redis+cluster://"), "{error}");
            }
        }
    }
}
