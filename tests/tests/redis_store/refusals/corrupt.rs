//! A key that holds what no script writes is repaired, and fails no request.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::store::redis::{RedisStore, TimeSource};
use tidegate::store::{Batch, Charge, Store};
use tidegate::{Decision, Key, LeaseId, Limit, Op, Rate, Scope, Span, Timestamp};
use tidegate_tests::http;
use tidegate_tests::servers::{Daemon, DaemonSetup, RedisServer, our_program, wait_until};
use tokio::runtime::{Builder, Runtime};

use crate::client::{LIMIT, UNITS, ask, config, limits};

/// Requests that are made together go into one command: nothing runs in between.
fn together() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// The name of the key that one unit is taken from.
async fn name_of(store: &RedisStore, server: &RedisServer, limit: &Limit, text: &str) -> String {
    ask(store, limit, text, Op::Take(1)).await.expect("a sound key");
    let keys = server.command(&["KEYS", &format!("*{{{text}}}")]);
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of names");
    let [key] = &keys[..] else { panic!("not one key: {keys:?}") };
    key.clone()
}

/// Writes something else under a key.
fn plant(server: &RedisServer, key: &str, with: &[&str]) {
    server.command(&["DEL", key]);
    server.command(&[&[with[0], key], &with[1..]].concat());
}

fn calls(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let calls = stats.split_once("calls=").and_then(|(_, rest)| rest.split_once(','));
    calls.expect("a count of calls").0.parse().expect("a number")
}

/// Other types, texts without numbers, and numbers that no script writes.
const PLANTED: &[&[&str]] = &[
    &["SET", "x"],
    &["SET", ""],
    &["SET", "nan"],
    &["SET", "-nan:1"],
    &["SET", "inf"],
    &["SET", "-5"],
    &["SET", "1.5"],
    &["SET", "1e300"],
    &["SET", "nan:nan"],
    &["SET", "1:nan:1"],
    &["SET", "99999999999999999999999:1"],
    &["SET", "1:99999999999999999999999:1"],
    &["LPUSH", "x"],
    &["LPUSH", "nan:nan:nan"],
    &["LPUSH", "99999999999999999999999:1:1"],
    &["SADD", "x"],
    &["HSET", "nan", "nan"],
    &["ZADD", "1", "x"],
    &["ZADD", "inf", "#"],
    &["ZADD", "-inf", "#", "-1", "@"],
    &["ZADD", "-1.5", "#", "-1", "@"],
    &["ZADD", "-2", "#"],
    &["ZADD", "-9", "#", "-1", "@"],
];

/// In every family, one of thirty requests in one command reads what was planted. All are decided, in that
/// one command, and the planted key decides as a fresh one does.
#[test]
fn one_corrupt_key_fails_no_request() {
    let server = RedisServer::start();
    let runtime = together();
    let store = runtime.block_on(RedisStore::connect(config(&server.url()))).expect("sound");
    for (family, limit) in limits().iter().enumerate() {
        for (round, with) in PLANTED.iter().enumerate() {
            let corrupt = format!("corrupt:{family}:{round}");
            let found = store.corrupt_states();
            runtime.block_on(async {
                let key = name_of(&store, &server, limit, &corrupt).await;
                plant(&server, &key, with);
                let texts: Vec<String> = (0..30)
                    .map(
                        |n| if n == 17 { corrupt.clone() } else { format!("{family}:{round}:{n}") },
                    )
                    .collect();
                let before = calls(&server);
                let asked = texts.iter().map(|text| ask(&store, limit, text, Op::Take(1)));
                for (text, asked) in texts.iter().zip(join_all(asked).await) {
                    let decision = asked.unwrap_or_else(|error| panic!("{with:?} {text}: {error}"));
                    assert!(decision.is_allowed(), "{limit:?} {with:?} {text}: {decision:?}");
                    assert_eq!(decision.remaining, UNITS - 1, "{limit:?} {with:?} {text}");
                }
                assert_eq!(calls(&server) - before, 1, "{limit:?} {with:?}");
                let rest = ask(&store, limit, &corrupt, Op::Take(UNITS)).await.expect("repaired");
                assert_eq!((rest.is_allowed(), rest.remaining), (false, UNITS - 1), "{with:?}");
            });
            assert!(store.corrupt_states() > found, "{limit:?} {with:?}: not counted");
        }
    }
}

