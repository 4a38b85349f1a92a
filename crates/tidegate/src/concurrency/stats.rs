//! Statistics of a concurrency limiter.

use std::time::Duration;

use tidegate_core::shed::Class;

use super::Shared;
use super::shed::ShedReason;
use crate::sync::{AtomicU64, Ordering};

/// The state of a concurrency limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyStats {
    /// The limit; during a probe, the limit before it.
    pub limit: u32,
    /// Requests that hold a permit.
    pub in_flight: u32,
    /// Requests that wait for a permit.
    pub queued: usize,
    /// The latency without queueing, if it is known.
    pub baseline: Option<Duration>,
    sheds: [[u64; ShedReason::ALL.len()]; Class::MAX],
}

impl ConcurrencyStats {
    /// Requests that were shed, or would have been in shadow mode.
    pub fn shed(&self) -> u64 {
        self.sheds.iter().flatten().sum()
    }

    /// Requests of a class that were shed for a reason, or would have been in shadow mode.
    #[doc(hidden)]
    pub const fn sheds(&self, class: Class, reason: ShedReason) -> u64 {
        self.sheds[class.rank()][reason as usize]
    }
}

/// Shed requests by class and reason.
#[derive(Debug)]
pub(super) struct ShedCounts {
    counts: [[AtomicU64; ShedReason::ALL.len()]; Class::MAX],
}

impl ShedCounts {
    pub(super) fn new() -> Self {
        let reasons = |_| std::array::from_fn(|_| AtomicU64::new(0));
        Self { counts: std::array::from_fn(reasons) }
    }

    /// Adds one, and returns the previous count.
    #[inline]
    pub(super) fn add(&self, class: Class, reason: ShedReason) -> u64 {
        self.counts[class.rank()][reason as usize].fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn total(&self) -> u64 {
        self.counts.iter().flatten().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn load(&self) -> [[u64; ShedReason::ALL.len()]; Class::MAX] {
        std::array::from_fn(|class| {
            std::array::from_fn(|reason| self.counts[class][reason].load(Ordering::Relaxed))
        })
    }
}

impl Shared {
    pub(super) fn stats(&self) -> ConcurrencyStats {
        let (limit, baseline) = self.measure.estimate();
        ConcurrencyStats {
            limit,
            in_flight: self.in_flight.load(Ordering::Relaxed),
            queued: self.queued(),
            baseline: baseline.map(Duration::from),
            sheds: self.sheds.load(),
        }
    }
}
