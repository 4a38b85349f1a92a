//! What a world is made of.

use tidegate_core::{AlgorithmName, InvalidLimit, Limit, Rate};

use super::chance::Chance;
use super::fault::Fault;
use crate::seed::Seed;
use crate::setup::{InvalidSetup, Setup};

/// Names the courses of chance of a world apart.
pub(crate) mod stream {
    pub(crate) const SETUP: usize = 0;
    pub(crate) const PLAN: usize = 1;
    pub(crate) const TRAFFIC: usize = 2;
    pub(crate) const NETWORK: usize = 3;
    pub(crate) const CLOCKS: usize = 4;
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
        Self {
            seed,
            nodes: 3 + chance.index(6),
            keys: 1 + chance.index(3),
            seconds: chance.between(Self::MIN_SECONDS + 2, 14),
            algorithm,
            rate: Rate::per_second(count),
            burst: chance.between(1, 60),
            load: chance.between(50, 400),
            faults: Fault::ALL.into_iter().filter(|_| chance.permille(500)).collect(),
        }
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
        setup.limit(self.algorithm).map_err(InvalidWorld::Refused)
    }

    /// About how many requests there will be.
    fn requests(&self) -> u64 {
        let gap = u128::from(self.gap()).max(1);
        let each = u128::from(self.seconds) * 1_000_000 / gap;
        u64::try_from(each * self.nodes as u128).unwrap_or(u64::MAX)
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
}

impl std::fmt::Display for InvalidWorld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfBounds { what, least, most } => {
                write!(f, "{what} must be {least} to {most}")
            }
            Self::Limit(why) => why.fmt(f),
            Self::Refused(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for InvalidWorld {}
