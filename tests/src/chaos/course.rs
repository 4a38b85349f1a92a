//! An outage under load: before it, until it is noticed, during it, until recovery.

use std::fs;
use std::time::Duration;

use tidegate::store::circuits::CircuitState;
use tokio::time::Instant;

use super::figure::Figure;
use super::load::{KINDS, Load, Phase, read};
use super::node::{About, Node, Setup, let_pass};
use super::pace::Pace;
use crate::servers::RedisServer;

/// One rule for each failure mode. Under `local`, hardly any unit is refilled during an outage.
const RULES: &str = "
  - {key: allow, rate: 1000000/day, on_store_failure: allow}
  - {key: deny, rate: 1000000/day, on_store_failure: deny}
  - {key: local, rate: 100/year, on_store_failure: local}
";
const MODES: [&str; 3] = ["allow", "deny", "local"];
/// The most that a single node may admit under `local`: 1.5 times the limit.
const SHARE: u64 = 150;
/// Number of keys in use.
const KEYS: u64 = 1_000;

/// The events of an outage, with their times.
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
    /// The growth of this process in MiB.
    growth: f64,
    trips: u64,
    /// Circuit trips before the fault, which a busy machine causes.
    early: u64,
}

/// Duration and intensity of the load.
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
    /// Takes a server down under load, and restores it.
    pub(crate) fn run(
        plan: Plan,
        server: &RedisServer,
        take_down: impl FnOnce(&RedisServer),
        bring_back: impl FnOnce(&RedisServer),
    ) -> Self {
        let (url, deadline) = (server.url(), plan.deadline);
        let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
        let load = node.load(plan.rate, plan.deadline, about);
        // The first requests allocate what is created on first use.
        let_pass(plan.steady / 2);
        let steady = load.enter(Phase::Before);
        let_pass(plan.steady);
        // On a busy machine, the circuit may have opened before the fault.
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

    /// Time from the failure until requests no longer wait for Redis.
    pub(crate) fn trip(&self) -> Duration {
        self.noticed - self.failed
    }

    /// Figures during the outage: callers get answers by their policy, at once.
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

    /// Figures after the store has recovered.
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
            Figure::count("circuit trips before the fault", self.early, 0).without_target(),
            Figure::times("highest load of Redis / usual load", peak, 1.5).when_idle(),
            Figure::none("units admitted and never booked", stats.dropped_units),
        ]
    }

    /// The growth of memory during the outage.
    pub(crate) fn growth(&self) -> Figure {
        Figure::mebibytes("memory growth during the outage", self.growth.max(0.0), 20.0)
    }

    /// Number of requests that waited for the deadline, at this rate.
    pub(crate) fn waits(&self, plan: Plan) -> Figure {
        let waited = self.load.waited(&[Phase::Unnoticed, Phase::Outage]);
        let span = plan.deadline + self.trip();
        let most = (f64::from(plan.rate) * span.as_secs_f64()).ceil() as u64;
        Figure::count("requests that wait for the deadline: rate × (deadline + trip)", waited, most)
            .roughly()
    }
}

/// Resident memory of this process.
fn resident_mebibytes() -> f64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

const _: () = assert!(MODES.len() <= KINDS);
