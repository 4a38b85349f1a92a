//! The bucket: one engine for token bucket, GCRA and leaky bucket.
//!
//! # Idea
//! The state is one instant, the *theoretical arrival time* (TAT): when the bucket will be full
//! again. Taking a unit moves the TAT one interval `T` later; the TAT may be at most `D = capacity
//! × T` ahead of now. No timer refills or drains the bucket: the passing of time is the refill.
//!
//! ```text
//!   now              TAT                   now + D
//!    ├── debt ───────┤── tokens left × T ──┤        take c: TAT += c × T, if it stays within D
//! ```
//!
//! A leaky bucket is the same test with `D = (queue + burst) × T`; the decision for an admitted
//! request includes the delay that spaces starts evenly. There is no queue to drain.
//!
//! # Promise
//! Any closed interval of length w admits at most `capacity + floor(w / T)`. A rolling period can
//! therefore hold up to the capacity plus one period's units; a strict "never more than X in any W"
//! needs `capacity + W / T <= X`, or a sliding log.
//!
//! # State
//! One instant: 8 bytes if the interval is a whole number of microseconds, otherwise 16.
//!
//! # When to use, when not
//! Token bucket: bursts are wanted (public APIs). GCRA (burst 1): strict spacing. Leaky bucket: the
//! backend needs a smooth stream and callers can wait. Do not use a bucket for "exactly N per
//! calendar day" (fixed window) or for an exact rolling count (sliding log). A whole burst may
//! arrive within a microsecond: size it to what the backend can take.
//!
//! # Reference
//! GCRA: ITU-T I.371, "virtual scheduling"; ta < TAT - tau rejects, with tau = D - T for cost 1.

use crate::algorithm::Algorithm;
use crate::decision::{Decision, MAX_COST, Op, Outcome};
use crate::explain::{Detail, Explanation};
use crate::invalid::InvalidLimit;
use crate::rate::{Interval, Rate, narrow};
use crate::time::{Span, Timestamp};

/// The configured numbers of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    interval: Interval,
    capacity: u64,
    /// `D`: the time an empty bucket needs to fill.
    fill: Moment,
    /// Units that start without delay; equal to `capacity` unless shaping.
    burst: u64,
}

/// The instant from which the bucket is full again. The default is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BucketState {
    /// The theoretical arrival time.
    pub full_at: Moment,
}

/// `ticks + part / den` microseconds, where `den` belongs to the bucket's interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    /// Whole microseconds.
    pub ticks: u64,
    /// The fraction's numerator.
    pub part: u64,
}

impl Bucket {
    const MAX_FILL: u64 = 100 * 365 * 86_400 * 1_000_000;

