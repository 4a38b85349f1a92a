//! The laws every [`Algorithm`] keeps, as checks that a property test can run on any trace.
//!
//! A new algorithm gets them for free: generate a [`Trace`], call [`check_all`]. A law names what
//! it promises, so a [`Violation`] says which promise broke, at which step and how.
//!
//! | law | check |
//! |---|---|
//! | L1 bound | [`bound`] |
//! | L2 exact wait | [`exact_wait`] |
//! | L3 stable denial | [`stable_denial`] |
//! | L4 additivity | [`additivity`] |
//! | L5 peek | [`peek`] |
//! | L6 idle | [`idle`] |
//! | L7 time | [`time`] |
//! | L8 replay | [`replay`] |
//! | remaining is what can be taken | [`remaining`] |
//! | a larger cost never fares better | [`monotone`] |
//! | what is given back was taken | [`refund`] |
//! | a forced cost is never denied | [`force`] |
//! | a reset key is a fresh key | [`reset`] |
//! | nobody starves | [`starvation`] |
//! | a lease is named once | [`leases`] |
//! | new numbers on a living state | [`changed_numbers`] |
//!
//! ```
//! use tidegate_core::laws::{Step, Trace, check_all};
//! use tidegate_core::{Limit, Op, Rate, Timestamp};
//!
//! let limit = Limit::token_bucket(Rate::per_second(3)).build()?;
//! let steps = vec![Step::new(0, Op::Take(3)), Step::new(-5, Op::Take(1)), Step::new(7, Op::Read(2))];
//! check_all(&limit, &Trace { start: Timestamp::from_secs(9), steps }).expect("a lawful limit");
//! # Ok::<(), tidegate_core::InvalidLimit>(())
//! ```

mod flow;
mod single;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::algorithm::Algorithm;
use crate::algorithm::window::MAX_EARLY;
use crate::decision::{Decision, LeaseId, Op};
use crate::time::{Span, Timestamp};

pub use flow::{bound, changed_numbers, leases, replay, time};

/// What happens to one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// When the first step's time is counted from.
    pub start: Timestamp,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// Time moves, then an operation comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far the clock moves, in microseconds; it may go back.
    pub micros: i64,
    /// What is asked then. A lease is known only at run time, so `Release(k)` stands for the k-th
    /// lease the trace was given (counted round).
    pub op: Op,
}

impl Step {
    /// The clock moves by `micros`, then `op` comes.
    pub const fn new(micros: i64, op: Op) -> Self {
        Self { micros, op }
    }
}

/// A broken law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which law.
    pub law: &'static str,
    /// At which step of the trace.
    pub step: usize,
    /// What was promised and what came.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken at step {}: {}", self.law, self.step, self.message)
    }
}

impl core::error::Error for Violation {}

/// Checks every law of one algorithm.
pub fn check_all<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    stable_denial(algorithm, trace)?;
    check_all_but_stable_denial(algorithm, trace)
}

/// As [`check_all`], for a limit that says it counts what it denied.
pub fn check_all_but_stable_denial<A: Algorithm>(
    algorithm: &A,
    trace: &Trace,
) -> Result<(), Violation> {
    bound(algorithm, trace)?;
    exact_wait(algorithm, trace)?;
    additivity(algorithm, trace)?;
    peek(algorithm, trace)?;
    idle(algorithm, trace)?;
    time(algorithm, trace)?;
    replay(algorithm, trace)?;
    leases(algorithm, trace)?;
    remaining(algorithm, trace)?;
    monotone(algorithm, trace)?;
    refund(algorithm, trace)?;
    force(algorithm, trace)?;
    reset(algorithm, trace)?;
    starvation(algorithm, trace)
}

/// L2: a denial with `retry_after` w is a denial at w - 1 and an admission at w, if nobody spends;
/// a denial without one is of a cost above the limit.
///
/// It is checked on the state the denial left, so a repair that was not written breaks it.
pub fn exact_wait<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("L2 exact wait", algorithm, trace, single::exact_wait)
}

/// L3: a denial changes nothing. After the clock went back it may repair the state, once, and no
/// decision at that instant tells the difference.
pub fn stable_denial<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("L3 stable denial", algorithm, trace, single::stable_denial)
}

/// L4: a and then b at one instant is a + b (a shaping delay aside: each part is told its own).
pub fn additivity<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("L4 additivity", algorithm, trace, single::additivity)
}

/// L5: `Take(0)` and `Read` write nothing, and `Read` answers as `Take` does.
pub fn peek<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("L5 peek", algorithm, trace, single::peek)
}

/// L6: from `idle_at` on the state decides as no state does, lease ids included; from `reset_after`
/// on it does but for lease ids.
pub fn idle<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("L6 idle", algorithm, trace, single::idle)
}

/// `remaining` is how many units can be taken, one by one or together, and not one more.
pub fn remaining<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("remaining", algorithm, trace, single::remaining)
}

/// Where a cost is denied a larger one is, and it waits at least as long.
pub fn monotone<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("monotone cost", algorithm, trace, single::monotone)
}

