//! Scripts that the server has forgotten are sent again, once; and what they write, expires.

mod each;
mod expiry;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::client::{Client, LIMIT, ask, limits};
use tidegate::store::StoreError;
use tidegate::store::redis::RedisConfig;
use tidegate::{Limit, Op, Rate, Span};
use tidegate_tests::servers::{RedisServer, wait_until};

/// Commands are counted, so only requests send them.
fn config(url: &str) -> RedisConfig {
    crate::client::config(url).without_registry()
}

const CALLERS: u64 = 16;
/// Commands under way for one server, unless told otherwise.
const PIPELINE: u64 = 4;
/// Commands that were under way, and the first of every script after them.
const UNKNOWN_AT_ONCE: u64 = PIPELINE + 8;

/// How often commands were called, on their own or by scripts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Calls {
    by_hash: u64,
    whole: u64,
    unknown: u64,
    time: u64,
}

impl Calls {
    fn of(server: &RedisServer) -> Self {
        let stats = server.command(&["INFO", "everything"]);
        let stats: String = redis::from_redis_value(stats).expect("INFO is text");
        let count = |prefix: &str| -> u64 {
            let line = stats.lines().find_map(|line| line.strip_prefix(prefix));
            let digits = line.map(|rest| rest.split(',').next().expect("always one").trim());
            digits.map_or(0, |digits| digits.parse().expect("a number"))
        };
        Self {
            by_hash: count("cmdstat_evalsha:calls="),
            whole: count("cmdstat_eval:calls="),
            unknown: count("errorstat_NOSCRIPT:count="),
            time: count("cmdstat_time:calls="),
        }
    }
}

/// A limit that nothing comes back to while a test runs.
fn large(units: u64) -> Limit {
    let rate = Rate::new(units, Span::from_secs(365 * 86_400));
    Limit::fixed_window(rate).build().expect("valid numbers")
}

/// Callers that ask until they are stopped.
struct Load {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    decided: Arc<AtomicU64>,
    callers: Vec<tokio::task::JoinHandle<Vec<StoreError>>>,
}

impl Load {
    fn start(client: &Arc<Client>, limit: Limit) -> Self {
        let (stop, admitted, decided) =
            <(Arc<AtomicBool>, Arc<AtomicU64>, Arc<AtomicU64>)>::default();
        let caller = |number: u64| {
            let (stop, admitted, decided) =
                (Arc::clone(&stop), Arc::clone(&admitted), Arc::clone(&decided));
            let client = Arc::clone(client);
            client.runtime.handle().clone().spawn(async move {
                let mut errors = Vec::new();
                // Half of them ask for one key, half for one of their own and another family.
                let (text, families) = (format!("own:{number}"), limits());
                while !stop.load(Ordering::Relaxed) {
                    let asked = match number % 2 {
                        0 => ask(&client.store, &limit, "shared", Op::Take(1)).await,
                        _ => {
                            let family = &families[number as usize / 2 % families.len()];
                            ask(&client.store, family, &text, Op::Take(1)).await
                        }
                    };
                    match asked {
                        Ok(decision) => {
                            decided.fetch_add(1, Ordering::Relaxed);
                            let counts = number.is_multiple_of(2) && decision.is_allowed();
                            admitted.fetch_add(u64::from(counts), Ordering::Relaxed);
                        }
                        Err(error) => errors.push(error),
                    }
                }
                errors
            })
        };
        let callers = (0..CALLERS).map(caller).collect();
        Self { stop, admitted, decided, callers }
    }

    /// Returns when so many more decisions have been made.
    fn wait_for(&self, more: u64) {
        let goal = self.decided.load(Ordering::Relaxed) + more;
        let reached = || self.decided.load(Ordering::Relaxed) >= goal;
        wait_until("the callers have decided more", LIMIT, reached);
    }

    /// Decisions, admissions of the shared key, and all errors.
    fn finish(self, client: &Client) -> (u64, u64, Vec<StoreError>) {
        self.stop.store(true, Ordering::Relaxed);
        let mut errors = Vec::new();
        for caller in self.callers {
            errors.extend(client.runtime.block_on(caller).expect("no caller panics"));
        }
        (self.decided.load(Ordering::Relaxed), self.admitted.load(Ordering::Relaxed), errors)
    }
}

