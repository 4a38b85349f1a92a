//! The numbers under comparison.

use std::error::Error;
use std::fmt;

use tidegate_core::{AlgorithmName, InvalidLimit, Limit, Rate, Span};

use crate::seed::Seed;

/// A rate and a burst that every algorithm is built from, and the seed of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    rate: Rate,
    burst: u64,
    seed: Seed,
}

impl Setup {
    /// The largest count: the storms make some 30 times as many requests, for each algorithm.
    pub const MAX_COUNT: u64 = 100_000;
    /// The shortest period: traffic in fractions of it must still be whole microseconds.
    pub const MIN_PERIOD: Span = Span::from_millis(1);

    /// Checks the numbers. `burst` defaults to the rate's count.
    pub fn new(rate: Rate, burst: Option<u64>, seed: Seed) -> Result<Self, InvalidSetup> {
        if rate.count == 0 {
            return Err(InvalidSetup::Rate(InvalidLimit::Count));
        }
        if rate.count > Self::MAX_COUNT {
            return Err(InvalidSetup::TooMany(rate.count));
        }
        if rate.per < Self::MIN_PERIOD {
            return Err(InvalidSetup::TooShort(rate.per));
        }
        let setup = Self { rate, burst: burst.unwrap_or(rate.count), seed };
        // A bucket accepts every sensible rate and burst; what it rejects is wrong for all algorithms.
        setup.limit(AlgorithmName::TokenBucket).map_err(|why| match why {
            InvalidLimit::Burst | InvalidLimit::RefillTime => InvalidSetup::Burst(why),
            other => InvalidSetup::Rate(other),
        })?;
        Ok(setup)
    }

    /// The rate; for windows its period is the window.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// The burst of the buckets; the queue length of a leaky bucket.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// The seed of the traffic.
    pub const fn seed(&self) -> Seed {
        self.seed
    }

    /// The limit of `algorithm` with these numbers, or why it rejects them.
    ///
    /// The leaky bucket starts requests one by one and takes the burst as its queue, as it does by
    /// default: with a burst of its own it would delay nothing until that is used up.
    pub fn limit(&self, algorithm: AlgorithmName) -> Result<Limit, InvalidLimit> {
        match algorithm {
            AlgorithmName::FixedWindow => Limit::fixed_window(self.rate),
            AlgorithmName::SlidingLog => Limit::sliding_log(self.rate),
            AlgorithmName::SlidingWindow => Limit::sliding_window(self.rate),
            AlgorithmName::TokenBucket => Limit::token_bucket(self.rate).burst(self.burst),
            AlgorithmName::Gcra => Limit::gcra(self.rate).burst(self.burst),
            AlgorithmName::LeakyBucket => Limit::leaky_bucket(self.rate).queue(self.burst),
        }
        .build()
    }
}

/// Why a comparison cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidSetup {
    /// No limit can have this rate.
    Rate(InvalidLimit),
    /// No bucket of this rate can have this burst.
    Burst(InvalidLimit),
    /// More requests per period than is sensible to simulate.
    TooMany(u64),
    /// A period too short to shape traffic in.
    TooShort(Span),
}

impl fmt::Display for InvalidSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(why) | Self::Burst(why) => why.fmt(f),
            Self::TooMany(count) => write!(
                f,
                "{count} requests per period are too many to simulate: at most {}; \
                 divide count and burst by the same number, the picture stays the same",
                Setup::MAX_COUNT
            ),
            Self::TooShort(per) => write!(
                f,
                "a period of {per} is too short to simulate: at least {}; \
                 multiply count and period by the same number, the rate stays the same",
                Setup::MIN_PERIOD
            ),
        }
    }
}

impl Error for InvalidSetup {}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(rate: &str, burst: Option<u64>) -> Result<Setup, InvalidSetup> {
        Setup::new(rate.parse().unwrap(), burst, Seed(1))
    }

    #[test]
    fn with_one_burst_gcra_is_the_token_bucket() {
        for burst in [None, Some(1), Some(50), Some(1_000)] {
            let setup = setup("100/60s", burst).unwrap();
            let [bucket, gcra] = [AlgorithmName::TokenBucket, AlgorithmName::Gcra]
                .map(|algorithm| setup.limit(algorithm).unwrap());
            assert_eq!(bucket, gcra);
        }
    }

    #[test]
    fn numbers_that_cannot_be_simulated_are_refused() {
        assert_eq!(setup("100001/s", None), Err(InvalidSetup::TooMany(100_001)));
        assert_eq!(setup("1/999us", None), Err(InvalidSetup::TooShort(Span::from_micros(999))));
        assert_eq!(setup("0/s", None), Err(InvalidSetup::Rate(InvalidLimit::Count)));
        assert_eq!(setup("0/s", Some(1)), Err(InvalidSetup::Rate(InvalidLimit::Count)));
        assert_eq!(setup("1/s", Some(0)), Err(InvalidSetup::Burst(InvalidLimit::Burst)));
        assert_eq!(setup("1/year", Some(101)), Err(InvalidSetup::Burst(InvalidLimit::RefillTime)));
        assert!(setup("100000/10year", None).is_ok());
    }

    #[test]
    fn only_the_log_refuses_a_limit_of_20_000() {
        let setup = setup("20000/60s", None).unwrap();
        for algorithm in AlgorithmName::ALL {
            let refused = setup.limit(algorithm).err();
            let expected =
                (algorithm == AlgorithmName::SlidingLog).then_some(InvalidLimit::LogLength);
            assert_eq!(refused, expected, "{algorithm}");
        }
    }
}