/// Taking and giving back is as if nothing happened; giving back never frees more than was given,
/// nor more than the limit.
pub fn refund<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("refund", algorithm, trace, single::refund)
}

/// `Force` is never denied, books what is free and reports the rest.
pub fn force<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("force", algorithm, trace, single::force)
}

/// After `Reset` every decision is that of a key never seen (lease ids still only grow).
pub fn reset<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("reset", algorithm, trace, single::reset)
}

/// After one full refill without traffic, whatever fits the limit is admitted.
pub fn starvation<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    walk("starvation", algorithm, trace, single::starvation)
}

/// A law about one step.
type Check<A> = fn(&Visit<'_, A>) -> Result<(), String>;

/// One step of a trace, and what it met.
struct Visit<'a, A: Algorithm> {
    algorithm: &'a A,
    /// What the step finds.
    state: &'a A::State,
    now: Timestamp,
    op: Op,
    /// No reason to repair anything has come up: the clock never went back, the numbers stayed.
    clean: bool,
    pace: Pace,
    /// The latest instant anybody can be made to wait for, by L7.
    patience: Timestamp,
}

impl<A: Algorithm> Visit<'_, A> {
    /// The state and the decision after `op`; the step's own state stays.
    fn after(&self, op: Op) -> (A::State, Decision) {
        self.after_at(self.now, op)
    }

    fn after_at(&self, at: Timestamp, op: Op) -> (A::State, Decision) {
        let mut state = self.state.clone();
        let decision = self.algorithm.decide(&mut state, at, op);
        (state, decision)
    }
}

/// The spans that an algorithm's laws of time refer to, found by asking it.
#[derive(Clone, Copy)]
struct Pace {
    /// How long a key that was emptied (at the start of a window) needs to equal a fresh one.
    refill: Span,
    /// How far ahead of the clock a window may start and be kept; zero if there are no windows.
    window: Span,
}

impl Pace {
    fn of<A: Algorithm>(algorithm: &A) -> Self {
        let fresh = algorithm.decide(&mut A::State::default(), Timestamp::EPOCH, Op::Read(0));
        let emptied_at = |now| {
            let mut state = A::State::default();
            algorithm.decide(&mut state, now, Op::Force(fresh.limit));
            algorithm.idle_at(&state)
        };
        let boundary = emptied_at(Timestamp::EPOCH);
        let refill = emptied_at(boundary).since(boundary);
        // Only where time is cut into windows does a fresh key wait for something.
        let at_boundary = algorithm.decide(&mut A::State::default(), boundary, Op::Read(0));
        let window = at_boundary.reset_after.min(Span::from_micros(MAX_EARLY));
        Self { refill, window }
    }

    /// How far the clock may go back without freeing anything.
    fn tolerance(self) -> Span {
        if self.window.is_zero() { self.refill } else { self.window }
    }
}

/// Runs a trace: the one place that turns steps into instants and names leases.
struct Walk {
    now: Timestamp,
    /// The latest instant seen.
    high: Timestamp,
    clean: bool,
    leases: Vec<LeaseId>,
}

impl Walk {
    /// Later instants come so close to the end of representable time that waits saturate.
    const END: u64 = 1 << 52;

    fn new(trace: &Trace) -> Self {
        Self { now: trace.start, high: trace.start, clean: true, leases: Vec::new() }
    }

    /// Moves the clock; `None` when time is used up.
    fn advance(&mut self, step: &Step) -> Option<Op> {
        let now = self.now.as_micros().saturating_add_signed(step.micros);
        if now > Self::END {
            return None;
        }
        self.clean &= now >= self.high.as_micros();
        self.now = Timestamp::from_micros(now);
        self.high = self.high.max(self.now);
        Some(match step.op {
            Op::Release(id) if !self.leases.is_empty() => {
                let count = self.leases.len();
                let place = usize::try_from(id.number()).unwrap_or(0) % count;
                Op::Release(self.leases[place])
            }
            Op::Renew(id) if !self.leases.is_empty() => {
                let count = self.leases.len();
                let place = usize::try_from(id.number()).unwrap_or(0) % count;
                Op::Renew(self.leases[place])
            }
            op => op,
        })
    }

    fn patience(&self, pace: Pace) -> Timestamp {
        self.high.min(self.now + pace.window) + pace.refill
    }
}

fn walk<A: Algorithm>(
    law: &'static str,
    algorithm: &A,
    trace: &Trace,
    check: Check<A>,
) -> Result<(), Violation> {
    let mut walk = Walk::new(trace);
    let mut state = A::State::default();
    let pace = Pace::of(algorithm);
    for (step, planned) in trace.steps.iter().enumerate() {
        let Some(op) = walk.advance(planned) else { break };
        let (now, clean, patience) = (walk.now, walk.clean, walk.patience(pace));
        check(&Visit { algorithm, state: &state, now, op, clean, pace, patience })
            .map_err(|message| Violation { law, step, message })?;
        walk.leases.extend(algorithm.decide(&mut state, now, op).lease);
    }
    Ok(())
}
