//! F10, F14, F23: eight nodes in separate processes share a limit, and are killed and stopped at
//! random.

use std::time::Duration;

use tokio::time::Instant;

use super::figure::Figure;
use super::hot_key::calls;
use super::node::let_pass;
use super::pace::Pace;
use super::process::KEY;
use crate::clients::Client;
use crate::history::Event;
use crate::servers::{RedisServer, our_program};

const NODES: usize = 8;
/// Units per second and burst of the shared limit, unless a case sets others.
const USUAL: u64 = 500;
/// All nodes together may hold one part in this many of the units per second unspent.
const HELD: u64 = 10;
/// Pause between two faults.
const APART: Duration = Duration::from_millis(250);

/// The faults of nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    /// No fault.
    Live,
    /// Nodes are killed now and then, and replaced.
    Killed,
    /// Nodes are stopped now and then, for longer than they may hold units.
    Stopped(Duration),
    /// One of the two, at random.
    Either,
}

impl Fate {
    /// The fault of the next node.
    fn next(self) -> Self {
        match self {
            Self::Either if fastrand::bool() => Self::Killed,
            Self::Either => Self::Stopped(APART),
            certain => certain,
        }
    }
}

/// Nodes that share a limit.
struct Fleet {
    server: RedisServer,
    rules: String,
    limit: u64,
    /// Requests per second of each node.
    rate: u32,
    nodes: Vec<Client>,
    said: Vec<String>,
    killed: u64,
}

impl Fleet {
    /// Starts nodes with a limit of this many units per second and as large a burst, under this
    /// load.
    fn start(tier: &str, limit: u64, offered: u64) -> Self {
        let rules = format!(
            "\n  - {{key: {KEY}, rate: {limit}/s, tier: {tier}, on_store_failure: deny}}\n"
        );
        let rate = u32::try_from(offered / NODES as u64).expect("a small number").max(1);
        let (nodes, said) = (Vec::new(), Vec::new());
        let server = RedisServer::start();
        let mut fleet = Self { server, rules, limit, rate, nodes, said, killed: 0 };
        fleet.nodes = (0..NODES).map(|_| fleet.node()).collect();
        fleet.server.command(&["CONFIG", "RESETSTAT"]);
        fleet.nodes.iter_mut().for_each(|node| node.say("go"));
        fleet
    }

    fn node(&self) -> Client {
        let program = our_program("chaos_node").display().to_string();
        Client::start(&program, &[&self.server.url(), &self.rules, &self.rate.to_string()])
    }

    /// Lets the nodes run for this long, with these faults.
    fn work(&mut self, time: Duration, fate: Fate) {
        let start = Instant::now();
        while start.elapsed() < time {
            let_pass(APART);
            let one = fastrand::usize(..self.nodes.len());
            match fate.next() {
                Fate::Killed => {
                    self.said.extend(self.nodes.swap_remove(one).kill());
                    self.killed += 1;
                    let mut next = self.node();
                    next.say("go");
                    self.nodes.push(next);
                }
                Fate::Stopped(time) => {
                    self.nodes[one].pause();
                    let_pass(time);
                    self.nodes[one].resume();
                }
                Fate::Live | Fate::Either => {}
            }
        }
    }

    /// Ends all nodes gracefully, and collects their results.
    fn finish(mut self) -> Outcome {
        for node in self.nodes.drain(..) {
            self.said.extend(node.finish());
        }
        let sum = |word: &str| {
            let counts = self.said.iter().filter_map(|line| line.strip_prefix(word));
            counts.filter_map(|count| count.trim().parse::<u64>().ok()).sum()
        };
        let (asked, calls) = (sum("asked "), calls(&self.server));
        let mut events: Vec<Event> =
            self.said.iter().filter_map(|line| line.parse().ok()).collect();
        events.sort_by_key(|event| event.returned);
        Outcome { events, limit: self.limit, asked, calls, killed: self.killed }
    }
}

/// The results of a fleet.
struct Outcome {
    /// Admitted requests, in the order of their answers.
    events: Vec<Event>,
    limit: u64,
    /// Requests sent by nodes that ended gracefully.
    asked: u64,
    /// Commands in the store.
    calls: u64,
    killed: u64,
}

impl Outcome {
    fn excess(&self) -> u64 {
        excess(&self.events, self.limit)
    }

    /// Units refilled between the first and the last admission.
    fn refilled(&self) -> f64 {
        let ends = self.events.first().zip(self.events.last());
        let micros = ends.map_or(0, |(first, last)| last.returned - first.invoked);
        self.limit as f64 * micros as f64 / 1e6
    }

    fn admitted(&self) -> f64 {
        self.events.len() as f64
    }

    fn figures(&self) -> Vec<Figure> {
        let used = self.admitted() / (self.limit as f64 + self.refilled());
        vec![
            Figure::none("admitted beyond capacity + rate × time, in any interval", self.excess()),
            Figure::percent("utilisation of capacity + rate × time", used, 0.0).without_target(),
        ]
    }

