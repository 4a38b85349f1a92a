//! The setup of a world.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use tidegate::store::OnStoreFailure;
use tidegate::store::lease::{LEASE, TURN, leased};
use tidegate_core::{AlgorithmName, InvalidLimit, Limit, Rate, Span};

use super::faults::{Fault, Incident};
use super::machine::chance::Chance;
use crate::seed::Seed;
use crate::setup::{InvalidSetup, Setup};

/// The streams of random numbers of a world.
pub(crate) mod stream {
    pub(crate) const SETUP: usize = 0;
    pub(crate) const PLAN: usize = 1;
    pub(crate) const TRAFFIC: usize = 2;
    pub(crate) const NETWORK: usize = 3;
    pub(crate) const CLOCKS: usize = 4;
    pub(crate) const BACKGROUND: usize = 5;
}

/// The layers between a node's requests and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stack {
    /// None.
    Bare,
    /// The production stack, with limits of the exact tier.
    Exact,
    /// The production stack, with limits of the leased tier.
    Leased,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bare, Self::Exact, Self::Leased];

    /// The name in commands: the tier, or `bare`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Exact => "exact",
            Self::Leased => "leased",
        }
    }
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Stack {
    type Err = UnknownStack;

    fn from_str(text: &str) -> Result<Self, UnknownStack> {
        Self::ALL.into_iter().find(|stack| stack.as_str() == text).ok_or(UnknownStack)
    }
}

/// The error for an unknown stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownStack;

impl fmt::Display for UnknownStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tier must be one of")?;
        Stack::ALL.iter().try_for_each(|stack| write!(f, " {stack}"))
    }
}

impl Error for UnknownStack {}

/// Count and burst of the limit in one revision of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    pub(crate) count: u64,
    pub(crate) burst: u64,
}

/// The nodes, limit, traffic and faults of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldSetup {
    /// Determines everything that is random.
    pub seed: Seed,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of keys.
    pub keys: usize,
    /// Simulated seconds. The last four are without faults.
    pub seconds: u64,
    /// The algorithm of the limit.
    pub algorithm: AlgorithmName,
    /// The limit of each key.
    pub rate: Rate,
    /// The burst of a bucket.
    pub burst: u64,
    /// Requests for each key, in percent of the rate.
    pub load: u64,
    /// The faults that strike.
    pub faults: Vec<Fault>,
    /// The layers of each node.
    pub stack: Stack,
    /// The fallback of the nodes while the store is unavailable.
    pub on_store_failure: OnStoreFailure,
    /// Requests in a thousand that return the units of an earlier request.
    pub refunds: u64,
    /// Requests in a thousand for two keys: all or nothing, or each separately.
    pub pairs: u64,
    /// Whether the limit is an in-flight limit of `burst` places instead of a rate.
    pub in_flight: bool,
    /// Number of shards of each key.
    pub shards: u16,
    /// A bucket on each node in front of the limit (`local:` in a policy): units per second, and burst.
    pub pre_limit: Option<(u64, u64)>,
}

impl WorldSetup {
    /// The largest number of nodes.
    pub const MAX_NODES: usize = 1_024;
    /// The largest number of keys.
    pub const MAX_KEYS: usize = 1_024;
    /// The largest number of seconds.
    pub const MAX_SECONDS: u64 = 600;
    /// The largest number of requests in one world; each is kept until its end.
    pub const MAX_REQUESTS: u64 = 5_000_000;
    /// The smallest number of seconds: one for faults, and four without.
    pub const MIN_SECONDS: u64 = 5;
    /// Seconds without faults at the end.
    const CALM_SECONDS: u64 = 4;
    /// How long nodes take to recover after the last fault, in microseconds.
    pub(crate) const RECOVERY: u64 = 2_000_000;
    /// The time to live of a place in flight.
    const TTL: Span = Span::from_millis(700);

