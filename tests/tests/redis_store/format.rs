//! What stands in Redis: names of keys and texts of states, which nodes of all releases share.

use std::num::NonZeroU16;

use redis::{Cmd, Connection, FromRedisValue};
use tidegate::store::background::Background;
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{Batch, Charge, LimitOptions, Store};
use tidegate::{Clock, Key, Limit, ManualClock, Op, Rate, Scope, Span, Timestamp};
use tidegate_tests::servers::RedisServer;
use tidegate_tests::shared_comparison::store;

use crate::client::runtime;

const NOW: Timestamp = Timestamp::from_micros(1_700_000_000_123_456);

fn query<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> T {
    let mut command = Cmd::new();
    command.arg(words);
    command.query(connection).expect("a sound server")
}

/// Every key with its value, in the order of the names.
fn contents(server: &RedisServer) -> Vec<String> {
    let mut connection = server.connection();
    let mut keys: Vec<String> = query(&mut connection, &["KEYS", "*{acme*"]);
    keys.sort();
    let mut line = |key: &String| {
        let value: Vec<String> = match &*query::<String>(&mut connection, &["TYPE", key]) {
            "list" => query(&mut connection, &["LRANGE", key, "0", "-1"]),
            "zset" => query(&mut connection, &["ZRANGE", key, "0", "-1", "WITHSCORES"]),
            _ => vec![query(&mut connection, &["GET", key])],
        };
        format!("{key} = {}", value.join(" "))
    };
    keys.iter().map(&mut line).collect()
}

/// One limit of each family, with the units that are taken.
fn limits() -> Vec<(Limit, u64)> {
    let built = |builder: tidegate_core::Builder| builder.build().expect("valid numbers");
    let third = Rate::new(3, Span::from_secs(10));
    vec![
        (built(Limit::token_bucket(Rate::per_second(10)).burst(20)), 3),
        (built(Limit::token_bucket(third)), 2),
        (built(Limit::leaky_bucket(Rate::per_second(10))), 2),
        (built(Limit::fixed_window(Rate::per_minute(10)).offset(Span::from_secs(7))), 4),
        (built(Limit::sliding_window(Rate::per_minute(10))), 5),
        (built(Limit::sliding_log(Rate::per_minute(10))), 6),
        (Limit::in_flight(10, Span::from_secs(30)).expect("valid numbers"), 1),
        (
            built(Limit::token_bucket(Rate::per_minute(2)))
                .blocking(Span::from_secs(600))
                .expect("a rate"),
            2,
        ),
    ]
}

/// A change here loses every state, or is misread by nodes of an earlier release: give the keys other names
/// instead.
#[test]
fn names_of_keys_and_texts_of_states_never_change() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let store = store(&server.url()).await;
        for (number, (limit, units)) in limits().iter().enumerate() {
            let key =
                Key::new(Scope::new(&format!("limit {number}"), limit), b"user:17").tagged(b"acme");
            let mut decisions = Vec::new();
            for (later, units) in [(0, 1), (1_000_000, *units)] {
                let (now, charge) =
                    (NOW + Span::from_micros(later), Charge::new(key, limit, Op::Take(units)));
                store.decide(now, Batch::one(&charge), &mut decisions).await.expect("a decision");
            }
        }
    });
    let expected = [
        "tg:3XR0GzlQ8l7:{acme}user:17 = 1700000001323456",
        "tg:6xnWbgv8mC4:{acme}user:17 = 1700000010123456",
        "tg:NtVkk3NSS8A:{acme}user:17 = 1700000030123456",
        "tg:NtVkk3NSS8A:{acme}user:17:block = 1700000001123456:1700000601123456",
        "tg:XZghvA525YG:{acme}user:17 = 1700000040000000:0:6",
        "tg:dkYEnMHX3MK:{acme}user:17 = 1700000001423456",
        "tg:kSAWz1pY0BF:{acme}user:17 = @ -1700000001123456 # -3 1700000000123456 \
         1700000030123456 1700000001123456 1700000031123456",
        "tg:ntMimMDXMg7:{acme}user:17 = 1700000047000000:5",
        "tg:sxcAkIjfnQL:{acme}user:17 = 1700000000123456:0:1 1700000001123456:1:6",
    ];
    assert_eq!(contents(&server), expected);
}

/// A shard's key names its number and theirs. Leased units are taken from the key itself.
#[test]
fn names_of_shards_never_change() {
    let server = RedisServer::start();
    runtime().block_on(async {
        let (store, clock) = (store(&server.url()).await, Clock::from(ManualClock::at(NOW)));
        let options = SharedOptions::default();
        let store = SharedStore::start(store, &options, clock, &Background::tokio());
        let store = store.expect("address space");
        let limit = Limit::fixed_window(Rate::per_minute(10)).build().expect("valid numbers");
        let key = Key::new(Scope::new("limit", &limit), b"user:17").tagged(b"acme");
        let options = LimitOptions::default().shards(NonZeroU16::new(3).expect("three"));
        let charge = Charge::new(key, &limit, Op::Take(1)).on(options);
        for _ in 0..3 {
            store.decide(NOW, Batch::one(&charge), &mut Vec::new()).await.expect("a decision");
        }
    });
    let expected = [
        "tg:8mAT2TB7Zk2:{acme/@A}user:17 = 1700000040000000:1",
        "tg:YSS2CD3jeP8:{acme/@@}user:17 = 1700000040000000:1",
        "tg:lI6pG5zWCFB:{acme/@B}user:17 = 1700000040000000:1",
    ];
    assert_eq!(contents(&server), expected);
}
