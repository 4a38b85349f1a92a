//! Clients and servers that are killed at random moments under load: nothing stays for ever, and
//! nothing is granted twice.

use std::collections::HashMap;
use std::time::Duration;

use tidegate::{Limit, Scope};
use tidegate_tests::clients::{self, Client};
use tidegate_tests::servers::{Builder, RedisServer, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_redis_client");
/// Nothing comes back while the test runs. Windows of ten years, because one of a day could end
/// meanwhile.
const LIMITS: [&str; 6] = [
    "token_bucket:1:86400000000:300",
    "leaky_bucket:300:315360000000000",
    "fixed_window:300:315360000000000",
    "sliding_window:300:315360000000000",
    "sliding_log:300:86400000000",
    "in_flight:300:86400000000",
];
/// These come and go all the time.
const QUICK: [&str; 6] = [
    "token_bucket:10:1000000:5",
    "gcra:7:300000",
    "fixed_window:10:200000",
    "sliding_window:10:200000",
    "sliding_log:10:200000",
    "in_flight:10:150000",
];
const KEYS: u64 = 4;
const CLIENTS: usize = 4;

/// What was admitted, by limit and key.
#[derive(Default)]
struct Admissions(HashMap<(usize, u64), u64>);

impl Admissions {
    fn note(&mut self, said: Vec<String>) {
        for line in said {
            let fields: Vec<&str> = line.split(' ').collect();
            if let ["admitted", limit, key, units] = fields[..] {
                let number = |text: &str| text.parse::<u64>().expect("a number");
                let limit = usize::try_from(number(limit)).expect("a small number");
                *self.0.entry((limit, number(key))).or_default() += number(units);
            }
        }
    }

    /// The most that one key was granted, of `limits` that are full by now.
    fn check(&self, most: impl Fn(u64) -> u64) {
        for (index, text) in LIMITS.iter().enumerate() {
            let capacity = capacity(&clients::limit(text));
            for key in 0..KEYS {
                let admitted = self.0.get(&(index, key)).copied().unwrap_or(0);
                assert!(admitted <= most(capacity), "{text}, key {key}: {admitted} admitted");
            }
        }
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

fn capacity(limit: &Limit) -> u64 {
    match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        Limit::SlidingLog(log) => log.limit(),
        Limit::InFlight(in_flight) => in_flight.limit(),
        _ => unreachable!("every family is above"),
    }
}

/// The longest that a state of a limit can matter.
fn longest(limit: &Limit) -> Duration {
    let micros = match limit {
        Limit::Bucket(bucket) => bucket.fill_time().ticks + 1,
        Limit::FixedWindow(window) => window.length().as_micros(),
        Limit::SlidingWindow(window) => 2 * window.length().as_micros(),
        Limit::SlidingLog(log) => log.length().as_micros(),
        Limit::InFlight(in_flight) => in_flight.ttl().as_micros(),
        _ => unreachable!("every family is above"),
    };
    Duration::from_micros(micros)
}

fn start_client(server: &RedisServer, limits: &[&str]) -> Client {
    let (url, limits) = (server.url(), format!("limits={}", limits.join(",")));
    let arguments = ["load", &url, &limits, "tasks=8", &format!("keys={KEYS}")];
    let mut client = Client::start(PROGRAM, &arguments);
    client.say("go");
    client
}

/// Every key has a time to live, and none a longer one than its limit needs.
fn check_times_to_live(server: &RedisServer, limits: &[&str]) {
    // The scope stands in every key.
    let longest: HashMap<String, Duration> = limits
        .iter()
        .map(|text| (text, clients::limit(text)))
        .map(|(text, limit)| (Scope::new(text, &limit).to_string(), longest(&limit)))
        .collect();
    let keys: Vec<String> =
        redis::from_redis_value(server.command(&["KEYS", "*"])).expect("names of keys");
    assert!(!keys.is_empty(), "nothing is left to check");
    for key in keys {
        let left: i64 = redis::from_redis_value(server.command(&["PTTL", &key])).expect("a number");
        assert_ne!(left, -1, "{key} stays for ever");
        let scope = key.split(':').nth(1).expect("namespace, scope and text");
        if let Some(longest) = longest.get(scope) {
            let most = longest.as_millis() + 2;
            assert!(i128::from(left) <= most.cast_signed(), "{key}: {left} ms, at most {most}");
        }
    }
}

/// A moment of load, at random.
fn work_a_while() {
    let moment = Duration::from_millis(fastrand::u64(20..250));
    let (mut looks, looked) = (0, moment.as_millis() / 5);
    wait_until("a moment has passed", Duration::from_secs(60), || {
        looks += 1;
        looks > looked
    });
}

/// Kills and replaces clients under load; says what was admitted.
fn kill_clients(limits: &[&str], kills: usize) -> (RedisServer, Admissions) {
    let (server, mut admissions) = (RedisServer::start(), Admissions::default());
    let start = || start_client(&server, limits);
    let mut living: Vec<Client> = std::iter::repeat_with(start).take(CLIENTS).collect();
    for _ in 0..kills {
        work_a_while();
        let killed = living.swap_remove(fastrand::usize(..living.len()));
        admissions.note(killed.kill());
        living.push(start_client(&server, limits));
        check_times_to_live(&server, limits);
    }
    living.into_iter().for_each(|client| admissions.note(client.finish()));
    check_times_to_live(&server, limits);
    (server, admissions)
}

#[test]
fn clients_killed_under_load_leave_nothing_for_ever_and_take_nothing_twice() {
    let (_, admissions) = kill_clients(&LIMITS, 12);
    admissions.check(|capacity| capacity);
    // Only what a client was killed over between being admitted and saying so is missing.
    assert!(admissions.total() > 300 * KEYS, "{} admitted", admissions.total());
}

#[test]
fn states_that_clients_left_behind_are_gone_when_they_say_nothing_any_more() {
    let (server, admissions) = kill_clients(&QUICK, 12);
    assert!(admissions.total() > 100, "{} admitted", admissions.total());
    let scopes = QUICK.map(|text| Scope::new(text, &clients::limit(text)).to_string());
    let longest = QUICK.map(|text| longest(&clients::limit(text))).into_iter().max();
    wait_until("every key has expired", 10 * longest.expect("some limits"), || {
        let keys = server.command(&["KEYS", "*"]);
        let keys: Vec<String> = redis::from_redis_value(keys).expect("names of keys");
        !keys.iter().any(|key| scopes.iter().any(|scope| key.contains(&**scope)))
    });
}

/// Kills and restarts a server under load; says what was admitted.
fn kill_server(builder: &Builder, kills: u64) -> Admissions {
    let (server, mut admissions) = (builder.start(), Admissions::default());
    let start = || start_client(&server, &LIMITS);
    let living: Vec<Client> = std::iter::repeat_with(start).take(CLIENTS).collect();
    for _ in 0..kills {
        work_a_while();
        server.restart();
        check_after_restart(&server);
    }
    work_a_while();
    let failed: u64 = living
        .into_iter()
        .map(|client| {
            let said = client.finish();
            let failed = said.last().and_then(|line| line.strip_prefix("failed "));
            let failed = failed.and_then(|count| count.parse::<u64>().ok()).expect("a count");
            admissions.note(said);
            failed
        })
        .sum();
    assert!(failed > 0, "no request failed although the server was killed");
    check_times_to_live(&server, &LIMITS);
    admissions
}

/// All clients reconnect, and every key that was loaded from disk expires.
fn check_after_restart(server: &RedisServer) {
    wait_until("clients are back", Duration::from_secs(20), || {
        let keys = server.command(&["DBSIZE"]);
        redis::from_redis_value::<usize>(keys).expect("a count") >= LIMITS.len()
    });
    check_times_to_live(server, &LIMITS);
}

/// Every write is on disk before it is answered, so nothing that was granted is forgotten.
#[test]
fn a_server_that_forgets_nothing_grants_nothing_twice() {
    let durable = RedisServer::builder().arg("appendonly", "yes").arg("appendfsync", "always");
    let admissions = kill_server(&durable, 8);
    admissions.check(|capacity| capacity);
    assert!(admissions.total() > 300 * KEYS, "{} admitted", admissions.total());
}

/// What is lost with a server comes on top, once, and never more than the capacity.
#[test]
fn a_server_that_forgets_everything_grants_one_capacity_more_for_each_death() {
    let kills = 5;
    let admissions = kill_server(&RedisServer::builder(), kills);
    admissions.check(|capacity| capacity * (1 + kills));
    let most = admissions.0.values().max().copied().unwrap_or(0);
    assert!(most > 300, "{most} admitted: nothing was forgotten, so nothing was tested");
}
