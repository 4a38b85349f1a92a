//! F5, F6: failover to a primary that lacks writes of the old one.

use std::time::Duration;

use tidegate::store::DecisionSource;
use tokio::time::Instant;

use super::figure::Figure;
use super::load::{Phase, read};
use super::node::{About, Node, Setup, TIMEOUT, let_pass};
use super::pace::Pace;
use crate::servers::{RedisServer, Sentinels, wait_until};

const RULES: &str = "
  - {key: known, rate: 100/year, on_store_failure: deny}
  - {key: lost, rate: 100/year, on_store_failure: deny}
  - {key: wide, rate: 1000000/day, on_store_failure: deny}
  - {key: quick, rate: 50/s, burst: 50, on_store_failure: deny}
";
const UNITS: u64 = 100;
/// Units that only the old primary has.
const LOST: u64 = 60;

fn admitted(node: &Node, key: &str, tries: u64) -> u64 {
    (0..tries).filter(|_| node.check(key, "all").is_allowed()).count() as u64
}

/// F5: the replicas do not receive the last writes, and one of them takes over.
pub(crate) fn loses_writes(pace: &Pace) -> Vec<Figure> {
    let sentinels = Sentinels::start();
    let (url, deadline) = (sentinels.url(), pace.deadline);
    let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
    let mut known = admitted(&node, "known", 2 * UNITS);
    let primary = sentinels.primary();
    let mut control = primary.connection();
    let offset = || primary.info("master_repl_offset");
    wait_until("the replicas know", TIMEOUT, || {
        let mut replicas = sentinels.servers().iter().filter(|it| it.port() != primary.port());
        replicas.all(|replica| replica.info("slave_repl_offset") == offset())
    });
    // From now on replicas cannot connect; other connections stay open.
    primary.command(&["CONFIG", "SET", "requirepass", "secret"]);
    let mut cut = redis::cmd("CLIENT");
    cut.arg("KILL").arg("TYPE").arg("replica");
    redis::cmd("AUTH").arg("secret").exec(&mut control).expect("it is the password");
    cut.exec(&mut control).expect("it is carried out");
    let mut lost = admitted(&node, "lost", LOST);
    let units_lost = lost;
    sentinels.kill_primary();
    sentinels.wait_for_promotion(TIMEOUT);
    let promoted = Instant::now();
    wait_until("the new primary decides", TIMEOUT, || {
        node.check("wide", "all").source() == DecisionSource::Store
    });
    let back = promoted.elapsed();
    node.until_closed();
    known += admitted(&node, "known", UNITS);
    lost += admitted(&node, "lost", 2 * UNITS);
    vec![
        Figure::time(
            "time until the new primary decides, from its promotion",
            back,
            Duration::from_secs(2),
        ),
        Figure::none(
            "admitted beyond the limit, of writes that the replica had",
            known.saturating_sub(UNITS),
        ),
        Figure::count(
            "admitted beyond the limit, of writes that it lacked: min(capacity, units lost)",
            lost.saturating_sub(UNITS),
            units_lost.min(UNITS),
        ),
    ]
}

/// F5: repeated `SCRIPT FLUSH`.
pub(crate) fn loses_scripts(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    let (url, deadline) = (server.url(), pace.deadline);
    let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
    let load = node.load(pace.rate / 5, pace.deadline, |number| match number % 2 {
        0 => About { kind: 0, key: "wide", value: format!("user{}", number % 100) },
        _ => About { kind: 1, key: "known", value: "all".into() },
    });
    let_pass(pace.steady);
    load.enter(Phase::Outage);
    let start = Instant::now();
    let mut flushes = 0;
    while start.elapsed() < pace.outage {
        server.command(&["SCRIPT", "FLUSH"]);
        flushes += 1;
        let_pass(Duration::from_millis(50));
    }
    load.stop();
    let log = load.log(Phase::Outage);
    vec![
        Figure::count("number of script flushes", flushes, 1).without_target(),
        Figure::none("errors returned to callers", load.errors()),
        Figure::none("requests denied because of it", read(&log.denied[0])).when_idle(),
        Figure::count("admitted, of a limit of 100", load.allowed(1), UNITS),
        Figure::none("trips", node.trips()).when_idle(),
    ]
}

/// F6: two primaries, each with nodes that know only one of them.
pub(crate) fn splits(pace: &Pace) -> Vec<Figure> {
    let primary = RedisServer::start();
    let replicate = format!("127.0.0.1 {}", primary.port());
    let replica = RedisServer::builder().arg("replicaof", &replicate).start();
    wait_until("it is a replica", TIMEOUT, || replica.info("master_link_status") == "up");
    let (url, deadline) = (primary.url(), pace.deadline);
    let one = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 2 });
    let load_one = one.load(pace.rate / 10, pace.deadline, hot);
    let_pass(pace.steady);
    let split = load_one.enter(Phase::Outage);
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    let url = replica.url();
    let other = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 2 });
    let load_other = other.load(pace.rate / 10, pace.deadline, hot);
    let_pass(pace.outage);
    load_one.stop();
    load_other.stop();
    let seconds = split.elapsed().as_secs_f64();
    let side = |load: &super::load::Load| {
        let counts = [Phase::Before, Phase::Outage].map(|it| read(&load.log(it).allowed[0]));
        counts[0] + counts[1]
    };
    let most = (50.0 + 50.0 * seconds).ceil() as u64;
    vec![
        Figure::none("errors returned to callers", load_one.errors() + load_other.errors()),
        Figure::count(
            "admitted by the second side: capacity + rate × time",
            side(&load_other),
            most,
        ),
        Figure::none("trips", one.trips() + other.trips()).when_idle(),
    ]
}

fn hot(_: u64) -> About {
    About { kind: 0, key: "quick", value: "all".into() }
}
