//! The numbers of a limit, as the judge uses them.

use tidegate_core::AlgorithmName;

/// How a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At most `units`, refilled at a rate.
    Bucket,
    /// At most `units` in each period of the store's clock.
    FixedWindow,
    /// Like `FixedWindow`, but a part of the previous period counts too.
    SlidingWindow,
    /// At most `units` in any period.
    Log,
    /// At most `units` at once, each for at most a period.
    Places,
}

/// The bound that a limit promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) kind: Kind,
    /// The burst of a bucket, the limit of a window or log, the number of places.
    pub(crate) units: u64,
    /// A bucket refills `count` units in `per` microseconds. `per` is also the length of a window or log, and
    /// the time to live of a place.
    pub(crate) count: u64,
    pub(crate) per: u64,
}

impl Promise {
    pub(crate) const fn new(algorithm: AlgorithmName, count: u64, per: u64, burst: u64) -> Self {
        let (kind, units) = match algorithm {
            AlgorithmName::TokenBucket | AlgorithmName::Gcra => (Kind::Bucket, burst),
            // One request starts at once, and `burst` of them wait.
            AlgorithmName::LeakyBucket => (Kind::Bucket, burst + 1),
            AlgorithmName::FixedWindow => (Kind::FixedWindow, count),
            AlgorithmName::SlidingWindow => (Kind::SlidingWindow, count),
            AlgorithmName::SlidingLog => (Kind::Log, count),
        };
        Self { kind, units, count, per }
    }

    pub(crate) const fn places(units: u64, ttl: u64) -> Self {
        Self { kind: Kind::Places, units, count: 0, per: ttl }
    }

    /// One node's share while the store is unavailable: 1.5 x limit / nodes, and at least one unit. One unit is
    /// added, because the node measures time by a clock that drifts against the judge's.
    pub(crate) fn share(&self, nodes: u64) -> Self {
        let (times, out_of) = (3, 2 * nodes);
        let units = (self.units * times).div_ceil(out_of) + 1;
        Self { units, count: self.count * times, per: self.per * out_of, ..*self }.windows_as(self)
    }

    /// The length of a window does not change with the share of its units.
    const fn windows_as(self, other: &Self) -> Self {
        match self.kind {
            Kind::Bucket => self,
            _ => Self { per: other.per, ..self },
        }
    }

    /// Whether every state under this promise is possible under another one, so that no node with
    /// the other one repairs it. One unit is allowed for rounding.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        let time = |units: u64, it: &Self| u128::from(units) * u128::from(it.per);
        match self.kind {
            Kind::Bucket => {
                time(self.units + 1, self) * u128::from(other.count)
                    <= time(other.units, other) * u128::from(self.count)
            }
            _ => self.units <= other.units,
        }
    }
}
