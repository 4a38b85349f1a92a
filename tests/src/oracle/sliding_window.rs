//! The sliding window counter, exactly by its definition.

use tidegate_core::{Decision, Op, Outcome, Span};

use super::{deny, first, never_fits};
use crate::subject::Numbers;

#[derive(Clone, Debug, Default)]
pub(super) struct SlidingWindow {
    kept: Option<Counts>,
}

/// The newer window's number, its count, and the count of the window before it.
#[derive(Clone, Copy, Debug)]
struct Counts {
    window: u64,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    pub(super) fn decide(&mut self, numbers: &Numbers, now: u64, op: Op) -> Decision {
        let (seen, broken) = match self.kept {
            Some(kept) if kept.is_impossible(numbers, now) => (Counts::none(numbers, now), true),
            Some(kept) => (kept.seen(numbers, now), false),
            None => (Counts::none(numbers, now), false),
        };
        let room = seen.room(numbers, now);
        let mut after = seen;
        let mut unbooked = 0;
        let mut outcome = Outcome::Allow;
        match op {
            Op::Read(cost) => outcome = seen.judge(numbers, now, cost),
            Op::Take(cost) => {
                outcome = seen.judge(numbers, now, cost);
                if outcome == Outcome::Allow {
                    after.current += cost;
                }
                if cost > 0 && (outcome == Outcome::Allow || broken) {
                    self.kept = Some(after);
                }
            }
            Op::Return(0) | Op::Force(0) | Op::Release(_) | Op::Renew(_) | Op::Block(_) => {}
            Op::Return(_) if seen.current + seen.previous == 0 => {}
            Op::Return(cost) => {
                let newer = cost.min(seen.current);
                after.current -= newer;
                after.previous = seen.previous.saturating_sub(cost - newer);
                self.kept = Some(after);
            }
            Op::ReturnOwed { units, until } => {
                // The units of a take no longer count two windows later.
                let is_same = (seen.window + 2) * numbers.per == until.as_micros();
                let returned = if is_same { units.min(seen.current) } else { 0 };
                unbooked = units - returned;
                after.current -= returned;
                if returned > 0 {
                    self.kept = Some(after);
                }
            }
            Op::Force(cost) => {
                let booked = cost.min(room);
                unbooked = cost - booked;
                after.current += booked;
                if booked > 0 || broken {
                    self.kept = Some(after);
                }
            }
            Op::Reset => {
                self.kept = None;
                after = Counts::none(numbers, now);
            }
        }
        Decision {
            outcome,
            limit: numbers.count,
            remaining: after.room(numbers, now),
            reset_after: Span::from_micros(after.gone(numbers) - now),
            unbooked,
            lease: None,
        }
    }
}

impl Counts {
    fn none(numbers: &Numbers, now: u64) -> Self {
        Self { window: now / numbers.per, previous: 0, current: 0 }
    }

    /// A stored window starts within an hour, and is the current one or the next.
    fn is_impossible(self, numbers: &Numbers, now: u64) -> bool {
        let here = now / numbers.per;
        let start = u128::from(self.window) * u128::from(numbers.per);
        self.window > here + 1 || start > u128::from(now) + 3_600_000_000
    }

    /// The counts at `now`. A window that has not begun yet is kept.
    fn seen(self, numbers: &Numbers, now: u64) -> Self {
        let window = now / numbers.per;
        match window.checked_sub(self.window) {
            None | Some(0) => self,
            Some(1) => Self { window, previous: self.current, current: 0 },
            Some(_) => Self::none(numbers, now),
        }
    }

    /// `floor(prev·k/n) + cur`, with `u = ceil(W/2^20)`, `n = ceil(W/u)`, `k = n − floor(e/u)`.
    fn estimate(self, numbers: &Numbers, now: u64) -> u128 {
        let length = numbers.per;
        let elapsed = now.saturating_sub(self.window * length);
        let step = length.div_ceil(1 << 20);
        let steps = length.div_ceil(step);
        let weight = steps - elapsed / step;
        u128::from(self.previous) * u128::from(weight) / u128::from(steps)
            + u128::from(self.current)
    }

    fn admits(self, numbers: &Numbers, now: u64, cost: u64) -> bool {
        self.estimate(numbers, now) + u128::from(cost) <= u128::from(numbers.count)
    }

    fn judge(self, numbers: &Numbers, now: u64, cost: u64) -> Outcome {
        if never_fits(cost, numbers.count) {
            deny(None)
        } else if self.admits(numbers, now, cost) {
            Outcome::Allow
        } else {
            deny(Some(self.wait(numbers, now, cost)))
        }
    }

    fn room(self, numbers: &Numbers, now: u64) -> u64 {
        let free = u128::from(numbers.count).saturating_sub(self.estimate(numbers, now));
        u64::try_from(free).expect("room is at most the limit")
    }

    /// After three windows, neither count has any weight.
    fn wait(self, numbers: &Numbers, now: u64, cost: u64) -> u64 {
        first(3 * numbers.per, |ticks| {
            self.seen(numbers, now + ticks).admits(numbers, now + ticks, cost)
        })
    }

    /// When neither count has any weight.
    fn gone(self, numbers: &Numbers) -> u64 {
        let windows = if self.current > 0 { 2 } else { 1 };
        (self.window + windows) * numbers.per
    }
}