/// Whatever is sent again comes after what was asked later; so nothing is unknown from the start.
#[test]
fn the_server_knows_every_script_once_the_store_is_set_up() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    let before = Calls::of(&server);
    client.decides("key");
    let uneven = Limit::gcra(Rate::per_second(7)).build().unwrap();
    client.ask(&uneven, "uneven", Op::Take(1)).unwrap();
    let families = limits();
    // Every mixture of families in one command, for requests and for what gives back.
    for mixture in 1_u32..1 << families.len() {
        client.runtime.block_on(async {
            let chosen = (0..families.len()).filter(|bit| mixture >> bit & 1 == 1);
            let asked = chosen.flat_map(|bit| {
                let limit = &families[bit];
                let ops = [Op::Take(1), Op::Read(1), Op::Return(1), Op::Force(1), Op::Reset];
                ops.map(|op| ask(&client.store, limit, "mixture", op))
            });
            let found = futures_util::future::join_all(asked).await;
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        });
    }
    let after = Calls::of(&server);
    assert_eq!((after.unknown, after.whole), (before.unknown, before.whole));
    assert!(after.by_hash > before.by_hash + 31, "{after:?}");
}

#[test]
fn a_flush_of_all_scripts_loses_no_decision_and_starts_no_loop() {
    const FLUSHES: u64 = 30;
    let server = RedisServer::start();
    let client = Arc::new(Client::connect(config(&server.url())).expect("a sound server"));
    let before = Calls::of(&server);
    let load = Load::start(&client, large(2_000));
    for _ in 0..FLUSHES {
        load.wait_for(200);
        server.command(&["SCRIPT", "FLUSH"]);
    }
    load.wait_for(3_000);
    let (decided, admitted, errors) = load.finish(&client);
    assert_eq!(errors, [], "of {decided}");
    assert_eq!(admitted, 2_000, "of {decided}");
    let after = Calls::of(&server);
    let (unknown, whole) = (after.unknown - before.unknown, after.whole - before.whole);
    assert_eq!(unknown, whole, "each was sent again once");
    assert!((FLUSHES / 2..=FLUSHES * UNKNOWN_AT_ONCE).contains(&whole), "{whole}");
    assert!(after.by_hash - before.by_hash <= decided + unknown, "{after:?} for {decided}");
    expiry::every_key_expires(&server);
}

/// However fast they are forgotten, a request costs two commands at most.
#[test]
fn scripts_that_are_forgotten_all_the_time_still_decide() {
    let server = RedisServer::start();
    let client = Arc::new(Client::connect(config(&server.url())).expect("a sound server"));
    let before = Calls::of(&server);
    let load = Load::start(&client, large(500));
    let mut connection = server.connection();
    for _ in 0..3_000 {
        redis::cmd("SCRIPT").arg("FLUSH").exec(&mut connection).unwrap();
    }
    let (decided, admitted, errors) = load.finish(&client);
    assert_eq!(errors, []);
    assert!(admitted <= 500, "{admitted}");
    let after = Calls::of(&server);
    assert_eq!(after.unknown - before.unknown, after.whole - before.whole);
    assert!(after.whole - before.whole <= decided);
    assert!(after.whole > before.whole + 10, "it hardly ever forgot");
}

#[test]
fn a_server_that_restarts_is_told_its_scripts_again() {
    let server = RedisServer::start();
    let client = Arc::new(Client::connect(config(&server.url())).expect("a sound server"));
    let load = Load::start(&client, large(1_000_000));
    for _ in 0..3 {
        load.wait_for(500);
        server.kill();
        server.restart();
    }
    load.wait_for(2_000);
    let (_, _, errors) = load.finish(&client);
    assert!(errors.iter().all(StoreError::is_outage), "{:?}", errors.first());
    // The counts began afresh with the server.
    let calls = Calls::of(&server);
    assert_eq!(calls.unknown, calls.whole, "{calls:?}");
    assert!((1..=UNKNOWN_AT_ONCE).contains(&calls.whole), "{calls:?}");
    expiry::every_key_expires(&server);
}

/// Before Redis 7.2 the clock moves while a script runs, so one that asks twice has two
/// opinions of the time.
#[test]
fn every_script_asks_for_the_time_once() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    let before = Calls::of(&server);
    client.decides("key");
    client.take("alone").unwrap();
    let texts: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    client.runtime.block_on(async {
        for limit in &limits() {
            let asked = texts.iter().map(|text| ask(&client.store, limit, text, Op::Take(1)));
            let found = futures_util::future::join_all(asked).await;
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    });
    let after = Calls::of(&server);
    let ran = (after.by_hash - before.by_hash) + (after.whole - before.whole);
    let ran = ran - (after.unknown - before.unknown);
    assert_eq!(after.time - before.time, ran);
    assert!(ran > 30, "{ran}");
}

/// Nor does a denial, or what gives nothing back: keys are made by those who spend.
#[test]
fn peeking_writes_nothing() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    server.command(&["FLUSHALL"]);
    for limit in &limits() {
        for op in [Op::Read(0), Op::Read(1), Op::Read(99), Op::Take(0), Op::Take(99)] {
            client.ask(limit, "key", op).unwrap();
        }
        for op in [Op::Return(5), Op::Force(0)] {
            client.ask(limit, "key", op).unwrap();
        }
    }
    assert_eq!(server.command(&["DBSIZE"]), redis::Value::Int(0));
}
