//! [`Limit`]: one enum for all limits, which dispatches to their algorithms.

use core::fmt;
use core::str::FromStr;

use crate::algorithm::Algorithm;
use crate::algorithm::blocking::{Blocking, BlockingState};
use crate::algorithm::bucket::{Bucket, BucketState};
use crate::algorithm::fixed_window::{Denied, FixedWindow, FixedWindowState};
use crate::algorithm::inflight::{InFlight, InFlightState};
use crate::algorithm::sliding_log::{SlidingLog, SlidingLogState};
use crate::algorithm::sliding_window::{SlidingWindow, SlidingWindowState};
use crate::decision::{Decision, Op};
use crate::explain::Explanation;
use crate::invalid::InvalidLimit;
use crate::rate::{Interval, Rate};
use crate::time::{Span, Timestamp};

/// Any limit. An enum and not a trait object, because every store implements each algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Token bucket, GCRA or leaky bucket.
    Bucket(Bucket),
    /// Fixed window.
    FixedWindow(FixedWindow),
    /// Sliding window counter.
    SlidingWindow(SlidingWindow),
    /// Sliding log.
    SlidingLog(SlidingLog),
    /// In-flight (concurrency).
    InFlight(InFlight),
    /// A rate whose denials block the key for a while.
    Blocking(Blocking),
}

impl Limit {
    /// A token bucket: refills at `rate` and holds `rate.count` units unless [`Builder::burst`]
    /// sets another number. The usual choice.
    pub const fn token_bucket(rate: Rate) -> Builder {
        Builder::new(AlgorithmName::TokenBucket, rate)
    }

    /// GCRA: a bucket of 1 unless [`Builder::burst`] sets more; a bucket of 1 means strict spacing.
    pub const fn gcra(rate: Rate) -> Builder {
        Builder::new(AlgorithmName::Gcra, rate)
    }

    /// A leaky bucket: admits requests while there is room in its queue, and returns the delay
    /// before each start.
    pub const fn leaky_bucket(rate: Rate) -> Builder {
        Builder::new(AlgorithmName::LeakyBucket, rate)
    }

    /// A counter per window of `rate.per`.
    pub const fn fixed_window(rate: Rate) -> Builder {
        Builder::new(AlgorithmName::FixedWindow, rate)
    }

    /// Two counters that approximate a rolling window of `rate.per`.
    pub const fn sliding_window(rate: Rate) -> Builder {
        Builder::new(AlgorithmName::SlidingWindow, rate)
    }

    /// An exact rolling window of `rate.per`.
    pub const fn sliding_log(rate: Rate) -> Builder {
        Builder::new(AlgorithmName::SlidingLog, rate)
    }

    /// At most `places` at once; a lease ends after `ttl` unless it is released.
    pub fn in_flight(places: u64, ttl: impl Into<Span>) -> Result<Self, InvalidLimit> {
        InFlight::new(places, ttl.into()).map(Self::InFlight)
    }

    /// The same rate, with a block: a denial denies the key for `block_for`.
    pub fn blocking(self, block_for: impl Into<Span>) -> Result<Self, InvalidLimit> {
        Blocking::new(self, block_for.into()).map(Self::Blocking)
    }

    /// The rate of a limit with a block; any other limit is returned unchanged.
    pub const fn without_block(&self) -> Self {
        match self {
            Self::Blocking(blocking) => blocking.rate(),
            other => *other,
        }
    }

    /// The name of the state family, as used in Redis keys and scripts.
    pub const fn family(&self) -> &'static str {
        match self {
            Self::Bucket(_) => "bucket",
            Self::FixedWindow(_) => "fixed_window",
            Self::SlidingWindow(_) => "sliding_window",
            Self::SlidingLog(_) => "sliding_log",
            Self::InFlight(_) => "inflight",
            Self::Blocking(blocking) => blocking.family(),
        }
    }
}

