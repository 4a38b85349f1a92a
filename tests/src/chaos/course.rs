//! The course of an outage under load: before, until it is noticed, while it lasts, until all is well.

use std::fs;
use std::time::Duration;

use tidegate::store::circuits::CircuitState;
use tokio::time::Instant;

use super::figure::Figure;
use super::load::{KINDS, Load, Phase, read};
use super::node::{About, Node, Setup, let_pass};
use super::pace::Pace;
use crate::servers::RedisServer;

/// One rule for each failure mode. Of `local` nothing to speak of comes back meanwhile.
const RULES: &str = "
  - {key: allow, rate: 1000000/day, on_store_failure: allow}
  - {key: deny, rate: 1000000/day, on_store_failure: deny}
  - {key: local, rate: 100/year, on_store_failure: local}
";
const MODES: [&str; 3] = ["allow", "deny", "local"];
/// What a node alone may admit of `local`: one and a half times the limit.
const SHARE: u64 = 150;
/// Keys that are in use.
const KEYS: u64 = 1_000;

/// What happened, and when.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) load: Load,
    pub(crate) node: Node,
    steady: Instant,
    failed: Instant,
    noticed: Instant,
    mended: Instant,
    probed: Instant,
    closed: Instant,
    end: Instant,
    /// By how many MiB this process grew.
    growth: f64,
    trips: u64,
    /// Those of a machine that is too busy.
    early: u64,
}

/// How long and how hard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) rate: u32,
    pub(crate) steady: Duration,
    pub(crate) outage: Duration,
    pub(crate) deadline: Duration,
}

impl Plan {
    pub(crate) const fn of(pace: &Pace) -> Self {
        Self { rate: pace.rate, steady: pace.steady, outage: pace.outage, deadline: pace.deadline }
    }
}

fn about(number: u64) -> About {
    let kind = (number % 3) as usize;
    let value = if kind == 2 { "all".into() } else { format!("user{}", number / 3 % KEYS) };
    About { kind, key: MODES[kind], value }
}

impl Course {
    /// Takes a server down under load, and brings it back.
    pub(crate) fn run(
        plan: Plan,
        server: &RedisServer,
        take_down: impl FnOnce(&RedisServer),
        bring_back: impl FnOnce(&RedisServer),
    ) -> Self {
        let (url, deadline) = (server.url(), plan.deadline);
        let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
        let load = node.load(plan.rate, plan.deadline, about);
        // The first requests find what is made on first use.
        let_pass(plan.steady / 2);
        let steady = load.enter(Phase::Before);
        let_pass(plan.steady);
        // A machine that is busy may have been taken for a store that is gone.
        node.until_closed();
        let (before, trips) = (resident_mebibytes(), node.trips());
        let failed = load.enter(Phase::Unnoticed);
        take_down(server);
        let noticed = node.until("the outage is noticed", |state| state == CircuitState::Open);
        load.enter(Phase::Outage);
        let_pass(plan.outage);
        let growth = resident_mebibytes() - before;
        load.enter(Phase::Mended);
        bring_back(server);
        let mended = Instant::now();
        let probed = node.until("a probe is answered", |state| state != CircuitState::Open);
        let closed = node.until_closed();
        load.enter(Phase::After);
        let_pass(plan.steady);
        load.stop();
        let (end, early, trips) = (Instant::now(), trips, node.trips() - trips);
        Self {
            early,
            load,
            node,
            steady,
            failed,
            noticed,
            mended,
            probed,
            closed,
            end,
            growth,
            trips,
        }
    }

    /// From the failure until requests stop waiting for Redis.
    pub(crate) fn trip(&self) -> Duration {
        self.noticed - self.failed
    }

    /// What holds for every outage: callers are answered, as their policy says, and at once.
    pub(crate) fn answers(&self) -> Vec<Figure> {
        let outage = self.load.log(Phase::Outage);
        let (allow, deny, local) = (0, 1, 2);
        vec![
            Figure::none("errors returned to callers", self.load.errors()),
            Figure::none("`allow`: denied once the outage is known", read(&outage.denied[allow])),
            Figure::none("`deny`: admitted once the outage is known", read(&outage.allowed[deny])),
            Figure::count(
                "`local`, limit 100: admitted during the outage",
                read(&outage.allowed[local]),
                SHARE,
            ),
            Figure::time(
                "p99 of decisions once the outage is known",
                outage.times.within(990),
                Duration::from_millis(1),
            ),
        ]
    }

    /// What holds when the store is back.
    pub(crate) fn recovery(&self) -> Vec<Figure> {
        let seconds = Duration::from_secs;
        let peak = self.node.sent.peak([self.steady, self.failed], [self.mended, self.end]);
        let stats = self.node.stats();
        vec![
            Figure::time(
                "all decided by Redis again, from its return",
                self.closed - self.mended,
                seconds(2),
            ),
            Figure::time(
                "all decided by Redis again, from the first good probe",
                self.closed - self.probed,
                seconds(1),
            ),
            Figure::none("circuit trips after the first", self.trips - 1).when_idle(),
            Figure::count("circuit trips before the fault", self.early, 0).told(),
            Figure::times("highest load of Redis / usual load", peak, 1.5).when_idle(),
            Figure::none("units admitted and never booked", stats.dropped_units),
        ]
    }

    /// By how much memory grew meanwhile.
    pub(crate) fn growth(&self) -> Figure {
        Figure::mebibytes("memory growth during the outage", self.growth.max(0.0), 20.0)
    }

    /// How many waited for the deadline, of those who asked at this rate.
    pub(crate) fn waits(&self, plan: Plan) -> Figure {
        let waited = self.load.waited(&[Phase::Unnoticed, Phase::Outage]);
        let span = plan.deadline + self.trip();
        let most = (f64::from(plan.rate) * span.as_secs_f64()).ceil() as u64;
        Figure::count("requests that wait for the deadline: rate × (deadline + trip)", waited, most)
            .roughly()
    }
}

/// What this process takes of the machine's memory.
fn resident_mebibytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

const _: () = assert!(MODES.len() <= KINDS);
