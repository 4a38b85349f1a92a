//! Netflix's Gradient2, adapted to windows of samples.

use super::{
    Estimator, LATENCY_BITS, LimitRange, MILLI, ONE, Step, WindowStats, approach, latency, ratio,
    scale, whole,
};
use crate::time::{Span, Timestamp};

/// Compares the latency of a window with its long-term average.
///
/// The average also follows saturated windows. Under sustained overload it rises to the latency of
/// the overloaded server, and the limit drifts to its maximum. Prefer
/// [`Adaptive`](super::Adaptive).
///
/// # Reference
/// `Gradient2Limit` in Netflix's concurrency-limits, with its defaults: an average over 600 windows,
/// tolerance 1.5, a queue of 4, smoothing 0.2.
#[derive(Clone, Debug)]
pub struct Gradient2 {
    range: LimitRange,
    /// In thousandths.
    limit: u64,
    /// The long-term average, with its fraction.
    average: u64,
    windows: u64,
}

impl Gradient2 {
    const AVERAGED: u64 = 600;
    /// Number of windows at the start that are averaged with equal weights.
    const WARM_UP: u64 = 10;
    const QUEUE: u64 = 4 * MILLI;
    const SMOOTHING_PARTS: u64 = 5;

    /// An estimator at the start of `range`.
    pub fn new(range: LimitRange) -> Self {
        Self { range, limit: range.start(), average: 0, windows: 0 }
    }

    fn average_in(&mut self, loaded: u64) {
        self.windows = self.windows.saturating_add(1);
        self.average = if self.windows <= Self::WARM_UP {
            approach(self.average, loaded, self.windows)
        } else {
            // The weight of a new value is 2 / (600 + 1).
            approach(self.average, loaded, Self::AVERAGED.div_ceil(2))
        };
        if self.average > 2 * loaded {
            self.average -= self.average / 20;
        }
    }
}

impl Estimator for Gradient2 {
    fn window(&mut self, _now: Timestamp, stats: &WindowStats) -> Step {
        let loaded = latency(stats.median);
        if stats.samples > 0 {
            self.average_in(loaded);
        }
        if stats.dropped == 0 && 2 * u64::from(stats.peak) * MILLI < self.limit {
            return Step { limit: self.limit(), probe: None };
        }
        let gradient = if stats.dropped > 0 {
            ONE / 2
        } else {
            ratio(self.average + self.average / 2, loaded).clamp(ONE / 2, ONE)
        };
        let target = scale(self.limit, gradient) + Self::QUEUE;
        self.limit = self.range.clamp(approach(self.limit, target, Self::SMOOTHING_PARTS));
        Step { limit: self.limit(), probe: None }
    }

    fn limit(&self) -> u32 {
        whole(self.limit)
    }

    fn baseline(&self) -> Option<Span> {
        (self.windows > 0).then(|| Span::from_micros(self.average >> LATENCY_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A saturated window.
    fn full(median_ms: u64) -> WindowStats {
        let median = Span::from_millis(median_ms);
        WindowStats { median, samples: 60, dropped: 0, peak: 1_000, refused: 1 }
    }

    fn idle(median_ms: u64) -> WindowStats {
        WindowStats { peak: 1, refused: 0, ..full(median_ms) }
    }

    #[test]
    fn gradient2_computes_as_the_original_does() {
        let mut estimator = Gradient2::new(LimitRange { min: 4, initial: 20, max: 1_000 });
        // 20 → 0.8 · 20 + 0.2 · (20 + 4).
        assert_eq!(estimator.window(Timestamp::from_secs(0), &full(10)).limit, 20);
        assert_eq!(estimator.limit, 20_800);
        for _ in 0..9 {
            estimator.window(Timestamp::from_secs(0), &full(10));
        }
        let before = estimator.limit;
        // The average moves to 10 + 30 / 300 ms; its gradient is 1.5 · 10.1 / 40, below a half.
        estimator.window(Timestamp::from_secs(1), &full(40));
        assert_eq!(estimator.baseline(), Some(Span::from_micros(10_100)));
        assert_eq!(estimator.limit, before + 800 - before / 10);
        // Less than half of the limit is used: it does not change.
        let before = estimator.limit;
        estimator.window(Timestamp::from_secs(2), &idle(10));
        assert_eq!(estimator.limit, before);
        // The average decays while it is more than twice the latency.
        estimator.window(Timestamp::from_secs(3), &idle(1));
        assert!(estimator.baseline() < Some(Span::from_micros(9_700)));
    }
}