    /// A small world, drawn from its seed, with a random half of all faults.
    pub fn drawn(seed: Seed) -> Self {
        let mut chance = Chance::new(seed, stream::SETUP);
        let algorithm = match chance.below(8) {
            0 => AlgorithmName::FixedWindow,
            1 => AlgorithmName::SlidingLog,
            2 => AlgorithmName::SlidingWindow,
            3 => AlgorithmName::LeakyBucket,
            _ => AlgorithmName::TokenBucket,
        };
        let count = chance.between(1, 60);
        let mut setup = Self {
            seed,
            nodes: 3 + chance.index(6),
            keys: 1 + chance.index(3),
            seconds: chance.between(Self::MIN_SECONDS + 2, 10),
            algorithm,
            rate: Rate::per_second(count),
            burst: chance.between(1, 60),
            load: chance.between(50, 400),
            faults: Fault::ALL.into_iter().filter(|_| chance.permille(500)).collect(),
            stack: Stack::Exact,
            on_store_failure: OnStoreFailure::ALL[chance.index(OnStoreFailure::ALL.len())],
            refunds: if chance.permille(300) { 50 } else { 0 },
            pairs: 0,
            in_flight: false,
            shards: 1,
            pre_limit: None,
        };
        match chance.below(10) {
            0 => setup.stack = Stack::Bare,
            1..=5 => {}
            _ => setup.make_leased(),
        }
        let is_in_flight = setup.stack != Stack::Leased && chance.permille(60);
        setup.pairs = if chance.permille(400) { 200 } else { 0 };
        if is_in_flight {
            setup.make_in_flight();
        }
        if setup.stack != Stack::Bare && chance.permille(200) {
            let shards = 2 + chance.index(3) as u16;
            // A leased limit has no shards.
            setup.shards = if setup.stack == Stack::Leased { 1 } else { shards };
        }
        if setup.stack != Stack::Bare && chance.permille(150) {
            // Up to twice what each node would get of the limit.
            let most = 1 + 2 * setup.rate.count / setup.nodes as u64;
            setup.pre_limit = Some((chance.between(1, most), chance.between(1, most)));
        }
        setup
    }

    /// Makes the limit leased, if it is not, and large enough for leases.
    pub fn make_leased(&mut self) {
        if std::mem::replace(&mut self.stack, Stack::Leased) == Stack::Leased {
            return;
        }
        let count = 20 + 4 * self.rate.count;
        (self.rate, self.in_flight, self.shards) = (Rate::per_second(count), false, 1);
        self.burst = Self::least_burst(count, self.rate).max(count / 3 + 3 * self.burst);
        self.nodes = 1 + self.nodes / 2;
        self.seconds = Self::MIN_SECONDS + self.seconds % 3;
        self.algorithm = match self.algorithm {
            AlgorithmName::SlidingLog | AlgorithmName::LeakyBucket => AlgorithmName::TokenBucket,
            other => other,
        };
    }

    /// Makes the limit one of concurrent requests. Without the store, nodes deny everything.
    pub fn make_in_flight(&mut self) {
        (self.in_flight, self.refunds, self.pairs) = (true, 0, 0);
        self.burst = 1 + self.burst / 10;
        self.on_store_failure = OnStoreFailure::Deny;
    }

    /// The limit.
    ///
    /// # Errors
    /// If a number is out of bounds.
    pub fn limit(&self) -> Result<Limit, InvalidWorld> {
        let within = |number: u64, least: u64, most: u64, what| match number {
            number if number < least || number > most => {
                Err(InvalidWorld::OutOfBounds { what, least, most })
            }
            _ => Ok(()),
        };
        within(self.nodes as u64, 1, Self::MAX_NODES as u64, "nodes")?;
        within(self.keys as u64, 1, Self::MAX_KEYS as u64, "keys")?;
        within(self.seconds, Self::MIN_SECONDS, Self::MAX_SECONDS, "seconds")?;
        within(self.load, 1, 10_000, "load")?;
        let setup =
            Setup::new(self.rate, Some(self.burst), self.seed).map_err(InvalidWorld::Limit)?;
        within(self.requests(), 1, Self::MAX_REQUESTS, "requests (rate x load x keys x seconds)")?;
        self.limit_of(setup)
    }

    fn limit_of(&self, setup: Setup) -> Result<Limit, InvalidWorld> {
        let limit = match self.in_flight {
            true => Limit::in_flight(setup.burst(), Self::TTL),
            false => setup.limit(self.algorithm),
        };
        limit.map_err(InvalidWorld::Refused)
    }

