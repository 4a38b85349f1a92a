//! The laws that every [`Algorithm`] obeys, as checks that a property test can run on any trace.
//!
//! To test a new algorithm, generate a [`Trace`] and call [`check_all`]. A [`Violation`] names the
//! broken law, the step and the decision that broke it.
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
//! | `remaining` is the number of units that can be taken | [`remaining`] |
//! | a larger cost never waits less | [`monotone`] |
//! | a return frees no more than was taken | [`refund`] |
//! | a forced cost is never denied | [`force`] |
//! | a reset key is a fresh key | [`reset`] |
//! | no key starves | [`starvation`] |
//! | a lease id is issued once | [`leases`] |
//! | changed numbers on an existing state | [`changed_numbers`] |
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

/// The operations on one key over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The clock before the first step.
    pub start: Timestamp,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// The clock moves, then an operation runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How far the clock moves, in microseconds; negative values move it back.
    pub micros: i64,
    /// The operation. Lease ids are known only at run time, so `Release(k)` stands for the k-th
    /// lease of the trace, modulo their number.
    pub op: Op,
}

impl Step {
    /// The clock moves by `micros`, then `op` runs.
    pub const fn new(micros: i64, op: Op) -> Self {
        Self { micros, op }
    }
}

/// A broken law.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The name of the law.
    pub law: &'static str,
    /// The index of the step.
    pub step: usize,
    /// The expected and the actual result.
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

/// Like [`check_all`], for a limit that counts denied requests.
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

/// L2: a denial with `retry_after` w is a denial at w - 1 and an admission at w, if no further
/// units are taken; a denial without `retry_after` has a cost above the limit.
///
/// The check runs on the state after the denial, so a repair that was not written breaks it.
pub fn exact_wait<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("L2 exact wait", algorithm, trace, single::exact_wait)
}

/// L3: a denial does not change the state. After the clock went back it may repair the state, once,
/// and no decision at that instant shows the difference.
pub fn stable_denial<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("L3 stable denial", algorithm, trace, single::stable_denial)
}

/// L4: taking a and then b at one instant equals taking a + b (except for shaping delays, which are
/// per operation).
pub fn additivity<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("L4 additivity", algorithm, trace, single::additivity)
}

/// L5: `Take(0)` and `Read` write nothing, and `Read` returns what `Take` does.
pub fn peek<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("L5 peek", algorithm, trace, single::peek)
}

/// L6: from `idle_at` on the state decides like a fresh state, lease ids included; from
/// `reset_after` on it does so except for lease ids.
pub fn idle<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("L6 idle", algorithm, trace, single::idle)
}

/// `remaining` is exactly the number of units that can be taken, one by one or together.
pub fn remaining<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("remaining", algorithm, trace, single::remaining)
}

/// If a cost is denied, a larger cost is denied too and waits at least as long.
pub fn monotone<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("monotone cost", algorithm, trace, single::monotone)
}

/// Taking and returning units leaves the key as it was; a return never frees more than was
/// returned, nor more than the limit.
pub fn refund<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("refund", algorithm, trace, single::refund)
}

/// `Force` is never denied, takes what is free and reports the rest.
pub fn force<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("force", algorithm, trace, single::force)
}

/// After `Reset` every decision is that of a key never seen (lease ids still only grow).
pub fn reset<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("reset", algorithm, trace, single::reset)
}

/// After one full refill without traffic, any cost up to the limit is admitted.
pub fn starvation<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    run("starvation", algorithm, trace, single::starvation)
}

/// A law about one step.
type Check<A> = fn(&StepContext<'_, A>) -> Result<(), String>;

/// One step of a trace, with the state it starts from.
struct StepContext<'a, A: Algorithm> {
    algorithm: &'a A,
    /// The state before the step.
    state: &'a A::State,
    now: Timestamp,
    op: Op,
    /// True if no repair can be due: the clock never went back and the numbers did not change.
    clean: bool,
    pace: Pace,
    /// The latest instant a key may be made to wait for, by L7.
    wait_bound: Timestamp,
}

impl<A: Algorithm> StepContext<'_, A> {
    /// The state and the decision after `op`; leaves the step's own state unchanged.
    fn after(&self, op: Op) -> (A::State, Decision) {
        self.after_at(self.now, op)
    }

    fn after_at(&self, at: Timestamp, op: Op) -> (A::State, Decision) {
        let mut state = self.state.clone();
        let decision = self.algorithm.decide(&mut state, at, op);
        (state, decision)
    }
}

/// The time spans of an algorithm that the laws refer to, measured by running it.
#[derive(Clone, Copy)]
struct Pace {
    /// How long a key that was emptied (at the start of a window) takes to equal a fresh one.
    refill: Span,
    /// How far ahead of the clock a stored window may start and be kept; zero without windows.
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
        // A fresh key has a reset only if the algorithm uses windows.
        let at_boundary = algorithm.decide(&mut A::State::default(), boundary, Op::Read(0));
        let window = at_boundary.reset_after.min(Span::from_micros(MAX_EARLY));
        Self { refill, window }
    }

    /// How far the clock may go back without freeing anything.
    fn tolerance(self) -> Span {
        if self.window.is_zero() { self.refill } else { self.window }
    }
}

/// Runs a trace: turns steps into instants and substitutes lease ids.
struct Run {
    now: Timestamp,
    /// The latest instant seen.
    high: Timestamp,
    clean: bool,
    leases: Vec<LeaseId>,
}

impl Run {
    /// The last usable instant; later ones are so close to the end of representable time that waits
    /// saturate.
    const END: u64 = 1 << 52;

    fn new(trace: &Trace) -> Self {
        Self { now: trace.start, high: trace.start, clean: true, leases: Vec::new() }
    }

    /// Moves the clock; `None` after [`Run::END`].
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
                let index = usize::try_from(id.number()).unwrap_or(0) % count;
                Op::Release(self.leases[index])
            }
            Op::Renew(id) if !self.leases.is_empty() => {
                let count = self.leases.len();
                let index = usize::try_from(id.number()).unwrap_or(0) % count;
                Op::Renew(self.leases[index])
            }
            op => op,
        })
    }

    fn wait_bound(&self, pace: Pace) -> Timestamp {
        self.high.min(self.now + pace.window) + pace.refill
    }
}

fn run<A: Algorithm>(
    law: &'static str,
    algorithm: &A,
    trace: &Trace,
    check: Check<A>,
) -> Result<(), Violation> {
    let mut run = Run::new(trace);
    let mut state = A::State::default();
    let pace = Pace::of(algorithm);
    for (step, planned) in trace.steps.iter().enumerate() {
        let Some(op) = run.advance(planned) else { break };
        let (now, clean, wait_bound) = (run.now, run.clean, run.wait_bound(pace));
        check(&StepContext { algorithm, state: &state, now, op, clean, pace, wait_bound })
            .map_err(|message| Violation { law, step, message })?;
        run.leases.extend(algorithm.decide(&mut state, now, op).lease);
    }
    Ok(())
}
