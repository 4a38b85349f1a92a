//! The scenario of an overload: server, clients, and load over time.

use std::fmt;
use std::str::FromStr;

use tidegate_core::Span;

use crate::seed::Seed;

/// Names of the classes, most important first.
pub const CLASSES: [&str; 4] = ["critical", "write", "read", "test"];

/// A server, its clients, and how the load changes.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How the server works.
    pub server: ServerKind,
    /// Mean work of a request, if nothing slows it down.
    pub service: Span,
    /// How the work of individual requests varies.
    pub times: ServiceTimes,
    /// Time after which a client gives up on an attempt.
    pub deadline: Span,
    /// Number of retries of a client, a few milliseconds after each failure.
    pub retries: u32,
    /// Percentage of requests in each class.
    pub mix: [u64; CLASSES.len()],
    /// The phases, in order.
    pub phases: Vec<Phase>,
    /// The seed of all random numbers.
    pub seed: Seed,
}

impl Default for Scenario {
    /// 16 workers with 10 ms of work per request, at twice their capacity for a minute.
    fn default() -> Self {
        Self {
            server: ServerKind::Pool,
            service: Span::from_millis(10),
            times: ServiceTimes::Exponential,
            deadline: Span::from_millis(100),
            retries: 0,
            mix: [20, 20, 50, 10],
            phases: vec![Phase::load(200, 60)],
            seed: Seed(1),
        }
    }
}

impl Scenario {
    /// Requests per second that the healthy server can serve, in thousandths.
    pub(super) fn capacity(&self) -> u64 {
        1_000_000_000 * self.server.parallel() / self.service.as_micros().max(1)
    }

    /// Length of all phases.
    pub(super) fn seconds(&self) -> u64 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }
}

/// A part of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// Load in per cent of the healthy server's capacity.
    pub load: u64,
    /// Length.
    pub seconds: u64,
    /// Work per request, in per cent of the healthy server's.
    pub slowness: u64,
    /// Workers, cores or connections, in per cent of the healthy server's.
    pub workers: u64,
}

impl Phase {
    /// A healthy server under a load.
    pub const fn load(percent: u64, seconds: u64) -> Self {
        Self { load: percent, seconds, slowness: 100, workers: 100 }
    }
}

/// How the work of individual requests is distributed around its mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceTimes {
    /// All alike.
    Constant,
    /// Exponential: many short requests, few long ones.
    Exponential,
    /// One in ten takes eleven times as long as the others.
    Bimodal,
}

/// How a server works on concurrent requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// 16 workers and a queue without bound.
    Pool,
    /// Two cores that all requests share.
    Cpu,
    /// Handlers without bound, each of which needs one of 8 connections for its work.
    Connections,
    /// All requests at once, each slowed down by the others: work × (1 + (requests / 16)²).
    Thrashing,
}

impl ServerKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Pool, Self::Cpu, Self::Connections, Self::Thrashing];

    /// The name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Cpu => "cpu",
            Self::Connections => "connections",
            Self::Thrashing => "thrashing",
        }
    }

    /// Requests that make progress at full speed at the same time.
    pub(super) const fn parallel(self) -> u64 {
        match self {
            Self::Pool => 16,
            Self::Cpu => 2,
            // A thrashing server has its highest throughput with 16 requests, each at half speed.
            Self::Connections | Self::Thrashing => 8,
        }
    }
}

impl FromStr for ServerKind {
    type Err = UnknownServer;

    fn from_str(name: &str) -> Result<Self, UnknownServer> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or(UnknownServer)
    }
}

/// The error for an unknown name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownServer;

impl fmt::Display for UnknownServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown kind of server")
    }
}

impl std::error::Error for UnknownServer {}
