//! F3, F22: the store answers late, or its connections break.

use std::time::Duration;

use tidegate::store::DecisionSource;

use super::figure::Figure;
use super::load::Phase;
use super::node::{About, Node, Setup, let_pass};
use super::pace::Pace;
use crate::fault_proxy::{Fault, FaultProxy};
use crate::servers::RedisServer;

const RULES: &str = "
  - {key: wide, rate: 1000000/day, on_store_failure: allow}
  - {key: scarce, rate: 500/year, on_store_failure: deny}
";
/// The units of `scarce`.
const UNITS: u64 = 500;

fn start(pace: &Pace) -> (RedisServer, FaultProxy, Node) {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.port());
    let (url, deadline) = (proxy.url(), pace.deadline);
    let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
    (server, proxy, node)
}

/// F3: three of ten replies are four deadlines late.
pub(crate) fn lossy(pace: &Pace) -> Vec<Figure> {
    let (_server, proxy, node) = start(pace);
    let load = node.load(pace.rate / 10, pace.deadline, |number| About {
        kind: 0,
        key: "wide",
        value: format!("user{}", number % 100),
    });
    let_pass(pace.steady / 2);
    load.enter(Phase::Before);
    let_pass(pace.steady);
    load.enter(Phase::Outage);
    proxy.set(Fault::Late { percent: 30, by: 4 * pace.deadline });
    let_pass(pace.outage);
    load.enter(Phase::Mended);
    proxy.set(Fault::None);
    let_pass(pace.steady);
    load.stop();
    let p99 = |phase| load.log(phase).times.within(990);
    let added = p99(Phase::Outage).saturating_sub(p99(Phase::Before));
    let slowest = load.log(Phase::Outage).times.within(1_000);
    vec![
        Figure::none("errors returned to callers", load.errors()),
        Figure::time("added to the p99 of decisions", added, pace.deadline),
        Figure::time("the slowest decision", slowest, 4 * pace.deadline),
    ]
}

/// F22: every reply arrives after its request has given up. Units that may have been charged are
/// never returned, and no reply is taken for that of another request.
pub(crate) fn late(pace: &Pace) -> Vec<Figure> {
    let (_server, proxy, node) = start(pace);
    let ask = |value: String| About { kind: 0, key: "scarce", value };
    let (mut admitted, mut unanswered) = (0, 0);
    for round in 0..5 {
        let fault = Fault::Late { percent: 100, by: 3 * pace.deadline };
        proxy.set(if round % 2 == 0 { fault } else { Fault::None });
        for _ in 0..8 {
            let answer = node.check_at_once(vec![ask("all".into()); 25]);
            admitted += answer.iter().filter(|answer| answer.is_allowed()).count() as u64;
            unanswered += answer.iter().filter(|answer| !answer.is_by_store()).count() as u64;
        }
        proxy.set(Fault::None);
        node.until_closed();
    }
    let taken = UNITS - node.remaining("scarce", "all");
    // Each request has its own key, and must get the answer for that key.
    let answer = node.check_at_once((0..100).map(|user| ask(format!("user{user}"))).collect());
    let mixed_up = (0..100).filter(|user| {
        let left = node.remaining("scarce", &format!("user{user}"));
        let was_let_in = u64::from(answer[*user].is_allowed());
        UNITS - left < was_let_in || UNITS - left > 1
    });
    let mixed_up = mixed_up.count() as u64;
    vec![
        Figure::count("admitted, of a limit of 500", admitted, UNITS),
        Figure::none("admitted and not charged", admitted.saturating_sub(taken)),
        Figure::count(
            "charged and not admitted: requests that timed out",
            taken.saturating_sub(admitted),
            unanswered,
        ),
        Figure::none("replies to another request", mixed_up),
    ]
}

/// F1, F22: resets, losses, half-closed connections and truncated replies, one after the other.
pub(crate) fn broken(pace: &Pace) -> Vec<Figure> {
    let (_server, proxy, node) = start(pace);
    let load = node.load(pace.rate / 10, pace.deadline, |number| match number % 2 {
        0 => About { kind: 0, key: "wide", value: format!("user{}", number % 100) },
        _ => About { kind: 1, key: "scarce", value: "all".into() },
    });
    let_pass(pace.steady / 2);
    let (mut slowest, faults) = (
        Duration::ZERO,
        [Fault::Reset, Fault::Lose, Fault::HalfClose, Fault::Truncate, Fault::Hold],
    );
    for fault in faults {
        load.enter(Phase::Outage);
        proxy.set(fault);
        let_pass(pace.outage / 4);
        load.enter(Phase::Mended);
        proxy.set(Fault::None);
        let start = tokio::time::Instant::now();
        // A fault may have opened the circuit; decisions by the store show that all is well.
        while node.check("wide", "probe").source() != DecisionSource::Store {
            assert!(start.elapsed() < super::node::TIMEOUT, "{fault:?} is never got over");
            let_pass(Duration::from_millis(1));
        }
        slowest = slowest.max(start.elapsed());
        node.until_closed();
    }
    load.stop();
    vec![
        Figure::none("errors returned to callers", load.errors()),
        Figure::count("`deny`, limit 500: admitted in total", load.allowed(1), UNITS),
        Figure::time(
            "decided by Redis again, from the end of the fault",
            slowest,
            Duration::from_secs(2),
        ),
    ]
}
