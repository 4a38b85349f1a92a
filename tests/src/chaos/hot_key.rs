//! F14: one key at ten times its limit, on eight nodes.

use super::figure::Figure;
use super::load::{Load, Phase};
use super::node::{About, Node, Setup, let_pass};
use super::pace::Pace;
use crate::servers::RedisServer;

const RULES: &str = "
  - {key: hot, rate: 100/s, burst: 100, on_store_failure: deny}
  - {key: other, rate: 1000000/day, on_store_failure: deny}
";
const NODES: u64 = 8;
/// Units of the hot key per second.
const RATE: f64 = 100.0;
const HOT: usize = 0;
const OTHER: usize = 1;
/// Requests per second of each node: together ten times the limit, and as many for other keys.
const OFFERED: u32 = 1_000;

fn about(number: u64) -> About {
    match number % 2 {
        0 => About { kind: HOT, key: "hot", value: "all".into() },
        _ => About { kind: OTHER, key: "other", value: format!("user{}", number % 50) },
    }
}

/// Number of script calls.
pub(crate) fn calls(server: &RedisServer) -> u64 {
    let answer = server.command(&["INFO", "commandstats"]);
    let answer = redis::from_redis_value::<String>(answer).expect("text");
    let calls = answer.lines().filter_map(|line| {
        let rest = line.strip_prefix("cmdstat_eval")?.split_once("calls=")?.1;
        rest.split(',').next()?.parse::<u64>().ok()
    });
    calls.sum()
}

/// F14: decided in the store. Each node asks about the exhausted key once per wait.
pub(crate) fn exact(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    let (url, deadline) = (server.url(), pace.deadline);
    let start = || Node::start(Setup { url: &url, rules: RULES, deadline, nodes: NODES as u32 });
    let nodes: Vec<Node> = (0..NODES).map(|_| start()).collect();
    // Other keys alone, for comparison.
    let rate = OFFERED / NODES as u32;
    let quiet = nodes[0].load(rate, deadline, |number| About { ..about(2 * number + 1) });
    quiet.enter(Phase::Before);
    let_pass(pace.steady);
    quiet.stop();
    server.command(&["CONFIG", "RESETSTAT"]);
    let sent_before: u64 = nodes.iter().map(|node| node.sent.total()).sum();
    let began = tokio::time::Instant::now();
    let loads: Vec<Load> = nodes.iter().map(|node| node.load(2 * rate, deadline, about)).collect();
    for load in &loads {
        load.enter(Phase::Outage);
    }
    let_pass(pace.outage);
    loads.iter().for_each(Load::stop);
    let seconds = began.elapsed().as_secs_f64();
    let admitted: u64 = loads.iter().map(|load| load.allowed(HOT)).sum();
    let log = |load: &Load, kind: usize| {
        let log = load.log(Phase::Outage);
        super::load::read(&log.allowed[kind]) + super::load::read(&log.denied[kind])
    };
    let offered: u64 = loads.iter().map(|load| log(load, HOT)).sum();
    let others: u64 = loads.iter().map(|load| log(load, OTHER)).sum();
    let sent = nodes.iter().map(|node| node.sent.total()).sum::<u64>() - sent_before;
    let asked = sent.saturating_sub(others);
    let most = admitted as f64 + NODES as f64 * (RATE * seconds);
    let usual = quiet.log(Phase::Before).times_of(OTHER).as_secs_f64();
    let busy = loads.iter().map(|load| load.log(Phase::Outage).times_of(OTHER).as_secs_f64());
    let busy = busy.fold(0.0, f64::max);
    vec![
        Figure::count(
            "admitted: capacity + rate × time",
            admitted,
            (RATE + RATE * seconds).ceil() as u64,
        ),
        Figure::percent("calls to Redis, of the offered load", asked as f64 / offered as f64, 0.0)
            .without_target(),
        Figure::count(
            "calls to Redis: admitted + one per node and wait",
            asked,
            most.ceil() as u64,
        )
        .when_idle(),
        Figure::count("commands in Redis, for these and for other keys", calls(&server), 0)
            .without_target(),
        Figure::times("p99 of other keys / p99 without the hot key", busy / usual.max(1e-6), 2.0)
            .when_idle(),
    ]
}
