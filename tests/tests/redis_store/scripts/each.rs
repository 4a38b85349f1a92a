//! Charges that are decided each alone but asked for at once, and whose clock they go by.

use tidegate::store::memory::MemoryStore;
use tidegate::store::{Batch, Charge, Store, StoreError};
use tidegate::{Decision, Hashing, Key, Limit, ManualClock, Op, Scope, Timestamp};
use tidegate_tests::servers::RedisServer;

use crate::client::{Client, UNITS, config, limits};

const HOUR: u64 = 3_600_000_000;

/// A time that could be now, by a clock that only tests have.
fn now() -> Timestamp {
    ManualClock::new().now()
}

fn charge<'a>(limit: &'a Limit, text: &'a str, op: Op) -> Charge<'a> {
    Charge::new(Key::new(Scope::new("limit", limit), text.as_bytes()), limit, op)
}

fn each(client: &Client, charges: &[Charge<'_>]) -> Result<Vec<Decision>, StoreError> {
    let mut decisions = Vec::new();
    client.runtime.block_on(client.store.decide(now(), Batch::each(charges), &mut decisions))?;
    Ok(decisions)
}

/// Commands that clients sent, those that scripts call not counted.
fn commands(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).expect("a number")
}

#[test]
fn charges_each_alone_cost_one_round_trip() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    let limits = limits();
    for round in 0..50 {
        let texts: Vec<String> = (0..5).map(|n| format!("{round}:{n}")).collect();
        let charges: Vec<Charge<'_>> = texts
            .iter()
            .zip(&limits)
            .map(|(text, limit)| charge(limit, text, Op::Take(1)))
            .collect();
        let before = commands(&server);
        let decisions = each(&client, &charges).expect("a sound server");
        assert_eq!(commands(&server) - before, 1, "round {round}");
        assert!(decisions.iter().all(Decision::is_allowed));
    }
}

/// In order: each sees what those before it did. Alone: the denial of one is nothing to the others.
#[test]
fn charges_each_alone_are_decided_in_order() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    for limit in &limits()[..4] {
        let charges = [
            charge(limit, "key", Op::Take(UNITS)),
            charge(limit, "key", Op::Take(1)),
            charge(limit, "other", Op::Take(1)),
            charge(limit, "key", Op::Return(1)),
            charge(limit, "key", Op::Take(1)),
        ];
        let shared = each(&client, &charges).expect("a sound server");
        let allowed: Vec<bool> = shared.iter().map(Decision::is_allowed).collect();
        assert_eq!(allowed, [true, false, true, true, true], "{limit:?}");
        let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).expect("memory");
        let mut here = Vec::new();
        let decided = Store::decide(&store, now(), Batch::each(&charges), &mut here);
        client.runtime.block_on(decided).expect("memory does not fail");
        let answer = |decisions: &[Decision]| -> Vec<_> {
            decisions.iter().map(|one| (one.is_allowed(), one.remaining)).collect()
        };
        assert_eq!(answer(&shared), answer(&here), "{limit:?}");
    }
}

#[test]
fn nothing_is_appended_if_one_of_them_has_no_answer() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    let [bucket, ..] = limits();
    let charges = ["a", "b", "c"].map(|text| charge(&bucket, text, Op::Take(1)));
    let mut decisions = each(&client, &charges[..1]).expect("a sound server");
    let permitted = format!("~tg:{}:{{a}}", Scope::new("limit", &bucket));
    server.command(&["ACL", "SETUSER", "default", "resetkeys", &permitted]);
    let failed = client.store.decide(now(), Batch::each(&charges), &mut decisions);
    let error = client.runtime.block_on(failed).expect_err("two keys are not permitted");
    assert!(matches!(error, StoreError::Misconfigured(..)), "{error}");
    assert_eq!(decisions.len(), 1);
}

/// The store is asked when its clock is needed, not for it: every decision tells.
#[test]
fn the_clock_of_the_store_is_known_from_its_decisions() {
    let server = RedisServer::builder().faketime().start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    let [bucket, ..] = limits();
    let time = || {
        let (seconds, micros): (u64, u64) =
            redis::from_redis_value(server.command(&["TIME"])).expect("two numbers");
        seconds * 1_000_000 + micros
    };
    let local = now();
    for (seconds, text) in [(0, "at first"), (3_600, "an hour on"), (-7_200, "an hour back")] {
        server.step_clock(seconds);
        each(&client, &[charge(&bucket, text, Op::Take(1))]).expect("a sound server");
        let known = client.store.clock(local).as_micros();
        let off = time().abs_diff(known);
        assert!(off < 1_000_000, "{text}: {off} us off");
        let later = client.store.clock(Timestamp::from_micros(local.as_micros() + HOUR));
        assert_eq!(later.as_micros(), known + HOUR, "it goes on as the caller's does");
    }
}
