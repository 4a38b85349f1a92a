//! Additive increase, multiplicative decrease, by dropped requests.

use super::{Estimator, LimitRange, MILLI, Step, WindowStats, whole};
use crate::time::Timestamp;

/// Grows by one per busy window and shrinks by a tenth per window in which a request was dropped.
///
/// It ignores latency, so it needs a backend that refuses requests or times out when overloaded.
#[derive(Clone, Debug)]
pub struct Aimd {
    range: LimitRange,
    /// In thousandths.
    limit: u64,
}

impl Aimd {
    /// An estimator at the start of `range`.
    pub fn new(range: LimitRange) -> Self {
        Self { range, limit: range.start() }
    }
}

impl Estimator for Aimd {
    fn window(&mut self, _now: Timestamp, stats: &WindowStats) -> Step {
        let limit = if stats.dropped > 0 {
            self.limit - self.limit / 10
        } else if 2 * u64::from(stats.peak) * MILLI >= self.limit {
            self.limit + MILLI
        } else {
            self.limit
        };
        self.limit = self.range.clamp(limit);
        Step { limit: self.limit(), probe: None }
    }

    fn limit(&self) -> u32 {
        whole(self.limit)
    }
}
