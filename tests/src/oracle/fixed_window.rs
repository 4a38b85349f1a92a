//! The fixed window as a window number and a count.

use tidegate_core::{Decision, Op, Outcome, Span};

use super::{deny, never_fits};
use crate::subject::Numbers;

/// The largest count, above which a double would lose units.
const MOST: u64 = 1 << 52;

#[derive(Clone, Debug, Default)]
pub(super) struct FixedWindow {
    kept: Option<Kept>,
}

#[derive(Clone, Copy, Debug)]
struct Kept {
    window: i128,
    count: u64,
}

impl FixedWindow {
    pub(super) fn decide(&mut self, numbers: &Numbers, now: u64, op: Op) -> Decision {
        let (seen, broken) = self.seen(numbers, now);
        let room = numbers.count.saturating_sub(seen.count);
        let mut after = seen;
        let mut unbooked = 0;
        let mut outcome = Outcome::Allow;
        match op {
            Op::Read(cost) => outcome = seen.judge(numbers, now, cost),
            Op::Take(cost) => {
                outcome = seen.judge(numbers, now, cost);
                let counts = outcome == Outcome::Allow || numbers.count_denied;
                if counts {
                    after.count = seen.count.saturating_add(cost).min(MOST.max(seen.count));
                }
                if cost > 0 && (counts || broken) {
                    self.kept = Some(after);
                }
            }
            Op::Return(0) | Op::Force(0) | Op::Release(_) | Op::Renew(_) | Op::Block(_) => {}
            Op::Return(_) if seen.count == 0 => {}
            Op::Return(cost) => {
                after.count = seen.count.saturating_sub(cost);
                self.kept = Some(after);
            }
            Op::ReturnOwed { units, until } => {
                let is_same = end(numbers, seen.window) == i128::from(until.as_micros());
                let returned = if is_same { units.min(seen.count) } else { 0 };
                unbooked = units - returned;
                after.count -= returned;
                if returned > 0 {
                    self.kept = Some(after);
                }
            }
            Op::Force(cost) => {
                let booked = cost.min(room);
                unbooked = cost - booked;
                after.count += booked;
                if booked > 0 || broken {
                    self.kept = Some(after);
                }
            }
            Op::Reset => {
                self.kept = None;
                after = Kept { window: window_of(numbers, now), count: 0 };
            }
        }
        Decision {
            outcome,
            limit: numbers.count,
            remaining: numbers.count.saturating_sub(after.count),
            reset_after: span(end(numbers, after.window) - i128::from(now)),
            unbooked,
            lease: None,
        }
    }

    /// The counts at `now`, and whether no history could have left the kept state.
    fn seen(&self, numbers: &Numbers, now: u64) -> (Kept, bool) {
        let window = window_of(numbers, now);
        let fresh = Kept { window, count: 0 };
        match self.kept {
            Some(kept) if kept.window == window => (kept, false),
            Some(kept) if kept.window == window + 1 && is_soon(numbers, window, now) => {
                (kept, false)
            }
            Some(kept) => (fresh, kept.window > window),
            None => (fresh, false),
        }
    }
}

impl Kept {
    fn judge(self, numbers: &Numbers, now: u64, cost: u64) -> Outcome {
        if never_fits(cost, numbers.count) {
            deny(None)
        } else if self.count + cost <= numbers.count {
            Outcome::Allow
        } else {
            deny(Some(span(end(numbers, self.window) - i128::from(now)).as_micros()))
        }
    }
}

/// Whether a clock that went back by at most an hour may have left the next window.
fn is_soon(numbers: &Numbers, window: i128, now: u64) -> bool {
    end(numbers, window) - i128::from(now) <= 3_600_000_000
}

fn window_of(numbers: &Numbers, now: u64) -> i128 {
    (i128::from(now) - i128::from(numbers.offset)).div_euclid(i128::from(numbers.per))
}

fn end(numbers: &Numbers, window: i128) -> i128 {
    (window + 1) * i128::from(numbers.per) + i128::from(numbers.offset)
}

fn span(ticks: i128) -> Span {
    Span::from_micros(u64::try_from(ticks).expect("a window ends after now"))
}