    /// The limit of every revision of the policy on the nodes, with its numbers.
    pub(crate) fn limits(&self, plan: &[Incident]) -> Result<Vec<(Limit, Revision)>, InvalidWorld> {
        let first = Revision { count: self.rate.count, burst: self.burst };
        let pushes = plan.iter().filter(|incident| incident.fault == Fault::PolicyPush);
        let part = |number: u64, percent: u64| (number * percent / 100).max(1);
        let pushed = pushes.map(|incident| {
            let count = part(self.rate.count, incident.size % 1_000);
            let least = match self.stack {
                Stack::Leased => Self::least_burst(count, self.rate),
                Stack::Bare | Stack::Exact => 1,
            };
            Revision { count, burst: part(self.burst, incident.size / 1_000).max(least) }
        });
        let limit = |it: Revision| {
            let rate = Rate::new(it.count, self.rate.per);
            let setup = Setup::new(rate, Some(it.burst), self.seed).map_err(InvalidWorld::Limit)?;
            let limit = self.limit_of(setup)?;
            let reduced = leased(&limit).filter(|_| self.stack == Stack::Leased);
            Ok((reduced.unwrap_or(limit), it))
        };
        std::iter::once(first).chain(pushed).map(limit).collect()
    }

    /// The smallest burst of a bucket of this rate that can be leased.
    fn least_burst(count: u64, rate: Rate) -> u64 {
        let given = 4 * u128::from(count) * u128::from(LEASE.as_micros());
        let least = given.div_ceil(u128::from(rate.per.as_micros()).max(1));
        u64::try_from(least).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// The time to live of a place in flight, in microseconds.
    pub(crate) const fn ttl(&self) -> u64 {
        Self::TTL.as_micros()
    }

    /// The part of a leased bucket's burst that is held back at the store: the refill of a lease
    /// time, if the burst is at least four times that.
    pub(crate) fn held_back(&self, revision: &Revision) -> u64 {
        let is_bucket = matches!(self.algorithm, AlgorithmName::TokenBucket | AlgorithmName::Gcra);
        if self.stack != Stack::Leased || !is_bucket || self.in_flight {
            return 0;
        }
        let (count, per) = (u128::from(revision.count), u128::from(self.rate.per.as_micros()));
        let given = count * u128::from(LEASE.as_micros());
        let held = given.div_ceil(per);
        let burst = u128::from(revision.burst);
        let is_leased = burst * per >= 4 * given && burst > held;
        if is_leased { u64::try_from(held).unwrap_or(0) } else { 0 }
    }

    /// The most units that a node leases at once.
    pub(crate) fn taken_ahead(&self, revision: &Revision) -> u64 {
        let (count, per) = (u128::from(revision.count), u128::from(self.rate.per.as_micros()));
        let given = match self.algorithm {
            AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow => count / 16,
            _ => count * u128::from(TURN.as_micros()) / per.max(1),
        };
        u64::try_from(given).unwrap_or(u64::MAX).max(1)
    }

    /// The time at which all nodes have recovered, in microseconds.
    pub(crate) const fn calm_from(&self) -> u64 {
        self.faults_end() + Self::RECOVERY
    }

    /// The expected number of requests.
    fn requests(&self) -> u64 {
        let gap = u128::from(self.gap()).max(1);
        let all = u128::from(self.seconds) * 1_000_000 * self.nodes as u128 / gap;
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// The mean time between two requests at one node, in microseconds.
    pub(crate) fn gap(&self) -> u64 {
        let nodes = u128::from(self.rate.per.as_micros()) * 100 * self.nodes as u128;
        let asked = u128::from(self.rate.count) * u128::from(self.load) * self.keys as u128;
        u64::try_from(nodes / asked.max(1)).unwrap_or(u64::MAX).max(1)
    }

    /// When the world ends, in microseconds.
    pub(crate) const fn end(&self) -> u64 {
        self.seconds * 1_000_000
    }

    /// The end of the last fault, in microseconds.
    pub(crate) const fn faults_end(&self) -> u64 {
        self.seconds.saturating_sub(Self::CALM_SECONDS) * 1_000_000
    }
}

/// Why a world cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidWorld {
    /// A number is out of bounds.
    OutOfBounds {
        /// Which number.
        what: &'static str,
        /// The smallest allowed value.
        least: u64,
        /// The largest allowed value.
        most: u64,
    },
    /// The rate or burst cannot be simulated.
    Limit(InvalidSetup),
    /// The algorithm rejects the numbers.
    Refused(InvalidLimit),
    /// The system refuses to reserve memory.
    Memory,
}

impl fmt::Display for InvalidWorld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds { what, least, most } => {
                write!(f, "{what} must be {least} to {most}")
            }
            Self::Limit(why) => why.fmt(f),
            Self::Refused(why) => why.fmt(f),
            Self::Memory => f.write_str("the system refuses to reserve memory for the nodes"),
        }
    }
}

impl Error for InvalidWorld {}
