//! The units of one key that a node took in advance. No clock, no I/O.

use tidegate_core::{Decision, Limit, Outcome, Span, Timestamp};

use super::{DRIFT_PARTS, LEASE, LeaseStats, PIECES, QUANTUM, TURN};

/// A key is idle if its demand is at most this many units in this many turns.
const IDLE_TURNS: u64 = 4;

/// Units to spend, and when to ask for more. The fields that every request needs come first.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LocalBudget {
    limit: Limit,
    /// The most units of one grant.
    most: u64,
    units: u64,
    /// When the units expire.
    ends: Timestamp,
    demand: Demand,
    /// The store's remaining units at the last grant, and when the key would be idle.
    rest: u64,
    idle_at: Timestamp,
    pub(super) stats: LeaseStats,
    /// The number of the last grant, so that units of one are not returned to another; 0 if its units were
    /// dropped.
    grant: u64,
    /// A request is asking the store for more.
    is_filling: bool,
    /// The store had less than was asked for, and is not asked again before this time.
    dry_until: Timestamp,
    /// The units it had instead; `None` if the last grant was complete.
    scarce: Option<u64>,
    /// When the store would have the units that it denied last.
    retry_at: Timestamp,
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Return this decision; units of this grant were spent on it.
    Answer(Decision, u64),
    /// Ask the store for this request alone: the key is not in demand.
    Ask,
    /// Ask the store for a grant.
    Fill(Order),
    /// Wait for the request that is already asking for a grant.
    Wait,
}

/// A request for a grant: up to `times` pieces of `units`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) units: u64,
    pub(super) times: u64,
}

/// The store's answer to an order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// Unique on this node.
    pub(super) number: u64,
    /// The time before the store was asked.
    pub(super) sent: Timestamp,
    pub(super) units: u64,
    /// The decision on the last piece, and the one on the granted piece that expires first.
    pub(super) last: Decision,
    pub(super) first: Decision,
    /// Whether all pieces were granted.
    pub(super) is_all: bool,
}

impl Grant {
    /// Combines the decisions on the pieces of an order into a grant; `None` without decisions.
    pub(super) fn of(
        decisions: &[Decision],
        piece: u64,
        (number, sent): (u64, Timestamp),
    ) -> Option<Self> {
        let last = *decisions.last()?;
        let granted = decisions.iter().filter(|decision| decision.is_allowed());
        // Two commands may have decided the pieces, in two different windows.
        let first = granted.clone().min_by_key(|decision| decision.reset_after).copied();
        let granted = granted.count();
        let (units, is_all) = (granted as u64 * piece, granted == decisions.len());
        Some(Self { number, sent, units, last, first: first.unwrap_or(last), is_all })
    }
}

impl LocalBudget {
    pub(super) fn new(limit: &Limit, now: Timestamp) -> Self {
        let none = Timestamp::EPOCH;
        Self {
            limit: *limit,
            most: most(limit),
            units: 0,
            ends: none,
            grant: 0,
            is_filling: false,
            dry_until: none,
            scarce: None,
            retry_at: none,
            rest: 0,
            idle_at: none,
            demand: Demand { since: now, asked: 0, each_turn: 0 },
            stats: LeaseStats::default(),
        }
    }