    /// Store commands per request.
    fn asking(&self, most: f64) -> Figure {
        let share = self.calls as f64 / self.asked.max(1) as f64;
        Figure::percent("calls to Redis, of the offered load", share, most)
    }
}

/// The most that any interval admitted beyond capacity + rate × time, for a limit of this many
/// units per second and as large a burst: at least the requests answered before its end, less those
/// sent before its start. The events are in the order of their answers.
pub(crate) fn excess(events: &[Event], limit: u64) -> u64 {
    let mut begun: Vec<u64> = events.iter().map(|event| event.invoked).collect();
    begun.sort_unstable();
    let rate = limit as f64 / 1e6;
    let start = begun.first().copied().unwrap_or(0);
    let (mut before, mut lowest, mut most) = (0, f64::INFINITY, 0.0_f64);
    for (ended, event) in (1_u32..).zip(events) {
        while let Some(at) = begun.get(before).filter(|at| **at <= event.returned) {
            lowest = lowest.min(before as f64 - rate * (at - start) as f64);
            before += 1;
        }
        let highest = f64::from(ended) - rate * (event.returned - start) as f64;
        most = most.max(highest - lowest - limit as f64);
    }
    // Floating-point rounding is below a millionth of a unit.
    (most - 1e-6).max(0.0).ceil() as u64
}

/// Kills and stops nodes at random, under twice the limit.
fn disturbed(pace: &Pace, tier: &str, fate: Fate) -> Outcome {
    let mut fleet = Fleet::start(tier, USUAL, 2 * USUAL);
    fleet.work(2 * pace.outage, fate);
    fleet.finish()
}

/// F23: nodes killed and stopped at random, with decisions in the store.
pub(crate) fn exact(pace: &Pace) -> Vec<Figure> {
    disturbed(pace, "exact", Fate::Either).figures()
}

/// F23: the same with leased units.
pub(crate) fn leased(pace: &Pace) -> Vec<Figure> {
    disturbed(pace, "leased", Fate::Either).figures()
}

/// F10: the units of a killed node are lost, and never granted twice.
pub(crate) fn crashes(pace: &Pace) -> Vec<Figure> {
    let outcome = disturbed(pace, "leased", Fate::Killed);
    // The store holds less than the limit by the units that nodes may hold.
    let held = outcome.limit / HELD;
    let ideal = (outcome.limit - held) as f64 + outcome.refilled();
    let lost = (ideal - outcome.admitted()).max(0.0) / outcome.killed.max(1) as f64;
    let mut figures = outcome.figures();
    let behaviour = "units lost per killed process: what nodes may hold";
    figures.push(Figure::count(behaviour, lost.ceil() as u64, held).roughly());
    figures
}

/// F23: a process that was stopped for longer than its units are valid does not spend them.
pub(crate) fn suspended(pace: &Pace) -> Vec<Figure> {
    disturbed(pace, "leased", Fate::Stopped(pace.steady)).figures()
}

/// F14: ten times the limit, with leased units.
pub(crate) fn overload(pace: &Pace) -> Vec<Figure> {
    // Calls depend on the number of nodes and not on the load, so a small load would show a large
    // ratio.
    let limit = u64::from(pace.rate / 10).max(USUAL);
    let mut fleet = Fleet::start("leased", limit, 10 * limit);
    fleet.work(pace.outage, Fate::Live);
    let outcome = fleet.finish();
    let mut figures = outcome.figures();
    figures.push(outcome.asking(5.0).roughly());
    figures
}

/// A load equal to the limit, with leased units.
pub(crate) fn at_the_limit(pace: &Pace) -> Vec<Figure> {
    let limit = u64::from(pace.rate * 4 / 5);
    let mut fleet = Fleet::start("leased", limit, limit);
    fleet.work(pace.hang, Fate::Live);
    let outcome = fleet.finish();
    let offered = outcome.refilled().min(outcome.asked as f64);
    let admitted = outcome.admitted() / offered.max(1.0);
    vec![
        Figure::none("admitted beyond capacity + rate × time, in any interval", outcome.excess()),
        Figure::percent(
            "admitted, with the first burst, of rate × time or the offered load",
            admitted,
            99.0,
        )
        .at_least()
        .roughly(),
        outcome.asking(5.0).when_idle(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit allows one unit per millisecond; ten at once are ten above it.
    #[test]
    fn units_beyond_the_limit_are_found() {
        let event = |at: u64| Event { invoked: at, returned: at + 10, cost: 1, allowed: true };
        let outcome = |events: Vec<Event>| {
            Outcome { events, limit: 1_000, asked: 0, calls: 0, killed: 0 }.excess()
        };
        let steady = |number: u64| event(number * 1_000);
        let mut events: Vec<Event> = (0..5_000).map(steady).collect();
        assert_eq!(outcome(events.clone()), 0);
        events.extend((0..1_010).map(|number| event(2_000_000 + number)));
        events.sort_by_key(|event| event.returned);
        let excess = outcome(events);
        assert!((8..=12).contains(&excess), "{excess}");
    }
}
