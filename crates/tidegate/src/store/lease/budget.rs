//! What one node holds of one key's limit, ahead of its requests. No clock, no I/O.

use tidegate_core::{Decision, Limit, Outcome, Span, Timestamp};

use super::{DRIFT_PARTS, LEASE, PIECES, QUANTUM, TURN};

/// A key that was asked for at most so many units in so many turns is not in demand.
const IDLE_TURNS: u64 = 4;

/// Units that are here to be spent, and when to ask for more. In this order, so that what every request
/// needs lies together.
#[derive(Debug)]
#[repr(C)]
pub(super) struct LocalBudget {
    limit: Limit,
    /// The most units that are asked for at once.
    most: u64,
    units: u64,
    /// From then on they are void.
    ends: Timestamp,
    demand: Demand,
    /// What the store had left besides when it granted last, and when it would be as never used.
    rest: u64,
    idle_at: Timestamp,
    pub(super) tally: Tally,
    /// The number of the last grant, so that what was spent of one is not given back to another; 0 if what
    /// it held is void.
    grant: u64,
    /// Somebody asks for more at the moment.
    is_filling: bool,
    /// The store had less than was asked for: until then it is not asked again.
    dry_until: Timestamp,
    /// What it had instead; none if it has had all since.
    scarce: Option<u64>,
    /// When it would have had what it denied last.
    retry_at: Timestamp,
}

/// What became of units, in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Tally {
    pub(super) spent: u64,
    /// Requests answered from here, be it that they were denied.
    pub(super) answered: u64,
    pub(super) granted: u64,
    pub(super) unspent: u64,
    pub(super) returned: u64,
    pub(super) expired: u64,
}

impl Tally {
    pub(super) const fn add(&mut self, other: &Self) {
        self.granted += other.granted;
        self.spent += other.spent;
        self.unspent += other.unspent;
        self.returned += other.returned;
        self.expired += other.expired;
        self.answered += other.answered;
    }
}

/// What is to be done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// This is the answer. Units of this grant were spent on it.
    Answer(Decision, u64),
    /// The store is to be asked for just this request: the key is not in demand.
    Ask,
    /// The store is to be asked for more.
    Fill(Order),
    /// Somebody does so already.
    Wait,
}

/// What the store is asked for: so many times so many units, as many of them as it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) units: u64,
    pub(super) times: u64,
    /// What the request lacks that this is for.
    pub(super) least: u64,
}

impl Order {
    const fn new(total: u64, least: u64) -> Self {
        Self::of(max(total.div_ceil(PIECES), least), total, least)
    }

    /// In pieces of so many units.
    const fn of(units: u64, total: u64, least: u64) -> Self {
        let times = max(total / units, 1);
        Self { units, times: if times > PIECES { PIECES } else { times }, least }
    }

    /// In smaller pieces, if the store has enough left for the request after all.
    pub(super) fn smaller(self, left: u64) -> Option<Self> {
        let fits = self.units > self.least && left >= self.least;
        fits.then(|| Self::new(left.min(self.units), self.least))
    }
}

/// What came of asking the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    /// No other has it.
    pub(super) number: u64,
    /// Before it was asked.
    pub(super) sent: Timestamp,
    pub(super) units: u64,
    /// What it said last, and of what it granted that which ends first.
    pub(super) last: Decision,
    pub(super) first: Decision,
    /// Whether that was all it was asked for.
    pub(super) is_all: bool,
}

