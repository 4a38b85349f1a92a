//! Random histories of one key, made where decisions go wrong: at boundaries, at promised
//! instants and one tick beside them, with clocks that jump and numbers that change.
//!
//! Each trace has its own habits (swarm testing): in some the clock never goes back, in others it
//! does so most of the time. A uniform mixture would reach deep states of neither kind.

mod clock;
mod habits;
mod numbers;

use std::fmt;

use fastrand::Rng;
use tidegate_core::{Decision, LeaseId, Op, Span, Timestamp};

use crate::subject::{Numbers, Subject};
use clock::Clock;
use habits::{CostKind, Habits, OpKind};

/// One event of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The limit's numbers become these; the state stays.
    Renumber(Numbers),
    /// An operation at an instant.
    Decide(Timestamp, Op),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Renumber(numbers) => write!(f, "numbers {numbers}"),
            Self::Decide(now, op) => write!(f, "at {} {op:?}", now.as_micros()),
        }
    }
}

/// Makes a trace step by step; answers influence the next steps.
#[derive(Debug)]
pub struct Trace {
    rng: Rng,
    habits: Habits,
    numbers: Numbers,
    clock: Clock,
    remaining: u64,
    leases: Vec<LeaseId>,
    begun: bool,
    /// The last operation, and its time.
    last: Option<(Timestamp, Op)>,
    /// The units of the last takes, and until when they are owed.
    taken: Vec<(u64, u64)>,
}

impl Trace {
    /// The trace of this seed.
    pub fn new(subject: Subject, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let numbers = numbers::random(&mut rng, subject);
        let clock = Clock::new(&mut rng, &numbers);
        let habits = Habits::new(&mut rng, subject);
        let remaining = numbers.capacity();
        Self {
            rng,
            habits,
            numbers,
            clock,
            remaining,
            leases: Vec::new(),
            begun: false,
            last: None,
            taken: Vec::new(),
        }
    }

    /// The next event.
    pub fn step(&mut self) -> Step {
        if !self.begun {
            self.begun = true;
            return Step::Renumber(self.numbers);
        }
        if self.rng.u32(0..1_000) < self.habits.renumber_permille {
            self.numbers = numbers::changed(&mut self.rng, &self.numbers);
            return Step::Renumber(self.numbers);
        }
        let stride = self.habits.stride(&mut self.rng);
        self.clock.advance(&mut self.rng, &self.numbers, stride);
        let (now, op) = (Timestamp::from_micros(self.clock.now()), self.op());
        self.last = Some((now, op));
        Step::Decide(now, op)
    }

    /// Learns from the answer to the last operation.
    pub fn learn(&mut self, decision: &Decision) {
        self.remaining = decision.remaining;
        let waits = [decision.retry_after(), Some(decision.delay()), Some(decision.reset_after)];
        for wait in waits.into_iter().flatten().filter(|wait| !wait.is_zero()) {
            self.clock.promise(wait.as_micros());
        }
        if let Some((now, Op::Take(cost @ 1..))) = self.last
            && decision.is_allowed()
        {
            if self.taken.len() == 8 {
                self.taken.remove(0);
            }
            self.taken.push((cost, (now + decision.reset_after).as_micros()));
        }
        if let Some(lease) = decision.lease {
            // Released leases stay in the list for a while, to test late and double releases.
            if self.leases.len() == 16 {
                self.leases.remove(0);
            }
            self.leases.push(lease);
        }
    }

    fn op(&mut self) -> Op {
        match self.habits.op(&mut self.rng) {
            OpKind::Take => Op::Take(self.cost()),
            OpKind::Read => Op::Read(self.cost()),
            OpKind::Return => Op::Return(self.cost()),
            OpKind::ReturnOwed => self.owed(),
            OpKind::Force => Op::Force(self.cost()),
            OpKind::Reset => Op::Reset,
            OpKind::Release => Op::Release(self.lease()),
            OpKind::Renew => Op::Renew(self.lease()),
            OpKind::Block if self.rng.bool() => Op::Block(Span::ZERO),
            OpKind::Block => Op::Block(Span::from_micros(numbers::spread(&mut self.rng, 43))),
        }
    }

    fn cost(&mut self) -> u64 {
        let capacity = self.numbers.capacity();
        let kind = self.habits.cost(&mut self.rng);
        let rng = &mut self.rng;
        match kind {
            CostKind::Nought => 0,
            CostKind::One => 1,
            CostKind::Few => rng.u64(2..=5),
            CostKind::Remaining => (self.remaining + rng.u64(0..=2)).saturating_sub(1),
            CostKind::Share => rng.u64(0..=capacity / 4 + 1),
            CostKind::Any => rng.u64(0..=capacity),
            CostKind::Capacity => (capacity + rng.u64(0..=3)).saturating_sub(1),
            CostKind::Huge => match rng.u32(0..4) {
                0 => (1 << 32) - 1,
                1 => 1 << 32,
                2 => (1 << 32) + 1,
                _ => u64::MAX >> rng.u32(0..31),
            },
        }
    }

    /// A return of units that were taken, or of slightly more or fewer.
    fn owed(&mut self) -> Op {
        let Some((cost, until)) = self.rng.choice(self.taken.iter().copied()) else {
            return Op::Return(self.cost());
        };
        let until = match self.rng.u32(0..8) {
            0 => until + 1,
            1 => until.saturating_sub(1),
            _ => until,
        };
        let units = match self.rng.u32(0..4) {
            0 => self.cost(),
            1 => cost,
            _ => self.rng.u64(0..=cost),
        };
        Op::ReturnOwed { units, until: Timestamp::from_micros(until) }
    }

    fn lease(&mut self) -> LeaseId {
        let made_up = LeaseId::new(self.rng.u64(1..=100)).expect("not nought");
        match self.leases.len() {
            0 => made_up,
            _ if self.rng.u32(0..16) == 0 => made_up,
            known => self.leases[self.rng.usize(0..known)],
        }
    }
}
