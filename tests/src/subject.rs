//! The subject of a comparison: an algorithm, and the plain numbers of one limit.

use std::fmt;
use std::str::FromStr;

use tidegate_core::{AlgorithmName, InvalidLimit, Limit, Rate, Span, UnknownAlgorithm};

/// The algorithms under test: the six names, and the in-flight limit, which has no rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// One of the six algorithms.
    Rated(AlgorithmName),
    /// The in-flight limit.
    InFlight,
}

impl Subject {
    /// Every subject.
    pub const ALL: [Self; 7] = [
        Self::Rated(AlgorithmName::FixedWindow),
        Self::Rated(AlgorithmName::SlidingLog),
        Self::Rated(AlgorithmName::SlidingWindow),
        Self::Rated(AlgorithmName::TokenBucket),
        Self::Rated(AlgorithmName::Gcra),
        Self::Rated(AlgorithmName::LeakyBucket),
        Self::InFlight,
    ];

    /// The name in commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Rated(name) => name.as_str(),
            Self::InFlight => "inflight",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Subject {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL.into_iter().find(|subject| subject.as_str() == text).ok_or(UnknownAlgorithm)
    }
}

/// The numbers of one limit, before any of them was reduced, checked or converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// The algorithm.
    pub subject: Subject,
    /// Units per `per`; places of an in-flight limit.
    pub count: u64,
    /// The period or window; the time to live of a lease. Microseconds.
    pub per: u64,
    /// Buckets: `None` leaves the default to the engine and to the oracle.
    pub burst: Option<u64>,
    /// Leaky buckets: `None` leaves the default to the engine and to the oracle.
    pub queue: Option<u64>,
    /// Fixed windows start this many microseconds after the epoch's.
    pub offset: u64,
    /// Fixed windows: whether denied requests count.
    pub count_denied: bool,
    /// Rates: how long a denial blocks the key, in microseconds; `None` without a block.
    pub block_for: Option<u64>,
}

impl Numbers {
    /// The engine's limit with these numbers.
    pub fn limit(&self) -> Result<Limit, InvalidLimit> {
        let per = Span::from_micros(self.per);
        let Subject::Rated(name) = self.subject else {
            return Limit::in_flight(self.count, per);
        };
        let mut builder = tidegate_core::Builder::new(name, Rate::new(self.count, per));
        if let Some(burst) = self.burst {
            builder = builder.burst(burst);
        }
        if let Some(queue) = self.queue {
            builder = builder.queue(queue);
        }
        if self.offset > 0 {
            builder = builder.offset(Span::from_micros(self.offset));
        }
        if self.count_denied {
            builder = builder.count_denied();
        }
        if name == AlgorithmName::SlidingLog && self.count > 10_000 {
            builder = builder.large_log();
        }
        match self.block_for {
            Some(block_for) => builder.build()?.blocking(Span::from_micros(block_for)),
            None => builder.build(),
        }
    }

    /// The most a fully idle key can take at once.
    pub fn capacity(&self) -> u64 {
        match self.subject {
            Subject::Rated(AlgorithmName::TokenBucket) => self.burst.unwrap_or(self.count),
            Subject::Rated(AlgorithmName::Gcra) => self.burst.unwrap_or(1),
            Subject::Rated(AlgorithmName::LeakyBucket) => {
                self.burst.unwrap_or(1) + self.queue.unwrap_or(self.count)
            }
            Subject::Rated(_) | Subject::InFlight => self.count,
        }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}us", self.subject, self.count, self.per)?;
        self.burst.map_or(Ok(()), |burst| write!(f, " burst {burst}"))?;
        self.queue.map_or(Ok(()), |queue| write!(f, " queue {queue}"))?;
        if self.offset > 0 {
            write!(f, " offset {}us", self.offset)?;
        }
        self.block_for.map_or(Ok(()), |block_for| write!(f, " block_for {block_for}us"))?;
        if self.count_denied { f.write_str(" count_denied") } else { Ok(()) }
    }
}