/// Alone, without a batch around it, each operation is decided as on a fresh key.
#[test]
fn every_operation_on_a_corrupt_key_is_decided() {
    let server = RedisServer::start();
    let runtime = together();
    let store = runtime.block_on(RedisStore::connect(config(&server.url()))).expect("sound");
    let lease = LeaseId::new(7).expect("not zero");
    let ops = |limit: &Limit| match limit {
        Limit::InFlight(_) => vec![Op::Release(lease), Op::Renew(lease)],
        _ => vec![Op::Return(1)],
    };
    for (family, limit) in limits().iter().enumerate() {
        let text = format!("alone:{family}");
        let key = runtime.block_on(name_of(&store, &server, limit, &text));
        for with in [&["SET", "nan"][..], &["LPUSH", "x"], &["SADD", "x"], &["ZADD", "-7", "#"]] {
            let more = ops(limit);
            for op in [Op::Take(1), Op::Read(1), Op::Force(1), Op::Reset].into_iter().chain(more) {
                plant(&server, &key, with);
                let asked = runtime.block_on(ask(&store, limit, &text, op));
                let decision = asked.unwrap_or_else(|error| panic!("{op:?} {with:?}: {error}"));
                let took = u64::from(matches!(op, Op::Take(_) | Op::Force(_)));
                assert_eq!(decision.remaining, UNITS - took, "{limit:?} {op:?} {with:?}");
            }
            plant(&server, &key, with);
            let key = Key::new(Scope::new("limit", limit), text.as_bytes());
            let charge = Charge::new(key, limit, Op::Read(0));
            let explained = runtime.block_on(store.explain(Timestamp::EPOCH, &charge));
            explained.unwrap_or_else(|error| panic!("{limit:?} {with:?}: {error}"));
        }
    }
}

/// Lists and sets of the right type whose contents no script writes: each call is decided as the
/// library decides, and no key is locked for longer than two windows.
#[test]
fn contents_at_random_lock_no_key() {
    const WINDOW: u64 = 60_000_000;
    let server = RedisServer::start();
    let runtime = together();
    let config = config(&server.url()).settles_after(Duration::ZERO).time(TimeSource::Caller);
    let store = runtime.block_on(RedisStore::connect(config)).expect("sound");
    let mut random = fastrand::Rng::with_seed(15);
    let start = 1_700_000_000_000_000;
    let minute = Rate::new(UNITS, Span::from_micros(WINDOW));
    let limits = [
        Limit::sliding_log(minute).build().expect("valid numbers"),
        Limit::in_flight(UNITS, Span::from_micros(WINDOW)).expect("valid numbers"),
    ];
    let take = |limit: &Limit, text: &str, micros, op| -> Decision {
        let key = Key::new(Scope::new("limit", limit), text.as_bytes());
        let (charge, mut decisions) = ([Charge::new(key, limit, op)], Vec::new());
        let asked =
            store.decide(Timestamp::from_micros(micros), Batch::together(&charge), &mut decisions);
        runtime.block_on(asked).unwrap_or_else(|error| panic!("{op:?} on {text}: {error}"));
        decisions[0]
    };
    for limit in &limits {
        take(limit, "random", start, Op::Take(1));
        let keys = server.command(&["KEYS", "*{random}"]);
        let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of names");
        for _ in 0..200 {
            let items = 1 + random.usize(..6);
            let planted: Vec<String> = match limit {
                Limit::SlidingLog(_) => (0..items).map(|_| entry(&mut random, start)).collect(),
                _ => (0..items).flat_map(|_| member(&mut random, start)).collect(),
            };
            let command = if matches!(limit, Limit::SlidingLog(_)) { "RPUSH" } else { "ZADD" };
            let words: Vec<&str> =
                [command].into_iter().chain(planted.iter().map(|w| &**w)).collect();
            plant(&server, &keys[0], &words);
            for step in 0..4 {
                for op in [Op::Take(1), Op::Read(2), Op::Force(1)] {
                    take(limit, "random", start + step * WINDOW / 4, op);
                }
            }
            take(limit, "random", start + 2 * WINDOW, Op::Take(1));
            let last = take(limit, "random", start + 4 * WINDOW, Op::Take(1));
            assert!(last.is_allowed(), "{limit:?} stays locked after {planted:?}: {last:?}");
            server.command(&["DEL", &keys[0]]);
        }
        server.command(&["FLUSHALL"]);
    }
}

