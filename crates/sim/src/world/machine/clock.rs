//! A clock that drifts and can be set.

use tidegate_core::Timestamp;

/// A clock that runs a little fast or slow, and can be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriftingClock {
    /// Drift in parts per million; negative if the clock runs slow.
    pub(crate) drift: i64,
    offset: i64,
}

impl DriftingClock {
    /// The start of a window of any usual length, late enough that no step goes back before the
    /// epoch.
    const START: i64 = 1_577_836_800_000_000;

    pub(crate) const fn new(drift: i64) -> Self {
        Self { drift, offset: 0 }
    }

    /// The clock's time `now` microseconds after the world began.
    pub(crate) const fn at(&self, now: u64) -> Timestamp {
        let now = now.cast_signed();
        let micros = Self::START + now + now * self.drift / 1_000_000 + self.offset;
        Timestamp::from_micros(micros.cast_unsigned())
    }

    /// Sets the clock back or forward.
    pub(crate) const fn step(&mut self, micros: u64, is_back: bool) {
        let micros = micros.cast_signed();
        self.offset += if is_back { -micros } else { micros };
    }
}
