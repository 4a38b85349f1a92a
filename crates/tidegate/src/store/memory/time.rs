//! The two clocks of windows: monotonic time, and wall time for calendar periods.

use tidegate_core::Timestamp;

use super::MemoryStore;
use crate::store::Charge;

impl MemoryStore {
    /// The time a charge is decided at: wall time for calendar periods, which a corrected clock
    /// moves, and the caller's time for all others.
    #[inline]
    pub(super) fn time_of(&self, now: Timestamp, charge: &Charge<'_>) -> Timestamp {
        if charge.options.is_calendar { self.wall(now) } else { now }
    }

    pub(super) fn wall(&self, now: Timestamp) -> Timestamp {
        self.clock.as_ref().map_or(now, |clock| clock.wall(now))
    }

    /// The time until which windows count as past. If windows of both clocks are stored, this is
    /// the earlier clock, so that no calendar period is dropped before it ends.
    pub(super) fn past(&self, now: Timestamp) -> Timestamp {
        now.min(self.wall(now))
    }
}
