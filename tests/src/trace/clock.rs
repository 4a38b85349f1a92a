//! The instants a trace visits.

use fastrand::Rng;
use tidegate_core::Timestamp;

use super::numbers::{YEAR, grain, horizon, spread};
use crate::subject::Numbers;

/// How the clock moves from one operation to the next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stride {
    Stay,
    TickOn,
    TickBack,
    /// To an instant in an earlier answer (retry, start, reset), or a tick before or after it.
    Promised,
    /// To the next window's start, or a tick before or after it.
    Boundary,
    /// By about the time of one unit.
    Grain,
    /// By about the time of all units.
    Horizon,
    /// Back, by up to two of those times.
    Back,
    LeapOn,
    LeapBack,
}

/// A clock that moves in both directions, and the instants worth visiting.
#[derive(Debug)]
pub(super) struct Clock {
    now: u64,
    promised: Vec<u64>,
}

impl Clock {
    /// Today, the epoch, or the end of time.
    pub(super) fn new(rng: &mut Rng, numbers: &Numbers) -> Self {
        let today = 56 * YEAR + rng.u64(0..YEAR);
        let now = match rng.u32(0..8) {
            0 => 0,
            1 => rng.u64(0..=numbers.per),
            2 => Timestamp::MAX.as_micros() - spread(rng, 50),
            3 => today / numbers.per * numbers.per,
            _ => today,
        };
        Self { now, promised: Vec::new() }
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Remembers the instant this long after now.
    pub(super) fn promise(&mut self, wait: u64) {
        if self.promised.len() == 8 {
            self.promised.remove(0);
        }
        self.promised.push(self.now + wait);
    }

    pub(super) fn advance(&mut self, rng: &mut Rng, numbers: &Numbers, stride: Stride) {
        let now = self.now;
        let next = match stride {
            Stride::Stay => now,
            Stride::TickOn => now + 1,
            Stride::TickBack => now.saturating_sub(1),
            Stride::Promised => match self.promised.len() {
                0 => now + 1,
                known => {
                    // Mostly the last instant: earlier ones have passed, or their units were spent
                    // since.
                    let back = if rng.u32(0..4) > 0 { 0 } else { rng.usize(0..known) };
                    beside(rng, self.promised[known - 1 - back])
                }
            },
            Stride::Boundary => {
                let next_start = (now / numbers.per + 1) * numbers.per + numbers.offset;
                beside(rng, next_start)
            }
            Stride::Grain => now + rng.u64(0..=grain(numbers).saturating_mul(2)),
            Stride::Horizon => now + rng.u64(0..=horizon(numbers).saturating_mul(2)),
            Stride::Back => now.saturating_sub(rng.u64(0..=horizon(numbers).saturating_mul(2))),
            Stride::LeapOn => now + spread(rng, 52),
            Stride::LeapBack => now.saturating_sub(spread(rng, 52)),
        };
        self.now = next.min(Timestamp::MAX.as_micros());
    }
}

/// The instant, or a tick before or after it.
fn beside(rng: &mut Rng, instant: u64) -> u64 {
    match rng.u32(0..8) {
        0..4 => instant,
        4..7 => instant.saturating_sub(1),
        _ => instant + 1,
    }
}
