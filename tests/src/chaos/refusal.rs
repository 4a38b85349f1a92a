//! F12: the store answers with refusals.

use std::time::Duration;

use tokio::time::Instant;

use super::figure::Figure;
use super::node::{TIMEOUT, let_pass, policy_text};
use super::pace::Pace;
use crate::http;
use crate::servers::{Builder, Cluster, Daemon, DaemonSetup, RedisServer, our_program};

const RULES: &str = "
  - {key: allow, rate: 100/year, on_store_failure: allow}
";
/// Time within which a refusal must be noticed.
const SOON: Duration = Duration::from_secs(1);
/// Units that `allow` admits of a limit of 100 while the store refuses: as many as `local`.
const SHARE: u64 = 150;

fn setup<'a>(program: &'a std::path::Path, policy: &'a str, store: &'a str) -> DaemonSetup<'a> {
    DaemonSetup {
        program,
        policy,
        store,
        settings: &[("TIDEGATE__STORE__DEADLINE", "1s")],
        has_fake_clock: false,
    }
}

/// Time until a daemon reports the fault of its store by not starting.
fn found_at_start(server: &RedisServer, word: &str) -> Duration {
    let (program, policy, store) = (our_program("tidegate"), policy_text(RULES), server.url());
    let start = Instant::now();
    match Daemon::try_start(setup(&program, &policy, &store)) {
        Err(log) => assert!(log.contains(word), "it does not say {word}:\n{log}"),
        Ok(daemon) => panic!("it started all the same:\n{}", daemon.log_tail()),
    }
    start.elapsed()
}

/// F12: noticed when the daemon starts.
pub(crate) fn at_start(_: &Pace) -> Vec<Figure> {
    let plain = RedisServer::builder;
    let locked = plain().start();
    locked.command(&["CONFIG", "SET", "requirepass", "secret"]);
    let full = plain().arg("maxmemory", "1").arg("maxmemory-policy", "noeviction").start();
    let narrow = plain().start();
    narrow.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]);
    let primary = plain().start();
    let replica: Builder = plain().arg("replicaof", &format!("127.0.0.1 {}", primary.port()));
    let replica = replica.start();
    let cluster = Cluster::start();
    let cases: [(&str, &RedisServer, &str); 5] = [
        ("a missing password (NOAUTH)", &locked, "password"),
        ("a missing right (NOPERM)", &narrow, "ACL SETUSER"),
        ("no memory (OOM)", &full, "maxmemory"),
        ("a replica (READONLY)", &replica, "replica"),
        ("a node of a cluster (CROSSSLOT)", cluster.primary_of(0), "redis+cluster://"),
    ];
    let measure = |(what, server, word): (&str, &RedisServer, &str)| {
        Figure::time(format!("{what}: found at the start"), found_at_start(server, word), SOON)
    };
    cases.into_iter().map(measure).collect()
}

/// F12: noticed while the daemon runs.
pub(crate) fn under_load(_: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    let (program, policy, store) = (our_program("tidegate"), policy_text(RULES), server.url());
    let daemon = Daemon::start(setup(&program, &policy, &store));
    let address = daemon.transport("HTTP");
    let mut connection = http::Connection::open(address).expect("it listens");
    let body = r#"{"domain": "chaos", "descriptors": [{"allow": "all"}]}"#;
    let mut ask = || connection.ask("POST /v1/check", body).expect("an answer").status;
    assert_eq!(ask(), 200);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = Instant::now();
    let (mut let_in, mut errors) = (0, 0);
    loop {
        let status = ask();
        let_in += u64::from(status == 200);
        errors += u64::from(![200, 429].contains(&status));
        if daemon.admin("/readyz").status == 503 {
            break;
        }
        assert!(full.elapsed() < TIMEOUT, "readiness does not change");
    }
    let noticed = full.elapsed();
    for _ in 0..400 {
        let status = ask();
        let_in += u64::from(status == 200);
        errors += u64::from(![200, 429].contains(&status));
    }
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let mended = Instant::now();
    // The daemon stays unready for ten seconds after a refusal; decisions are not affected.
    let_pass(Duration::from_millis(50));
    let by_store = comes_back(&mut ask, &daemon);
    vec![
        Figure::time("no memory: `/readyz` answers 503", noticed, SOON),
        Figure::none("errors returned to callers", errors),
        Figure::count("`allow`, limit 100: admitted while it refuses", let_in, SHARE),
        Figure::time("decided by Redis again, from the repair", by_store - mended, SOON),
    ]
}

/// The time at which the store decides again: the admitted units have been booked, so the store
/// denies.
fn comes_back(ask: &mut impl FnMut() -> u16, daemon: &Daemon) -> Instant {
    let count = || {
        let metrics = daemon.admin("/metrics").body;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("tidegate_store_errors_total{kind=\"refused\"} "));
        line.and_then(|count| count.trim().parse::<f64>().ok()).expect("it is counted")
    };
    let start = Instant::now();
    loop {
        let before = count();
        ask();
        if count() <= before {
            return Instant::now();
        }
        assert!(start.elapsed() < TIMEOUT, "it is never asked again");
    }
}
