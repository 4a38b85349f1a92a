//! Token bucket, GCRA and leaky bucket as a level of tokens that refills.

use num_rational::BigRational;
use num_traits::{Signed, ToPrimitive, Zero};
use tidegate_core::{AlgorithmName, Decision, Op, Outcome, Span};

use super::{deny, never_fits};
use crate::subject::{Numbers, Subject};

/// A bucket's key: the number of tokens at the last write.
#[derive(Clone, Debug)]
pub(super) struct Bucket {
    pace: Pace,
    kept: Option<Kept>,
}

/// The rate of tokens, and their maximum.
#[derive(Clone, Debug, PartialEq)]
struct Pace {
    /// Tokens per microsecond.
    rate: BigRational,
    capacity: u64,
    /// Shaping only: the number of units that start without delay.
    burst: Option<u64>,
}

#[derive(Clone, Debug)]
struct Kept {
    level: BigRational,
    as_of: u64,
    /// The numbers at the last write.
    pace: Pace,
}

impl Bucket {
    pub(super) fn new(numbers: &Numbers) -> Self {
        Self { pace: Pace::of(numbers), kept: None }
    }

    pub(super) fn renumber(&mut self, numbers: &Numbers) {
        self.pace = Pace::of(numbers);
    }

    pub(super) fn decide(&mut self, now: u64, op: Op) -> Decision {
        let raw = self.level(now);
        // Fewer than no tokens: the clock went back, or the numbers shrank.
        let broken = raw.is_negative();
        let level = if broken { BigRational::zero() } else { raw };
        match op {
            Op::Take(cost) => {
                let (outcome, after) = self.take(&level, cost);
                if cost > 0 && (broken || !matches!(outcome, Outcome::Deny { .. })) {
                    self.keep(now, &after);
                }
                self.answer(outcome, &after, 0)
            }
            Op::Read(cost) => {
                let (outcome, _) = self.take(&level, cost);
                self.answer(outcome, &level, 0)
            }
            Op::Return(0) | Op::Force(0) | Op::Release(_) | Op::Renew(_) | Op::Block(_) => {
                self.answer(Outcome::Allow, &level, 0)
            }
            Op::Return(cost) => {
                let after = (&level + whole(cost)).min(whole(self.pace.capacity));
                if after > level {
                    self.keep(now, &after);
                }
                self.answer(Outcome::Allow, &after, 0)
            }
            Op::ReturnOwed { units, until } => {
                // Tokens refilled since then are no longer owed.
                let owed = whole(until.as_micros().saturating_sub(now)) * &self.pace.rate;
                let missing = whole(self.pace.capacity) - &level;
                let returned = whole(units).min(owed).min(missing);
                let after = &level + &returned;
                if returned.is_positive() {
                    self.keep(now, &after);
                }
                self.answer(Outcome::Allow, &after, units - ceil(&returned))
            }
            Op::Force(cost) => {
                let unbooked = cost.saturating_sub(floor(&level));
                let after = (&level - whole(cost)).max(BigRational::zero());
                self.keep(now, &after);
                self.answer(Outcome::Allow, &after, unbooked)
            }
            Op::Reset => {
                self.kept = None;
                self.answer(Outcome::Allow, &whole(self.pace.capacity), 0)
            }
        }
    }

    /// Tokens at `now`, at most the capacity; negative if no history leads to this state.
    fn level(&self, now: u64) -> BigRational {
        let full = whole(self.pace.capacity);
        let Some(kept) = &self.kept else { return full };
        let passed = whole(now) - whole(kept.as_of);
        let then = if kept.pace == self.pace { kept.level.clone() } else { self.convert(kept) };
        (then + passed * &self.pace.rate).min(full)
    }

    /// Converts a state kept under other numbers: the debt stays the same time, so the instant at
    /// which the bucket is full stays the same. The fraction of a tick counts parts of the old
    /// denominator, and is read as parts of the new one.
    fn convert(&self, kept: &Kept) -> BigRational {
        let debt = (whole(kept.pace.capacity) - &kept.level) / &kept.pace.rate;
        let full_at = whole(kept.as_of) + debt;
        let parts = full_at.fract() * kept.pace.denominator();
        assert!(parts.is_integer(), "instants are whole parts of a tick");
        let fraction = parts / self.pace.denominator();
        let full_at = full_at.trunc() + fraction.min(whole(1));
        whole(self.pace.capacity) - (full_at - whole(kept.as_of)) * &self.pace.rate
    }

    fn keep(&mut self, now: u64, level: &BigRational) {
        self.kept = Some(Kept { level: level.clone(), as_of: now, pace: self.pace.clone() });
    }

    /// Whether `cost` fits into `level` tokens, and the tokens left.
    fn take(&self, level: &BigRational, cost: u64) -> (Outcome, BigRational) {
        if never_fits(cost, self.pace.capacity) {
            return (deny(None), level.clone());
        }
        let left = level - whole(cost);
        if left.is_negative() {
            let wait = self.refill_time(&-left);
            return (deny(Some(wait)), level.clone());
        }
        (self.start(level, cost), left)
    }

    /// The start of an admitted request: shaping uses a smaller bucket of `burst` tokens that may
    /// be in debt, and starts the request once that bucket holds its cost, or is full.
    fn start(&self, level: &BigRational, cost: u64) -> Outcome {
        let Some(burst) = self.pace.burst else { return Outcome::Allow };
        let waiting = whole(self.pace.capacity - burst);
        let missing = whole(cost.min(burst)) - (level - waiting);
        if missing.is_positive() {
            Outcome::Delay(Span::from_micros(self.refill_time(&missing)))
        } else {
            Outcome::Allow
        }
    }

    /// The least number of whole ticks in which this many tokens are refilled.
    fn refill_time(&self, tokens: &BigRational) -> u64 {
        let ticks = ceil(&(tokens / &self.pace.rate));
        let come = |ticks: u64| whole(ticks) * &self.pace.rate;
        assert!(come(ticks) >= *tokens, "{ticks} ticks are enough");
        assert!(ticks == 0 || come(ticks - 1) < *tokens, "{ticks} ticks are not too many");
        ticks
    }

    fn answer(&self, outcome: Outcome, level: &BigRational, unbooked: u64) -> Decision {
        let missing = whole(self.pace.capacity) - level;
        Decision {
            outcome,
            limit: self.pace.capacity,
            remaining: floor(level),
            reset_after: Span::from_micros(self.refill_time(&missing)),
            unbooked,
            lease: None,
        }
    }
}

impl Pace {
    fn of(numbers: &Numbers) -> Self {
        let shaping = numbers.subject == Subject::Rated(AlgorithmName::LeakyBucket);
        Self {
            rate: BigRational::new(numbers.count.into(), numbers.per.into()),
            capacity: numbers.capacity(),
            burst: shaping.then(|| numbers.burst.unwrap_or(1)),
        }
    }

    /// The denominator of a fraction of a tick: one token takes `1 / rate`, reduced.
    fn denominator(&self) -> BigRational {
        BigRational::from_integer(self.rate.recip().denom().clone())
    }
}

fn whole(number: u64) -> BigRational {
    BigRational::from_integer(number.into())
}

fn floor(number: &BigRational) -> u64 {
    number.floor().to_integer().to_u64().expect("levels are not negative and at most 2^33")
}

fn ceil(number: &BigRational) -> u64 {
    number.ceil().to_integer().to_u64().expect("waits are not negative and at most 100 years")
}
