//! The outage drill: the store counts as unavailable for a stated time.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Span, Timestamp};

use crate::clock::Clock;

/// The longest drill.
pub const MAX_DRILL: Span = Span::from_secs(3_600);

/// The end of the drill by the node's monotonic clock, in microseconds; 0 if there is no drill.
#[derive(Debug, Default)]
pub(in crate::store) struct Drill(AtomicU64);

impl Drill {
    /// Starts a drill, or replaces the one under way.
    pub(in crate::store) fn start(&self, now: Timestamp, length: Span) {
        let end = now + length.min(MAX_DRILL);
        self.0.store(end.as_micros(), Ordering::Relaxed);
    }

    /// Ends the drill; false if there is none.
    pub(in crate::store) fn end(&self, now: Timestamp) -> bool {
        self.0.swap(0, Ordering::Relaxed) > now.as_micros()
    }

    /// How long the drill still takes; `None` without one. Reads the clock only during a drill.
    #[inline]
    pub(in crate::store) fn left(&self, clock: &Clock) -> Option<Span> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            end => self.left_until(end, clock.now()),
        }
    }

    #[cold]
    fn left_until(&self, end: u64, now: Timestamp) -> Option<Span> {
        let left = Timestamp::from_micros(end).since(now);
        if left.is_zero() {
            // Another drill may have begun meanwhile.
            let _ = self.0.compare_exchange(end, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
#[path = "drill_tests.rs"]
mod tests;