/// The names of the six rate algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmName {
    /// One counter per window.
    FixedWindow,
    /// Every admission with its time.
    SlidingLog,
    /// Two weighted counters.
    SlidingWindow,
    /// Bursts up to the bucket, refilled at the rate.
    TokenBucket,
    /// A token bucket that holds 1 by default.
    Gcra,
    /// Shaping: admitted requests are spaced.
    LeakyBucket,
}

impl AlgorithmName {
    /// Whether the algorithm is a bucket, which takes a burst.
    const fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra | Self::LeakyBucket)
    }

    /// All algorithms, simplest first.
    pub const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingLog,
        Self::SlidingWindow,
        Self::TokenBucket,
        Self::Gcra,
        Self::LeakyBucket,
    ];

    /// The spelling in policies, commands and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed_window",
            Self::SlidingLog => "sliding_log",
            Self::SlidingWindow => "sliding_window",
            Self::TokenBucket => "token_bucket",
            Self::Gcra => "gcra",
            Self::LeakyBucket => "leaky_bucket",
        }
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for AlgorithmName {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        Self::ALL.into_iter().find(|name| name.as_str() == text).ok_or(UnknownAlgorithm)
    }
}

/// The error for a text that is not the name of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownAlgorithm;

impl fmt::Display for UnknownAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("algorithm must be one of")?;
        AlgorithmName::ALL.iter().try_for_each(|name| write!(f, " {name}"))
    }
}

impl core::error::Error for UnknownAlgorithm {}

/// Collects a limit's options; [`Builder::build`] checks them all at once.
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct Builder {
    algorithm: AlgorithmName,
    rate: Rate,
    burst: Option<u64>,
    queue: Option<u64>,
    offset: Option<Span>,
    denied: Denied,
    large_log: bool,
}

impl Builder {
    /// A limit of this algorithm and rate, with defaults for all other options.
    pub const fn new(algorithm: AlgorithmName, rate: Rate) -> Self {
        Self {
            algorithm,
            rate,
            burst: None,
            queue: None,
            offset: None,
            denied: Denied::Ignored,
            large_log: false,
        }
    }

    /// Buckets: units that may be taken at once.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Leaky bucket: units that may be delayed; the rate's count by default.
    pub const fn queue(mut self, queue: u64) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Fixed window: shifts the start of windows from multiples of their length since the epoch.
    pub const fn offset(mut self, offset: Span) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Fixed window: denied requests count towards the window too.
    pub const fn count_denied(mut self) -> Self {
        self.denied = Denied::Counted;
        self
    }

    /// Sliding log: allow up to 1,000,000 entries (16 MB) per key.
    pub const fn large_log(mut self) -> Self {
        self.large_log = true;
        self
    }

    /// Checks the numbers and makes the limit.
    pub fn build(self) -> Result<Limit, InvalidLimit> {
        self.check_options()?;
        let Rate { count, per } = self.rate;
        if self.algorithm.is_bucket() {
            // Checked before the burst, whose default is the rate's count.
            Interval::of(self.rate)?;
        }
        match self.algorithm {
            AlgorithmName::TokenBucket => {
                Bucket::new(self.rate, self.burst.unwrap_or(count)).map(Limit::Bucket)
            }
            AlgorithmName::Gcra => {
                Bucket::new(self.rate, self.burst.unwrap_or(1)).map(Limit::Bucket)
            }
            AlgorithmName::LeakyBucket => {
                let (burst, queue) = (self.burst.unwrap_or(1), self.queue.unwrap_or(count));
                Bucket::shaping(self.rate, burst, queue).map(Limit::Bucket)
            }
            AlgorithmName::FixedWindow => {
                let offset = self.offset.unwrap_or_default();
                FixedWindow::new(count, per, offset, self.denied).map(Limit::FixedWindow)
            }
            AlgorithmName::SlidingWindow => {
                SlidingWindow::new(count, per).map(Limit::SlidingWindow)
            }
            AlgorithmName::SlidingLog if self.large_log => {
                SlidingLog::large(count, per).map(Limit::SlidingLog)
            }
            AlgorithmName::SlidingLog => SlidingLog::new(count, per).map(Limit::SlidingLog),
        }
    }