/// An instant around `start`, or far from it.
fn instant(random: &mut fastrand::Rng, start: u64) -> String {
    match random.u8(..8) {
        0 => "0".into(),
        1 => "9007199254740993".into(),
        2 => "99999999999999999999".into(),
        _ => (start + random.u64(..200_000_000) - 100_000_000).to_string(),
    }
}

fn units(random: &mut fastrand::Rng) -> String {
    let units = ["0", "1", "2", "3", "4503599627370496", "4503599627370495", "x"];
    units[random.usize(..units.len())].into()
}

fn entry(random: &mut fastrand::Rng, start: u64) -> String {
    format!("{}:{}:{}", instant(random, start), units(random), units(random))
}

fn member(random: &mut fastrand::Rng, start: u64) -> [String; 2] {
    let id = random.u8(..4);
    let negative = |random: &mut fastrand::Rng| {
        let scores = ["-1", "-2", "-3", "-1.5", "-inf", "-4503599627370497", "0", "inf"];
        scores[random.usize(..scores.len())].to_owned()
    };
    match random.u8(..5) {
        0 => [negative(random), "#".into()],
        1 => [negative(random), "@".into()],
        2 => [negative(random), format!("w{id}")],
        3 => ["inf".into(), id.to_string()],
        _ => [instant(random, start), id.to_string()],
    }
}

/// What gives back is written at once, beside a corrupt key too: once.
#[test]
fn units_returned_beside_a_corrupt_key_are_returned_once() {
    let server = RedisServer::start();
    let runtime = together();
    runtime.block_on(async {
        let store = RedisStore::connect(config(&server.url())).await.expect("sound");
        for (family, limit) in limits().iter().enumerate().take(4) {
            let [text, corrupt] = ["spent", "corrupt"].map(|what| format!("{what}:{family}"));
            let key = name_of(&store, &server, limit, &corrupt).await;
            plant(&server, &key, if family < 3 { &["LPUSH", "x"] } else { &["SET", "x"] });
            ask(&store, limit, &text, Op::Take(3)).await.expect("a sound key");
            let given = ask(&store, limit, &text, Op::Return(1));
            let taken = ask(&store, limit, &corrupt, Op::Take(1));
            let (given, taken) = futures_util::future::join(given, taken).await;
            assert_eq!(given.expect("a sound key").remaining, 1, "{limit:?}");
            assert!(taken.expect("repaired").is_allowed());
            let rest = ask(&store, limit, &text, Op::Read(0)).await.expect("a sound key");
            assert_eq!(rest.remaining, 1, "{limit:?}");
        }
    });
}

/// The daemon decides, stays ready, counts what was planted and logs it.
#[test]
fn a_daemon_stays_ready_beside_corrupt_keys() {
    let server = RedisServer::start();
    let daemon = Daemon::start(DaemonSetup {
        program: &our_program("tidegate"),
        policy: "domain: any\ndescriptors: [{key: user, rate: 5/day}]\n",
        store: &server.url(),
        settings: &[],
        has_fake_clock: false,
    });
    let check = || {
        let body = r#"{"domain": "any", "descriptors": [{"user": "a"}]}"#;
        http::ask(daemon.transport("HTTP"), "POST /v1/check", "", body)
    };
    assert_eq!(check().status, 200);
    let keys = server.command(&["KEYS", "*{a}"]);
    let keys: Vec<String> = redis::from_redis_value(keys).expect("a list of names");
    let [key] = &keys[..] else { panic!("not one key: {keys:?}") };
    for (round, with) in (1..).zip([&["SET", "nan"][..], &["LPUSH", "x"], &["SET", "-1:x"]]) {
        plant(&server, key, with);
        let answer = check();
        assert_eq!(answer.status, 200, "{with:?}: {}", answer.body);
        assert!(answer.body.contains("\"remaining\":4"), "{with:?}: {}", answer.body);
        assert_eq!(daemon.admin("/readyz").status, 200, "{with:?}");
        let metrics = daemon.admin("/metrics").body;
        let line = format!("tidegate_store_corrupt_states_total {round}\n");
        assert!(metrics.contains(&line), "{with:?}: {metrics}");
    }
    wait_until("it is logged", LIMIT, || daemon.log_tail().contains("event=\"store_corrupt\""));
}
