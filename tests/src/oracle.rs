//! An independent model of every algorithm, to compare the engine and the stores with.
//!
//! It is written from the definitions, not from the engine, and deliberately uses other
//! representations: tokens instead of arrival times, window numbers instead of window ends, a plain
//! list instead of running sums, and waits found by searching for the first instant that admits.
//! Only the types of operations and decisions are shared. The oracle is slow and obvious on
//! purpose.

mod bucket;
mod fixed_window;
mod in_flight;
mod sliding_log;
mod sliding_window;

use tidegate_core::{AlgorithmName, Decision, MAX_COST, Op, Outcome, Span};

use crate::subject::{Numbers, Subject};

/// The longest block: 30 days.
const LONGEST_BLOCK: u64 = 30 * 86_400_000_000;

/// The model of one key under one limit.
#[derive(Clone, Debug)]
pub struct Oracle {
    numbers: Numbers,
    key: Key,
    /// When the key was blocked, and for how long.
    blocked: Option<(u64, u64)>,
}

/// The state of each family.
#[derive(Clone, Debug)]
enum Key {
    Bucket(bucket::Bucket),
    FixedWindow(fixed_window::FixedWindow),
    SlidingWindow(sliding_window::SlidingWindow),
    SlidingLog(sliding_log::SlidingLog),
    InFlight(in_flight::InFlight),
}

impl Oracle {
    /// A key never seen.
    pub fn new(numbers: Numbers) -> Self {
        let key = match numbers.subject {
            Subject::Rated(
                AlgorithmName::TokenBucket | AlgorithmName::Gcra | AlgorithmName::LeakyBucket,
            ) => Key::Bucket(bucket::Bucket::new(&numbers)),
            Subject::Rated(AlgorithmName::FixedWindow) => Key::FixedWindow(Default::default()),
            Subject::Rated(AlgorithmName::SlidingWindow) => Key::SlidingWindow(Default::default()),
            Subject::Rated(AlgorithmName::SlidingLog) => Key::SlidingLog(Default::default()),
            Subject::InFlight => Key::InFlight(Default::default()),
        };
        Self { numbers, key, blocked: None }
    }

    /// Changes the numbers of a key with state: the same family and, for windows, the same length.
    pub fn renumber(&mut self, numbers: Numbers) {
        self.numbers = numbers;
        if let Key::Bucket(bucket) = &mut self.key {
            bucket.renumber(&numbers);
        }
    }

    /// The required decision at `now`, in microseconds since the epoch.
    pub fn decide(&mut self, now: u64, op: Op) -> Decision {
        let Some(block_for) = self.numbers.block_for else { return self.decide_rate(now, op) };
        let (is_take, cost) = match op {
            Op::Take(cost) => (cost > 0, cost),
            Op::Read(cost) => (false, cost),
            _ => (false, 0),
        };
        match op {
            Op::Reset => self.blocked = None,
            Op::Block(span) if span.is_zero() => self.blocked = None,
            Op::Block(span) => self.blocked = Some((now, span.as_micros().min(LONGEST_BLOCK))),
            // If the clock went back to before the block began, the block begins now.
            Op::Take(1..) | Op::Force(1..) => {
                self.blocked = self.blocked.map(|(at, long)| (at.min(now), long))
            }
            _ => {}
        }
        let mut left = self.left(now);
        if is_take && left > 0 {
            self.repair(now);
        }
        let rate_op = match op {
            Op::Take(cost) if left > 0 || cost == 0 => Op::Read(cost),
            op => op,
        };
        let mut decision = self.decide_rate(now, rate_op);
        let wait = decision.retry_after().map(Span::as_micros);
        if left == 0 && cost > 0 && wait.is_some() {
            // The first denial; only a take starts the block.
            if is_take {
                self.blocked = Some((now, block_for));
                left = block_for;
            }
            decision.outcome = deny(wait.map(|wait| wait.max(block_for)));
        } else if left > 0 && cost > 0 && !decision.is_never() {
            decision.outcome = deny(Some(wait.unwrap_or(0).max(left)));
        }
        if left > 0 {
            decision.remaining = 0;
            decision.reset_after = decision.reset_after.max(Span::from_micros(left));
        }
        decision
    }

    /// Repairs a rate that no history could have left, as every denial does. Denied requests are
    /// not counted under a block.
    fn repair(&mut self, now: u64) {
        let counts = std::mem::replace(&mut self.numbers.count_denied, false);
        self.decide_rate(now, Op::Take(u64::MAX));
        self.numbers.count_denied = counts;
    }

    /// The remaining length of the block.
    fn left(&self, now: u64) -> u64 {
        self.blocked.map_or(0, |(at, long)| (at.min(now) + long).saturating_sub(now))
    }

    fn decide_rate(&mut self, now: u64, op: Op) -> Decision {
        match &mut self.key {
            Key::Bucket(bucket) => bucket.decide(now, op),
            Key::FixedWindow(window) => window.decide(&self.numbers, now, op),
            Key::SlidingWindow(window) => window.decide(&self.numbers, now, op),
            Key::SlidingLog(log) => log.decide(&self.numbers, now, op),
            Key::InFlight(places) => places.decide(&self.numbers, now, op),
        }
    }
}

/// True if no wait can ever make `cost` fit.
fn never_fits(cost: u64, capacity: u64) -> bool {
    cost > capacity || cost > MAX_COST
}

/// A denial; `None` means never.
fn deny(wait: Option<u64>) -> Outcome {
    Outcome::Deny { retry_after: wait.map(Span::from_micros) }
}

/// The first number in `1..=last` for which `holds`, which stays true once it is true.
fn first(last: u64, holds: impl Fn(u64) -> bool) -> u64 {
    assert!(holds(last), "the search must end: nothing holds at {last}");
    let (mut below, mut at) = (0, last);
    while at - below > 1 {
        let middle = below + (at - below) / 2;
        if holds(middle) {
            at = middle;
        } else {
            below = middle;
        }
    }
    at
}
