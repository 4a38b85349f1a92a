//! What a world is made of.

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

/// Names the courses of chance of a world apart.
pub(crate) mod stream {
    pub(crate) const SETUP: usize = 0;
    pub(crate) const PLAN: usize = 1;
    pub(crate) const TRAFFIC: usize = 2;
    pub(crate) const NETWORK: usize = 3;
    pub(crate) const CLOCKS: usize = 4;
    pub(crate) const BACKGROUND: usize = 5;
}

/// What stands between a node's requests and the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stack {
    /// Nothing.
    Bare,
    /// What repeats denials, does not ask a store that is away, and answers in its place.
    Exact,
    /// The same, with units taken ahead.
    Leased,
}

impl Stack {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Bare, Self::Exact, Self::Leased];

    /// As commands spell it: the tier, or that there is none.
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

/// The text names no stack.
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

/// How many nodes share which limit, for how long, and what goes wrong meanwhile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldSetup {
    /// Where everything that is left to chance comes from.
    pub seed: Seed,
    /// Nodes that requests come in at.
    pub nodes: usize,
    /// Keys that they ask for.
    pub keys: usize,
    /// Simulated seconds. Nothing goes wrong in the last four of them.
    pub seconds: u64,
    /// How the limit decides.
    pub algorithm: AlgorithmName,
    /// The limit of each key.
    pub rate: Rate,
    /// What buckets hold.
    pub burst: u64,
    /// Requests that come in for each key, in hundredths of the rate.
    pub load: u64,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// What nodes put before the store.
    pub stack: Stack,
    /// What they answer when the store does not.
    pub on_store_failure: OnStoreFailure,
    /// Of a thousand requests so many give back what another has taken.
    pub refunds: u64,
    /// So many requests in a thousand ask for units of two keys: together, or each for itself.
    pub pairs: u64,
    /// Limits what is under way at once, to `burst` places, and not how often.
    pub in_flight: bool,
    /// Parts that each key is divided into.
    pub shards: u16,
    /// A bucket on each node in front of the limit (`local:` in a policy): units per second, and burst.
    pub pre_limit: Option<(u64, u64)>,
}

impl WorldSetup {
    /// The most nodes.
    pub const MAX_NODES: usize = 1_024;
    /// The most keys.
    pub const MAX_KEYS: usize = 1_024;
    /// The most seconds.
    pub const MAX_SECONDS: u64 = 600;
    /// The most requests in one world; each is kept until its end.
    pub const MAX_REQUESTS: u64 = 5_000_000;
    /// The fewest seconds: half of them for faults, and the calm after them.
    pub const MIN_SECONDS: u64 = 5;
    /// For so long at the end nothing goes wrong any more.
    const CALM_SECONDS: u64 = 4;
    /// So long after the last fault everything is exact again.
    pub(crate) const RECOVERY: u64 = 2_000_000;
    /// Places in flight are given up after so long.
    const TTL: Span = Span::from_millis(700);

    /// A small world, drawn from its seed: a random half of all faults strikes it.
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
            setup.shards = 2 + chance.index(3) as u16;
        }
        if setup.stack != Stack::Bare && chance.permille(150) {
            // Up to twice what each node would get of the limit.
            let most = 1 + 2 * setup.rate.count / setup.nodes as u64;
            setup.pre_limit = Some((chance.between(1, most), chance.between(1, most)));
        }
        setup
    }

    /// Turns it into a world where units are taken ahead, if it is none: where it is worth while, for a few
    /// seconds.
    pub fn make_leased(&mut self) {
        if std::mem::replace(&mut self.stack, Stack::Leased) == Stack::Leased {
            return;
        }
        let count = 20 + 4 * self.rate.count;
        (self.rate, self.in_flight) = (Rate::per_second(count), false);
        self.burst = Self::least_burst(count, self.rate).max(count / 3 + 3 * self.burst);
        self.nodes = 1 + self.nodes / 2;
        self.seconds = Self::MIN_SECONDS + self.seconds % 3;
        self.algorithm = match self.algorithm {
            AlgorithmName::SlidingLog | AlgorithmName::LeakyBucket => AlgorithmName::TokenBucket,
            other => other,
        };
    }

    /// Turns it into a world of places in flight. Nothing is let in there without the store.
    pub fn make_in_flight(&mut self) {
        (self.in_flight, self.refunds, self.pairs) = (true, 0, 0);
        self.burst = 1 + self.burst / 10;
        self.on_store_failure = OnStoreFailure::Deny;
    }

    /// The limit, and whether the numbers are such that a world can be made of them.
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

    /// The limit of every revision of the policy, as nodes decide by it, with its numbers.
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

    /// The smallest burst of a bucket that is leased at so many per period.
    fn least_burst(count: u64, rate: Rate) -> u64 {
        let given = 4 * u128::from(count) * u128::from(LEASE.as_micros());
        let least = given.div_ceil(u128::from(rate.per.as_micros()).max(1));
        u64::try_from(least).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// How long a place is kept for somebody who does not come back, in microseconds.
    pub(crate) const fn ttl(&self) -> u64 {
        Self::TTL.as_micros()
    }

    /// By how much the capacity at the store is smaller than the limit's: by what the rate gives in a
    /// lease time, if the burst is at least four times that.
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

    /// The most units that a node takes ahead at once: of a window a small part, else what the rate gives in
    /// a turn.
    pub(crate) fn taken_ahead(&self, revision: &Revision) -> u64 {
        let (count, per) = (u128::from(revision.count), u128::from(self.rate.per.as_micros()));
        let given = match self.algorithm {
            AlgorithmName::FixedWindow | AlgorithmName::SlidingWindow => count / 16,
            _ => count * u128::from(TURN.as_micros()) / per.max(1),
        };
        u64::try_from(given).unwrap_or(u64::MAX).max(1)
    }

    /// From when on everything is exact again, in microseconds.
    pub(crate) const fn calm_from(&self) -> u64 {
        self.faults_end() + Self::RECOVERY
    }

    /// About how many requests there will be.
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

    /// From when on nothing goes wrong, in microseconds.
    pub(crate) const fn faults_end(&self) -> u64 {
        self.seconds.saturating_sub(Self::CALM_SECONDS) * 1_000_000
    }
}

/// Why there can be no such world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidWorld {
    /// A number is too small or too large.
    OutOfBounds {
        /// Of what.
        what: &'static str,
        /// The smallest it may be.
        least: u64,
        /// The largest it may be.
        most: u64,
    },
    /// The rate or the burst is none that can be simulated.
    Limit(InvalidSetup),
    /// The algorithm refuses the numbers.
    Refused(InvalidLimit),
    /// The system gives no memory for it.
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
            Self::Memory => f.write_str("the system gives no memory for its nodes"),
        }
    }
}

impl Error for InvalidWorld {}
