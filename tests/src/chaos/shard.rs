//! F4: one node of a cluster hangs.

use std::collections::HashSet;

use tidegate::store::circuits::CircuitState;

use super::figure::Figure;
use super::load::{Phase, read};
use super::node::{About, Node, Setup, let_pass};
use super::pace::Pace;
use crate::servers::Cluster;

const RULES: &str = "
  - {key: user, rate: 1000000/day, on_store_failure: deny}
";
const USERS: u64 = 120;
/// The kinds of requests.
const ELSEWHERE: usize = 0;
const THERE: usize = 1;

fn name(number: u64) -> String {
    format!("user-{number:03}-")
}

/// F4: only keys in its slots are affected.
pub(crate) fn hangs(pace: &Pace) -> Vec<Figure> {
    let cluster = Cluster::start();
    let (url, deadline) = (cluster.url(), pace.deadline);
    let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
    (0..USERS).for_each(|user| drop(node.check("user", &name(user))));
    let keys = cluster.primary_of(0).command(&["KEYS", "*"]);
    let keys: Vec<String> = redis::from_redis_value(keys).expect("names of keys");
    let is_there = |user: &u64| keys.iter().any(|key| key.contains(&name(*user)));
    let there: HashSet<u64> = (0..USERS).filter(is_there).collect();
    assert!(!there.is_empty() && there.len() < USERS as usize, "{} keys there", there.len());
    let load = node.load(pace.rate / 5, pace.deadline, move |number| {
        let user = number % USERS;
        let kind = if there.contains(&user) { THERE } else { ELSEWHERE };
        About { kind, key: "user", value: name(user) }
    });
    let_pass(pace.steady / 2);
    load.enter(Phase::Before);
    let_pass(pace.steady);
    load.enter(Phase::Unnoticed);
    let paused = cluster.pause_primary_of(0);
    node.until("the outage is noticed", |state| state == CircuitState::Open);
    load.enter(Phase::Outage);
    // Its replica takes over in the meantime.
    let_pass(pace.outage);
    let open = node.circuits().iter().filter(|it| it.state != CircuitState::Closed).count();
    paused.resume();
    load.enter(Phase::Mended);
    node.until_closed();
    load.enter(Phase::After);
    let_pass(pace.steady);
    load.stop();
    let all = [Phase::Unnoticed, Phase::Outage, Phase::Mended];
    let sum = |of: fn(&super::load::Log) -> u64| all.iter().map(|it| of(load.log(*it))).sum();
    let denied: u64 = sum(|log| read(&log.denied[ELSEWHERE]));
    let decided: u64 = sum(|log| read(&log.by_store[ELSEWHERE]));
    let p99 = |phase: Phase| load.log(phase).times_of(ELSEWHERE).as_secs_f64();
    vec![
        Figure::none("errors returned to callers", load.errors()),
        Figure::none("keys of other nodes: not decided by Redis", denied),
        Figure::count("keys of other nodes: decided by Redis", decided, 1).at_least(),
        Figure::count("open circuits", open as u64, 1),
        Figure::times(
            "p99 of keys of other nodes / p99 before",
            p99(Phase::Outage) / p99(Phase::Before).max(1e-6),
            1.1,
        )
        .when_idle(),
    ]
}
