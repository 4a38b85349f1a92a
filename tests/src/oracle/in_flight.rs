//! The in-flight limit as a list of leases.

use tidegate_core::{Decision, LeaseId, Op, Outcome, Span};

use super::{deny, first, never_fits};
use crate::subject::Numbers;

#[derive(Clone, Debug, Default)]
pub(super) struct InFlight {
    /// Oldest first.
    leases: Vec<Lease>,
    last_id: u64,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    id: u64,
    ends: u64,
    units: u64,
}

impl InFlight {
    pub(super) fn decide(&mut self, numbers: &Numbers, now: u64, op: Op) -> Decision {
        let broken = self.leases.iter().any(|lease| lease.ends > now + numbers.per);
        let seen = self.seen(numbers, now);
        let room = numbers.count.saturating_sub(held(&seen, now));
        let mut after = Self { leases: seen.clone(), last_id: self.last_id };
        let mut unbooked = 0;
        let mut outcome = Outcome::Allow;
        let mut lease = None;
        match op {
            Op::Read(cost) => outcome = judge(&seen, numbers, now, cost),
            Op::Take(cost) => {
                outcome = judge(&seen, numbers, now, cost);
                if outcome == Outcome::Allow {
                    lease = after.lend(numbers, now, cost);
                }
                if cost > 0 && (outcome == Outcome::Allow || broken) {
                    *self = after.clone();
                }
            }
            Op::Return(_) | Op::Force(0) | Op::Block(_) => {}
            Op::ReturnOwed { units, .. } => unbooked = units,
            Op::Force(cost) => {
                let booked = cost.min(room);
                unbooked = cost - booked;
                lease = after.lend(numbers, now, booked);
                if booked > 0 || broken {
                    *self = after.clone();
                }
            }
            Op::Release(id) => {
                // Removes only this lease, even if it has expired, because its holder has ended.
                self.leases.retain(|lease| lease.id != id.number());
                after.leases.retain(|lease| lease.id != id.number());
            }
            Op::Renew(id) => match after.leases.iter_mut().find(|l| l.id == id.number()) {
                Some(held) => {
                    held.ends = now + numbers.per;
                    *self = after.clone();
                    lease = Some(id);
                }
                None => outcome = deny(None),
            },
            Op::Reset => {
                self.leases.clear();
                after.leases.clear();
            }
        }
        let last = after.leases.iter().map(|lease| lease.ends - now).max();
        Decision {
            outcome,
            limit: numbers.count,
            remaining: numbers.count.saturating_sub(held(&after.leases, now)),
            reset_after: Span::from_micros(last.unwrap_or(0)),
            unbooked,
            lease,
        }
    }

    /// Unexpired leases, none of which ends later than a lease taken now.
    fn seen(&self, numbers: &Numbers, now: u64) -> Vec<Lease> {
        let alive = self.leases.iter().filter(|lease| lease.ends > now);
        alive.map(|lease| Lease { ends: lease.ends.min(now + numbers.per), ..*lease }).collect()
    }

    /// Ids only grow, also after a key was evicted.
    fn lend(&mut self, numbers: &Numbers, now: u64, units: u64) -> Option<LeaseId> {
        if units == 0 {
            return None;
        }
        let id = (self.last_id + 1).max(now);
        self.last_id = id;
        self.leases.push(Lease { id, ends: now + numbers.per, units });
        LeaseId::new(id)
    }
}

fn held(leases: &[Lease], at: u64) -> u64 {
    leases.iter().filter(|lease| lease.ends > at).map(|lease| lease.units).sum()
}

fn admits(leases: &[Lease], numbers: &Numbers, at: u64, cost: u64) -> bool {
    held(leases, at) + cost <= numbers.count
}

fn judge(leases: &[Lease], numbers: &Numbers, now: u64, cost: u64) -> Outcome {
    if never_fits(cost, numbers.count) {
        deny(None)
    } else if admits(leases, numbers, now, cost) {
        Outcome::Allow
    } else {
        deny(Some(wait(leases, numbers, now, cost)))
    }
}

/// Room appears only when a lease ends, so only those instants are checked.
fn wait(leases: &[Lease], numbers: &Numbers, now: u64, cost: u64) -> u64 {
    let mut ends: Vec<u64> = leases.iter().map(|lease| lease.ends).collect();
    ends.sort_unstable();
    let end = |nth: u64| ends[usize::try_from(nth - 1).expect("leases fit into memory")];
    let count = u64::try_from(ends.len()).expect("leases fit into memory");
    end(first(count, |nth| admits(leases, numbers, end(nth), cost))) - now
}
