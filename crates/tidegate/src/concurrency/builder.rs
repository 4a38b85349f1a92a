//! The settings of a concurrency limiter. The defaults suit most services.

use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tidegate_core::Span;
use tidegate_core::adaptive::{Adaptive, Aimd, Estimator, Fixed, Gradient2, LimitRange};
use tidegate_core::shed::{QueueTimeout, Shares, UtilisationLevels};

use super::measure::Measure;
use super::stats::ShedCounts;
use super::utilisation::Utilisation;
use super::{ConcurrencyLimiter, Shared};
use crate::clock::Clock;
use crate::sync::AtomicU32;

/// Builds a [`ConcurrencyLimiter`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ConcurrencyBuilder {
    kind: Kind,
    range: LimitRange,
    tolerance: u32,
    shares: Shares,
    queue: QueueSize,
    slow_after: Span,
    utilisation: Option<UtilisationLevels>,
    is_shadow: bool,
    clock: Clock,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Adaptive,
    Fixed(u32),
    Aimd,
    Gradient2,
}

/// How many requests may wait, and how long.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "no request waits"))]
pub(super) struct QueueSize {
    /// Per cent of the limit.
    pub(super) percent: u32,
    pub(super) timeout: Span,
}

impl ConcurrencyBuilder {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            range: LimitRange::default(),
            tolerance: Adaptive::TOLERANCE_PERCENT,
            shares: Shares::default(),
            queue: QueueSize { percent: 100, timeout: QueueTimeout::TIMEOUT },
            slow_after: Span::MAX,
            utilisation: None,
            is_shadow: false,
            clock: Clock::default(),
            seed: foldhash::fast::RandomState::default().hash_one(0),
        }
    }

    /// The lowest limit; 4 unless set. Only the short probes of the adaptive limit go below it.
    pub fn min_limit(mut self, limit: u32) -> Self {
        self.range.min = limit;
        self
    }

    /// The highest limit; 1000 unless set.
    pub fn max_limit(mut self, limit: u32) -> Self {
        self.range.max = limit;
        self
    }

    /// The limit at the start; 20 unless set.
    #[doc(hidden)]
    pub fn initial_limit(mut self, limit: u32) -> Self {
        self.range.initial = limit;
        self
    }

    /// How slow requests may get before the adaptive limit shrinks, in per cent of the latency
    /// without queueing; 150 unless set.
    #[doc(hidden)]
    pub fn tolerance(mut self, percent: u32) -> Self {
        self.tolerance = percent;
        self
    }

    /// The classes and how much of the limit each may fill; four classes with 100, 90, 80 and 70 %
    /// unless set.
    pub fn shares(mut self, shares: Shares) -> Self {
        self.shares = shares;
        self
    }

    /// How many requests may wait for a permit, in per cent of the limit, and the longest wait; 100
    /// % and 100 ms unless set. While the queue has not been empty for 100 ms, the longest wait is
    /// a tenth of that. With 0 %, no request waits.
    pub fn queue(mut self, percent: u32, timeout: Duration) -> Self {
        self.queue = QueueSize { percent, timeout: timeout.into() };
        self
    }

    /// Counts a request whose response head took longer than `latency` as
    /// [dropped](super::Outcome::Dropped), whatever its outcome. Off unless set.
    pub fn slow_after(mut self, latency: Duration) -> Self {
        self.slow_after = latency.into();
        self
    }

    /// Also sheds the least important classes, one after the other, while the workers are busy, and restores
    /// them slowly. Utilisation is the larger of requests in progress in relation to the limit, and the
    /// lateness of a timer in relation to 20 ms. Off unless set.
    #[doc(hidden)]
    pub fn utilisation(mut self, levels: UtilisationLevels) -> Self {
        self.utilisation = Some(levels);
        self
    }

    /// Admits every request and counts the requests that would have been shed. The limit moves, but
    /// cannot measure its baseline under sustained overload, because the load does not fall.
    pub fn shadow(mut self) -> Self {
        self.is_shadow = true;
        self
    }

    /// The clock, for tests.
    #[doc(hidden)]
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// The seed that makes several nodes probe at different times; random unless set.
    #[doc(hidden)]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Builds the limiter.
    pub fn build(self) -> ConcurrencyLimiter {
        self.counting(Arc::new(AtomicU32::new(0)))
    }

    /// Builds a limiter that replaces `before`. Requests in progress under `before` count under the
    /// new limiter, and the permits that they release go to its waiters.
    #[doc(hidden)]
    pub fn build_after(self, before: &ConcurrencyLimiter) -> ConcurrencyLimiter {
        let limiter = self.counting(Arc::clone(&before.shared.in_flight));
        // A limiter is replaced at most once.
        let _ = before.shared.successor.set(Arc::downgrade(&limiter.shared));
        limiter
    }

    fn counting(self, in_flight: Arc<AtomicU32>) -> ConcurrencyLimiter {
        let estimator = self.estimator();
        let limit = estimator.limit();
        let classes = self.shares.classes();
        let shared = Shared {
            in_flight,
            successor: OnceLock::new(),
            thresholds: std::array::from_fn(|_| AtomicU32::new(0)),
            shares: self.shares,
            is_shadow: self.is_shadow,
            slow_after: self.slow_after,
            sheds: ShedCounts::new(),
            utilisation: self.utilisation.map(|levels| Utilisation::new(levels, classes)),
            measure: Measure::new(estimator, self.clock.now()),
            clock: self.clock,
            #[cfg(feature = "tokio")]
            queue: super::queue::Queue::new(self.queue),
        };
        shared.set_limit(limit);
        ConcurrencyLimiter { shared: Arc::new(shared) }
    }

    fn estimator(&self) -> Box<dyn Estimator> {
        match self.kind {
            Kind::Adaptive => {
                Box::new(Adaptive::new(self.range, self.seed).tolerance(self.tolerance))
            }
            Kind::Fixed(limit) => Box::new(Fixed::new(limit)),
            Kind::Aimd => Box::new(Aimd::new(self.range)),
            Kind::Gradient2 => Box::new(Gradient2::new(self.range)),
        }
    }
}