    /// A bucket that refills at `rate` and holds `burst` units.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, InvalidLimit> {
        if burst == 0 || burst > MAX_COST {
            return Err(InvalidLimit::Burst);
        }
        Self::with_capacity(rate, burst, burst)
    }

    /// A bucket that spaces admitted requests: `burst` start at once, `queue` more are delayed.
    pub fn shaping(rate: Rate, burst: u64, queue: u64) -> Result<Self, InvalidLimit> {
        if burst == 0 || burst > MAX_COST {
            return Err(InvalidLimit::Burst);
        }
        if queue > MAX_COST {
            return Err(InvalidLimit::Queue);
        }
        Self::with_capacity(rate, burst + queue, burst)
    }

    fn with_capacity(rate: Rate, capacity: u64, burst: u64) -> Result<Self, InvalidLimit> {
        let interval = Interval::of(rate)?;
        let fill = u128::from(capacity) * u128::from(interval.num);
        if fill > u128::from(Self::MAX_FILL) * u128::from(interval.den) {
            return Err(InvalidLimit::RefillTime);
        }
        let (ticks, part) = interval.times(capacity);
        Ok(Self { interval, capacity, fill: Moment { ticks, part }, burst })
    }

    /// The denominator of [`Moment::part`]; 1 if the interval is whole microseconds.
    #[inline]
    pub const fn denominator(&self) -> u64 {
        self.interval.den
    }

    /// The rate at which it refills, reduced.
    pub fn rate(&self) -> Rate {
        Rate::new(self.interval.den, Span::from_micros(self.interval.num))
    }

    /// The most units that one operation can take.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Units that start without delay: the whole capacity, unless the bucket is shaping.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// The exact time that `units` take to refill; `None` for more than the bucket holds.
    pub fn time_of(&self, units: u64) -> Option<Moment> {
        let (ticks, part) = (units <= self.capacity).then(|| self.interval.times(units))?;
        Some(Moment { ticks, part })
    }

    /// `D`: the exact time an empty bucket needs to fill.
    pub const fn fill_time(&self) -> Moment {
        self.fill
    }

    /// The instant at which the bucket is full again, as seen from `now`: never in the past, and
    /// never later than for an empty bucket.
    #[inline(always)]
    fn full_at(&self, state: &BucketState, now: Timestamp) -> Seen {
        let floor = Moment { ticks: now.as_micros(), part: 0 };
        let ceiling = Moment { ticks: floor.ticks + self.fill.ticks, part: self.fill.part };
        let mut full_at = state.full_at;
        if full_at.part >= self.interval.den {
            // The state was written under other numbers: round up, which adds less than one tick.
            full_at = Moment { ticks: full_at.ticks + 1, part: 0 };
        }
        let repaired = full_at > ceiling;
        Seen { floor, ceiling, full_at: full_at.max(floor).min(ceiling), repaired }
    }

    #[inline(always)]
    fn later(&self, from: Moment, units: u64) -> Moment {
        let (ticks, part) = match units {
            1 => (self.interval.ticks, self.interval.part),
            _ => self.interval.times(units),
        };
        let (mut ticks, mut part) = (from.ticks + ticks, from.part + part);
        if part >= self.interval.den {
            part -= self.interval.den;
            ticks += 1;
        }
        Moment { ticks, part }
    }

    /// `to - from`, which must not be negative.
    #[inline(always)]
    fn gap(&self, from: Moment, to: Moment) -> Moment {
        debug_assert!(from <= to, "a gap is measured forwards");
        if to.part >= from.part {
            Moment { ticks: to.ticks - from.ticks, part: to.part - from.part }
        } else {
            Moment {
                ticks: to.ticks - from.ticks - 1,
                part: to.part + self.interval.den - from.part,
            }
        }
    }

    #[inline(always)]
    fn remaining(&self, seen: &Seen) -> u64 {
        let gap = self.gap(seen.full_at, seen.ceiling);
        self.interval.fit(gap.ticks, gap.part)
    }

    #[inline(always)]
    fn decision(&self, seen: &Seen, outcome: Outcome) -> Decision {
        Decision {
            outcome,
            limit: self.capacity,
            remaining: self.remaining(seen),
            reset_after: ceil(self.gap(seen.floor, seen.full_at)),
            unbooked: 0,
            lease: None,
        }
    }

    /// The outcome of an admission: immediate, or for a shaping bucket delayed to keep starts
    /// apart.
    #[inline(always)]
    fn admission(&self, seen: &Seen, cost: u64) -> Outcome {
        if self.burst == self.capacity {
            return Outcome::Allow;
        }
        let head_start = self.burst - cost.min(self.burst);
        let free_until = self.later(seen.floor, head_start);
        if seen.full_at <= free_until {
            return Outcome::Allow;
        }
        Outcome::Delay(ceil(self.gap(free_until, seen.full_at)))
    }

    /// Evaluates taking `cost` from `seen`; on success `seen` holds the state afterwards.
    #[inline(always)]
    fn take(&self, seen: &mut Seen, cost: u64) -> Outcome {
        if cost > self.capacity || cost > MAX_COST {
            return Outcome::Deny { retry_after: None };
        }
        let taken = self.later(seen.full_at, cost);
        if taken > seen.ceiling {
            let retry_after = ceil(self.gap(seen.ceiling, taken));
            return Outcome::Deny { retry_after: Some(retry_after) };
        }
        let outcome = self.admission(seen, cost);
        seen.full_at = taken;
        outcome
    }

    #[inline(always)]
    fn decide_exactly(&self, state: &mut BucketState, now: Timestamp, op: Op) -> Decision {
        let mut seen = self.full_at(state, now);
        let mut unbooked = 0;
        let (outcome, write) = match op {
            Op::Read(cost) | Op::Take(cost @ 0) => {
                let mut after = Seen { ..seen };
                (self.take(&mut after, cost), false)
            }
            Op::Take(cost) => {
                let outcome = self.take(&mut seen, cost);
                (outcome, seen.repaired || !matches!(outcome, Outcome::Deny { .. }))
            }
            Op::Return(units) => {
                // A key without debt stays unwritten, so a return never creates a key.
                let owing = seen.full_at > seen.floor;
                self.give_back(&mut seen, units);
                (Outcome::Allow, owing && units > 0)
            }
            Op::ReturnOwed { units, until } => {
                let returned = self.give_back_owed(&mut seen, units, until);
                unbooked = units - returned.units;
                (Outcome::Allow, returned.time > Moment::default())
            }
            Op::Force(units) => {
                let free = self.remaining(&seen);
                unbooked = units.saturating_sub(free);
                let booked = units - unbooked;
                seen.full_at =
                    if unbooked > 0 { seen.ceiling } else { self.later(seen.full_at, booked) };
                (Outcome::Allow, units > 0)
            }
            Op::Reset => {
                seen.full_at = seen.floor;
                *state = BucketState::default();
                (Outcome::Allow, false)
            }
            Op::Release(_) | Op::Renew(_) | Op::Block(_) => (Outcome::Allow, false),
        };
        if write {
            state.full_at = seen.full_at;
        }
        Decision { unbooked, ..self.decision(&seen, outcome) }
    }

    /// Returns units of a take after which the bucket was to be full at `until`. Without the take,
    /// the bucket would have been full earlier by the refill time of the units. Only the part of
    /// that time before `until` is still missing.
    fn give_back_owed(&self, seen: &mut Seen, units: u64, until: Timestamp) -> Returned {
        let debt = self.gap(seen.floor, seen.full_at);
        let owed = Moment { ticks: until.as_micros().saturating_sub(seen.floor.ticks), part: 0 };
        let (ticks, part) = self.interval.times(units.min(self.capacity));
        let time = debt.min(owed).min(Moment { ticks, part });
        seen.full_at = self.gap(time, seen.full_at);
        let whole = self.interval.fit(time.ticks, time.part);
        let (ticks, part) = self.interval.times(whole);
        let is_part = Moment { ticks, part } < time;
        Returned { time, units: (whole + u64::from(is_part)).min(units) }
    }

    fn give_back(&self, seen: &mut Seen, units: u64) {
        let debt = self.gap(seen.floor, seen.full_at);
        let owed = self.interval.fit(debt.ticks, debt.part);
        seen.full_at = if units > owed {
            seen.floor
        } else {
            let (ticks, part) = self.interval.times(units);
            self.gap(Moment { ticks, part }, seen.full_at)
        };
    }
}