    pub(super) const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether the budget belongs to this limit.
    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        self.limit == *limit
    }

    /// Whether no request is filling the budget, so that another key may have its place.
    pub(super) const fn is_free(&self) -> bool {
        !self.is_filling
    }

    /// Whether the budget is empty, is not being filled, and has had hardly any demand for a while.
    pub(super) fn is_idle(&mut self, now: Timestamp) -> bool {
        now.since(self.demand.since).as_micros() >= IDLE_TURNS * TURN.as_micros()
            && self.demand.asked <= IDLE_TURNS
            && !self.is_filling
            && now >= self.dry_until
            && self.units(now) == 0
    }

    /// When the current measurement of demand began; the oldest budget is replaced first.
    pub(super) const fn since(&self) -> Timestamp {
        self.demand.since
    }

    /// Units that can be spent now.
    pub(super) fn units(&mut self, now: Timestamp) -> u64 {
        if now >= self.ends {
            self.void();
        }
        self.units
    }

    /// Drops the units.
    pub(super) const fn void(&mut self) {
        self.stats.expired += self.units;
        (self.units, self.grant) = (0, 0);
    }

    /// Takes out all units, to be returned to the store.
    pub(super) fn empty(&mut self, now: Timestamp) -> u64 {
        let units = self.units(now);
        self.stats.returned += units;
        self.units = 0;
        units
    }

    /// Answers a request that has not waited, if the store need not be asked.
    #[inline]
    pub(super) fn answer(&mut self, now: Timestamp, cost: u64) -> Option<Decision> {
        let is_here = self.units(now) >= cost;
        if cost > self.most || !(is_here || now < self.dry_until) {
            return None;
        }
        self.demand.note(now, cost);
        Some(if is_here { self.spend(now, cost) } else { self.denial(now) })
    }

    /// The next step for a request. A request waits for another one at most once.
    #[inline]
    pub(super) fn take(&mut self, now: Timestamp, cost: u64, has_waited: bool) -> Step {
        if cost > self.most {
            return Step::Ask;
        }
        if !has_waited {
            self.demand.note(now, cost);
        }
        if self.units(now) >= cost {
            return Step::Answer(self.spend(now, cost), self.grant);
        }
        if now < self.dry_until {
            return Step::Answer(self.denial(now), self.grant);
        }
        if has_waited {
            return Step::Ask;
        }
        if self.is_filling {
            return Step::Wait;
        }
        let least = cost - self.units;
        let total = self.demand.each_turn.min(self.most);
        if total <= least && self.units == 0 {
            return Step::Ask;
        }
        self.is_filling = true;
        let total = total.max(least);
        // A shortage at the store is out of date after a turn.
        let scarce = self.scarce.filter(|_| now < self.dry_until + TURN);
        // After a shortage, the pieces are so small that the store can grant about as much as last
        // time.
        let units = scarce.map_or(total.div_ceil(PIECES), |had| had / (PIECES / 2)).max(least);
        Step::Fill(Order { units, times: (total / units).clamp(1, PIECES) })
    }

    #[inline]
    fn spend(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.units -= cost;
        self.stats.spent += cost;
        self.stats.answered += 1;
        self.said(now, Outcome::Allow)
    }

    fn denial(&mut self, now: Timestamp) -> Decision {
        self.stats.answered += 1;
        let wait = self.dry_until.max(self.retry_at).since(now);
        let retry_after = Some(wait.max(Span::from_micros(1)));
        self.rest = 0;
        self.said(now, Outcome::Deny { retry_after })
    }

    /// A decision from this node's knowledge. It misses units that other nodes took since the last
    /// grant.
    fn said(&self, now: Timestamp, outcome: Outcome) -> Decision {
        let limit = capacity(&self.limit);
        let reset_after = match outcome {
            Outcome::Deny { retry_after: Some(wait) } => self.idle_at.since(now).max(wait),
            _ => self.idle_at.since(now),
        };
        let remaining = (self.units + self.rest).min(limit);
        Decision { outcome, limit, remaining, reset_after, unbooked: 0, lease: None }
    }

    /// The decision of a read, if the units are held.
    pub(super) fn look(&mut self, now: Timestamp, cost: u64) -> Option<Decision> {
        (self.units(now) >= cost).then(|| self.said(now, Outcome::Allow))
    }

    /// Adds a grant, which may be empty.
    pub(super) fn fill(&mut self, now: Timestamp, grant: &Grant) {
        let Grant { number, sent, units, last, first, is_all } = grant;
        if *units > 0 {
            let ends = *sent + self.lasts(first);
            // All units end with the grant that ends first.
            let ends = if self.units(now) > 0 { ends.min(self.ends) } else { ends };
            (self.units, self.ends) = (self.units + units, ends);
            self.stats.granted += units;
            self.grant = *number;
            self.idle_at = now + last.reset_after;
            self.rest = last.remaining;
        }
        self.scarce = (!is_all).then_some(*units);
        if !is_all {
            self.dry_until = now + QUANTUM;
            self.retry_at = now + last.retry_after().unwrap_or(Span::ZERO);
        }
    }

    /// The request for a grant has ended.
    pub(super) const fn filled(&mut self) {
        self.is_filling = false;
    }

    /// Decides the request that asked for the grant: spends units, or denies if the store had too
    /// few. `None` if the store had enough, but the grant expired on its way or other requests
    /// spent the units.
    pub(super) fn settle(&mut self, now: Timestamp, cost: u64) -> Option<(Decision, u64)> {
        let decision = match self.units(now) >= cost {
            true => self.spend(now, cost),
            false if now < self.dry_until => self.denial(now),
            false => return None,
        };
        Some((decision, self.grant))
    }

    /// Returns the units of a request that is not admitted, unless the grant has expired.
    pub(super) fn unspend(&mut self, now: Timestamp, cost: u64, grant: u64) {
        if grant == self.grant && now < self.ends {
            self.units += cost;
            self.stats.unspent += cost;
        }
    }

    /// How long a grant may be spent, counted from before it was requested, by a clock that differs
    /// from the store's by at most one part in [`DRIFT_PARTS`].
    fn lasts(&self, granted: &Decision) -> Span {
        let span = match &self.limit {
            // A unit counts in two windows; the grant ends with the first.
            Limit::SlidingWindow(window) => {
                granted.reset_after.as_micros().saturating_sub(window.length().as_micros())
            }
            Limit::FixedWindow(_) => granted.reset_after.as_micros(),
            _ => LEASE.as_micros(),
        };
        Span::from_micros(span - span.div_ceil(DRIFT_PARTS))
    }
}

/// The largest grant: for a bucket, the units that refill in a turn; for a window, a sixteenth of
/// its units.
fn most(limit: &Limit) -> u64 {
    match limit {
        Limit::Bucket(bucket) => {
            let each = bucket.time_of(1).map_or(u64::MAX, |moment| moment.ticks).max(1);
            (TURN.as_micros() / each).min(bucket.capacity() / 2).max(1)
        }
        other => (capacity(other) / 16).max(1),
    }
}

/// The capacity of a limit that can be leased.
pub(super) const fn capacity(limit: &Limit) -> u64 {
    match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        _ => 0,
    }
}

/// The demand of a key per turn, measured over the last turn.
#[derive(Debug)]
struct Demand {
    since: Timestamp,
    asked: u64,
    each_turn: u64,
}

impl Demand {
    #[inline]
    fn note(&mut self, now: Timestamp, cost: u64) {
        let (elapsed, turn) = (now.since(self.since).as_micros(), TURN.as_micros());
        if elapsed >= turn {
            let asked = u128::from(self.asked) * u128::from(turn) / u128::from(elapsed);
            (self.since, self.asked, self.each_turn) = (now, 0, asked as u64);
        }
        self.asked = self.asked.saturating_add(cost);
    }
}

#[cfg(test)]
#[path = "budget_tests.rs"]
mod tests;