    fn check_options(&self) -> Result<(), InvalidLimit> {
        use AlgorithmName::{FixedWindow, LeakyBucket, SlidingLog};
        if self.burst.is_some() && !self.algorithm.is_bucket() {
            return Err(InvalidLimit::BurstOnWindow);
        }
        if self.queue.is_some() && self.algorithm != LeakyBucket {
            return Err(InvalidLimit::QueueOutsideLeakyBucket);
        }
        let window_option = self.offset.is_some() || self.denied == Denied::Counted;
        if window_option && self.algorithm != FixedWindow {
            return Err(InvalidLimit::WindowOption);
        }
        if self.large_log && self.algorithm != SlidingLog {
            return Err(InvalidLimit::LogOption);
        }
        Ok(())
    }
}

/// The state of any limit. A state of another family counts as never seen.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// Never seen.
    #[default]
    Absent,
    /// The state of a bucket.
    Bucket(BucketState),
    /// The state of a fixed window.
    FixedWindow(FixedWindowState),
    /// The state of a sliding window counter.
    SlidingWindow(SlidingWindowState),
    /// The state of a sliding log.
    SlidingLog(SlidingLogState),
    /// The state of an in-flight limit.
    InFlight(InFlightState),
    /// The state of a rate with a block.
    Blocking(BlockingState),
}

/// Runs `$run` on the algorithm and the state of its family.
macro_rules! dispatch {
    ($limit:expr, $state:expr, |$algorithm:ident, $inner:ident| $run:expr) => {
        dispatch!(@ $limit, $state, |$algorithm, $inner| $run,
            Bucket, FixedWindow, SlidingWindow, SlidingLog, InFlight, Blocking)
    };
    (@ $limit:expr, $state:expr, |$algorithm:ident, $inner:ident| $run:expr, $($family:ident),*) => {
        match $limit {
            $(Limit::$family($algorithm) => match $state {
                State::$family($inner) => $run,
                _ => {
                    let $inner = &Default::default();
                    $run
                }
            })*
        }
    };
}

impl Algorithm for Limit {
    type State = State;

    fn decide(&self, state: &mut State, now: Timestamp, op: Op) -> Decision {
        macro_rules! decide {
            ($($family:ident),*) => {
                match self {
                    $(Self::$family(algorithm) => match state {
                        State::$family(inner) => algorithm.decide(inner, now, op),
                        _ => {
                            let mut fresh = Default::default();
                            let decision = algorithm.decide(&mut fresh, now, op);
                            // A fresh state that was not written to stays absent.
                            if fresh != Default::default() {
                                *state = State::$family(fresh);
                            }
                            decision
                        }
                    })*
                }
            };
        }
        decide!(Bucket, FixedWindow, SlidingWindow, SlidingLog, InFlight, Blocking)
    }

    fn idle_at(&self, state: &State) -> Timestamp {
        dispatch!(self, state, |algorithm, inner| algorithm.idle_at(inner))
    }

    fn is_ahead(&self, state: &State, now: Timestamp) -> bool {
        dispatch!(self, state, |algorithm, inner| algorithm.is_ahead(inner, now))
    }

    fn promise(&self, within: Span) -> Option<u64> {
        match self {
            Self::Bucket(algorithm) => algorithm.promise(within),
            Self::FixedWindow(algorithm) => algorithm.promise(within),
            Self::SlidingWindow(algorithm) => algorithm.promise(within),
            Self::SlidingLog(algorithm) => algorithm.promise(within),
            Self::InFlight(algorithm) => algorithm.promise(within),
            Self::Blocking(algorithm) => algorithm.promise(within),
        }
    }

    fn explain(&self, state: &State, now: Timestamp) -> Explanation {
        dispatch!(self, state, |algorithm, inner| algorithm.explain(inner, now))
    }
}

#[cfg(test)]
#[path = "limit_tests.rs"]
mod tests;