/// The debt that a return has removed.
struct Returned {
    /// The removed debt as refill time.
    time: Moment,
    /// The removed debt in units, rounded up, so that no returned unit counts as taken.
    units: u64,
}

/// The state as seen from one instant.
struct Seen {
    floor: Moment,
    ceiling: Moment,
    full_at: Moment,
    repaired: bool,
}

/// Rounds a gap up to whole microseconds, because waits round up.
#[inline(always)]
fn ceil(gap: Moment) -> Span {
    Span::within_bounds(gap.ticks + u64::from(gap.part > 0))
}

impl Algorithm for Bucket {
    type State = BucketState;

    fn decide(&self, state: &mut BucketState, now: Timestamp, op: Op) -> Decision {
        self.decide_exactly(state, now, op)
    }

    #[inline]
    fn idle_at(&self, state: &BucketState) -> Timestamp {
        let Moment { ticks, part } = state.full_at;
        Timestamp::from_micros(ticks + u64::from(part > 0))
    }

    #[inline(always)]
    fn is_ahead(&self, state: &BucketState, now: Timestamp) -> bool {
        self.full_at(state, now).repaired
    }

    fn promise(&self, within: Span) -> Option<u64> {
        let parts = u128::from(within.as_micros()) * u128::from(self.interval.den);
        let refilled = narrow((parts / u128::from(self.interval.num)).min(u128::from(u64::MAX)));
        Some(self.capacity.saturating_add(refilled))
    }

    fn explain(&self, state: &BucketState, now: Timestamp) -> Explanation {
        let seen = self.full_at(state, now);
        let remaining = self.remaining(&seen);
        let next = match self.take(&mut Seen { ..seen }, 1) {
            Outcome::Deny { retry_after } => retry_after.unwrap_or(Span::MAX),
            Outcome::Allow | Outcome::Delay(_) => Span::ZERO,
        };
        let debt = self.gap(seen.floor, seen.full_at);
        let detail = Detail::Bucket {
            full_at: seen.full_at,
            denominator: self.interval.den,
            debt_units: self.capacity - remaining,
            debt_time: ceil(debt),
        };
        Explanation {
            limit: self.capacity,
            remaining,
            next_allowed_at: Some(now + next),
            idle_at: self.idle_at(state),
            detail,
        }
    }
}

/// A bucket whose interval is whole microseconds and that never delays; most buckets are.
///
/// `Whole` decides by the same function as [`Bucket`]. Because `part` and `delay` are constant
/// here, the compiler removes the arithmetic on fractions and delays, which is half of the code. A
/// store checks once whether a bucket is whole and saves that work on every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Whole(Bucket);

impl Whole {
    /// Wraps `bucket`; `None` if its interval has a fraction or it delays requests.
    pub const fn new(bucket: Bucket) -> Option<Self> {
        let whole = bucket.interval.den == 1 && bucket.burst == bucket.capacity;
        if whole { Some(Self(bucket)) } else { None }
    }

    #[inline(always)]
    fn bucket(&self) -> Bucket {
        let interval = Interval { den: 1, part: 0, ..self.0.interval };
        let fill = Moment { part: 0, ..self.0.fill };
        Bucket { interval, fill, capacity: self.0.capacity, burst: self.0.capacity }
    }
}

impl Algorithm for Whole {
    type State = BucketState;

    #[inline(always)]
    fn decide(&self, state: &mut BucketState, now: Timestamp, op: Op) -> Decision {
        self.bucket().decide_exactly(state, now, op)
    }

    fn idle_at(&self, state: &BucketState) -> Timestamp {
        self.0.idle_at(state)
    }

    #[inline(always)]
    fn is_ahead(&self, state: &BucketState, now: Timestamp) -> bool {
        self.bucket().is_ahead(state, now)
    }

    fn promise(&self, within: Span) -> Option<u64> {
        self.0.promise(within)
    }

    fn explain(&self, state: &BucketState, now: Timestamp) -> Explanation {
        self.0.explain(state, now)
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