const fn max(a: u64, b: u64) -> u64 {
    if a > b { a } else { b }
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
            tally: Tally::default(),
        }
    }

    /// Whether these are the numbers that it was filled by.
    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        self.limit == *limit
    }

    /// Whether nobody is about to fill it, so that it may be another key's.
    pub(super) const fn is_free(&self) -> bool {
        !self.is_filling
    }

    /// Whether nothing is here, nobody is about to change that, and hardly anybody has asked for long.
    pub(super) fn is_idle(&mut self, now: Timestamp) -> bool {
        now.since(self.demand.since).as_micros() >= IDLE_TURNS * TURN.as_micros()
            && self.demand.asked <= IDLE_TURNS
            && !self.is_filling
            && now >= self.dry_until
            && self.units(now) == 0
    }

    /// Since when demand has been watched: an old budget is nobody's concern.
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

    /// What it holds is worth nothing any more.
    pub(super) const fn void(&mut self) {
        self.tally.expired += self.units;
        (self.units, self.grant) = (0, 0);
    }

    /// Takes out everything, to be given back.
    pub(super) fn empty(&mut self, now: Timestamp) -> u64 {
        let units = self.units(now);
        self.tally.returned += units;
        self.units = 0;
        units
    }

    /// Answers a request that has not waited, if nobody need be asked for that.
    #[inline]
    pub(super) fn answer(&mut self, now: Timestamp, cost: u64) -> Option<Decision> {
        let is_here = self.units(now) >= cost;
        if cost > self.most || !(is_here || now < self.dry_until) {
            return None;
        }
        self.demand.note(now, cost);
        Some(if is_here { self.spend(now, cost) } else { self.denial(now) })
    }

    /// A request asks for units. Whoever has waited once waits for nobody else.
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
        let total = max(total, least);
        // What it had is soon out of date.
        let scarce = self.scarce.filter(|_| now < self.dry_until + TURN);
        Step::Fill(match scarce {
            None => Order::new(total, least),
            // In pieces that are small enough for about as much as there was the last time.
            Some(had) => Order::of(max(had / (PIECES / 2), least), total, least),
        })
    }

    #[inline]
    fn spend(&mut self, now: Timestamp, cost: u64) -> Decision {
        self.units -= cost;
        self.tally.spent += cost;
        self.tally.answered += 1;
        self.said(now, Outcome::Allow)
    }

    fn denial(&mut self, now: Timestamp) -> Decision {
        self.tally.answered += 1;
        let wait = self.dry_until.max(self.retry_at).since(now);
        let retry_after = Some(wait.max(Span::from_micros(1)));
        self.rest = 0;
        self.said(now, Outcome::Deny { retry_after })
    }

    /// How it stands, as far as is known here: what others took since the last grant is not.
    fn said(&self, now: Timestamp, outcome: Outcome) -> Decision {
        let limit = capacity(&self.limit);
        let reset_after = match outcome {
            Outcome::Deny { retry_after: Some(wait) } => self.idle_at.since(now).max(wait),
            _ => self.idle_at.since(now),
        };
        let remaining = (self.units + self.rest).min(limit);
        Decision { outcome, limit, remaining, reset_after, unbooked: 0, lease: None }
    }

    /// What a request would be told that takes nothing, if that is known here.
    pub(super) fn look(&mut self, now: Timestamp, cost: u64) -> Option<Decision> {
        (self.units(now) >= cost).then(|| self.said(now, Outcome::Allow))
    }

    /// The store has granted something, or nothing.
    pub(super) fn fill(&mut self, now: Timestamp, grant: &Grant) {
        let Grant { number, sent, units, last, first, is_all } = grant;
        if *units > 0 {
            let ends = *sent + self.lasts(first);
            // What is left of an earlier grant ends with it or earlier, and so does all of it.
            let ends = if self.units(now) > 0 { ends.min(self.ends) } else { ends };
            (self.units, self.ends) = (self.units + units, ends);
            self.tally.granted += units;
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

    /// Nobody asks for more any longer.
    pub(super) const fn filled(&mut self) {
        self.is_filling = false;
    }

    /// Spends on a request what was asked for on its behalf; a denial if the store had not enough. `None` if
    /// it had, and what it granted has ended on its way or others have spent what was here before.
    pub(super) fn settle(&mut self, now: Timestamp, cost: u64) -> Option<(Decision, u64)> {
        let decision = match self.units(now) >= cost {
            true => self.spend(now, cost),
            false if now < self.dry_until => self.denial(now),
            false => return None,
        };
        Some((decision, self.grant))
    }

    /// A request was not let in after all, and gives back what was spent on it, unless that has ended.
    pub(super) fn unspend(&mut self, now: Timestamp, cost: u64, grant: u64) {
        if grant == self.grant && now < self.ends {
            self.units += cost;
            self.tally.unspent += cost;
        }
    }

    /// For how long from when it was asked for a grant may be spent, by a clock that differs from the
    /// store's by [`DRIFT_PARTS`] at most.
    fn lasts(&self, granted: &Decision) -> Span {
        let span = match &self.limit {
            // Its window is the first of the two that a unit counts in.
            Limit::SlidingWindow(window) => {
                granted.reset_after.as_micros().saturating_sub(window.length().as_micros())
            }
            Limit::FixedWindow(_) => granted.reset_after.as_micros(),
            _ => LEASE.as_micros(),
        };
        Span::from_micros(span - span.div_ceil(DRIFT_PARTS))
    }
}

/// The most that a node asks for at once: what the rate gives in a turn; of a window, a small part.
fn most(limit: &Limit) -> u64 {
    match limit {
        Limit::Bucket(bucket) => {
            let each = bucket.time_of(1).map_or(u64::MAX, |moment| moment.ticks).max(1);
            (TURN.as_micros() / each).min(bucket.capacity() / 2).max(1)
        }
        other => (capacity(other) / 16).max(1),
    }
}

/// The most that a key can take at once.
pub(super) const fn capacity(limit: &Limit) -> u64 {
    match limit {
        Limit::Bucket(bucket) => bucket.capacity(),
        Limit::FixedWindow(window) => window.limit(),
        Limit::SlidingWindow(window) => window.limit(),
        _ => 0,
    }
}

/// How much is asked for in a turn, from what was asked for in the last one.
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
