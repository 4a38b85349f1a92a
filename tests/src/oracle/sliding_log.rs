//! The sliding log as a plain list of admissions with their times.

use tidegate_core::{Decision, Op, Outcome, Span};

use super::{deny, first, never_fits};
use crate::subject::Numbers;

#[derive(Clone, Debug, Default)]
pub(super) struct SlidingLog {
    /// Oldest first.
    kept: Vec<Admission>,
}

#[derive(Clone, Copy, Debug)]
struct Admission {
    at: u64,
    units: u64,
}

impl SlidingLog {
    pub(super) fn decide(&mut self, numbers: &Numbers, now: u64, op: Op) -> Decision {
        let broken = self.kept.iter().any(|admission| admission.at > now);
        let seen = self.seen(numbers, now);
        let room = numbers.count.saturating_sub(held(&seen, numbers, now));
        let mut after = seen.clone();
        let mut unbooked = 0;
        let mut outcome = Outcome::Allow;
        match op {
            Op::Read(cost) => outcome = judge(&seen, numbers, now, cost),
            Op::Take(cost) => {
                outcome = judge(&seen, numbers, now, cost);
                if outcome == Outcome::Allow {
                    after.push(Admission { at: now, units: cost });
                }
                if cost > 0 && (outcome == Outcome::Allow || broken) {
                    self.kept.clone_from(&after);
                }
            }
            Op::Return(0) | Op::Force(0) | Op::Release(_) | Op::Renew(_) | Op::Block(_) => {}
            Op::Return(cost) => {
                give_back(&mut after, cost);
                self.kept.clone_from(&after);
            }
            Op::ReturnOwed { units, until } => {
                let until = until.as_micros();
                let mut left = units;
                let is_later = |it: &Admission| until > now && it.at + numbers.per >= until;
                // Admissions of one instant count as one; only a bounded number is rewritten.
                let mut instants: Vec<u64> =
                    after.iter().filter(|it| is_later(it)).map(|it| it.at).collect();
                instants.dedup();
                if until >= numbers.per && instants.len() <= 10_000 {
                    for admission in after.iter_mut().filter(|it| is_later(it)) {
                        let gone = left.min(admission.units);
                        admission.units -= gone;
                        left -= gone;
                    }
                }
                unbooked = left;
                if left < units {
                    self.kept.clone_from(&after);
                }
            }
            Op::Force(cost) => {
                let booked = cost.min(room);
                unbooked = cost - booked;
                after.push(Admission { at: now, units: booked });
                if booked > 0 || broken {
                    self.kept.clone_from(&after);
                }
            }
            Op::Reset => {
                self.kept.clear();
                after.clear();
            }
        }
        after.retain(|admission| admission.units > 0);
        self.kept.retain(|admission| admission.units > 0);
        let newest = after.last().map_or(0, |admission| admission.at + numbers.per - now);
        Decision {
            outcome,
            limit: numbers.count,
            remaining: numbers.count.saturating_sub(held(&after, numbers, now)),
            reset_after: Span::from_micros(newest),
            unbooked,
            lease: None,
        }
    }

    /// The admissions within the window that ends at `now`; later times count as now.
    fn seen(&self, numbers: &Numbers, now: u64) -> Vec<Admission> {
        let within = self.kept.iter().filter(|admission| admission.at + numbers.per > now);
        within.map(|kept| Admission { at: kept.at.min(now), units: kept.units }).collect()
    }
}

/// Units within the half-open window `(at - W, at]`.
fn held(log: &[Admission], numbers: &Numbers, at: u64) -> u64 {
    log.iter().filter(|entry| entry.at + numbers.per > at).map(|entry| entry.units).sum()
}

fn admits(log: &[Admission], numbers: &Numbers, at: u64, cost: u64) -> bool {
    held(log, numbers, at) + cost <= numbers.count
}

fn judge(log: &[Admission], numbers: &Numbers, now: u64, cost: u64) -> Outcome {
    if never_fits(cost, numbers.count) {
        deny(None)
    } else if admits(log, numbers, now, cost) {
        Outcome::Allow
    } else {
        deny(Some(wait(log, numbers, now, cost)))
    }
}

/// Room appears only when an entry leaves, so only those instants are checked.
fn wait(log: &[Admission], numbers: &Numbers, now: u64, cost: u64) -> u64 {
    let leaves = |nth: u64| {
        let index = usize::try_from(nth - 1).expect("a log fits into memory");
        log[index].at + numbers.per
    };
    let entries = u64::try_from(log.len()).expect("a log fits into memory");
    leaves(first(entries, |nth| admits(log, numbers, leaves(nth), cost))) - now
}

/// The newest units are removed first.
fn give_back(log: &mut Vec<Admission>, mut units: u64) {
    while let Some(newest) = log.last_mut() {
        if newest.units > units {
            newest.units -= units;
            return;
        }
        units -= newest.units;
        log.pop();
    }
}
