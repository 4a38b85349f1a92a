//! Laws about sequences of states.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Check, Pace, Run, StepContext, Trace, Violation, single};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, Op};
use crate::time::Span;

/// L1: no interval admits more than [`Algorithm::promise`] units.
///
/// Every interval that starts and ends with an admission is checked; units returned in between may
/// be admitted again. Time only runs forwards here: a step back is treated as no step.
pub fn bound<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    let forward = Trace {
        start: trace.start,
        steps: trace.steps.iter().map(|s| super::Step { micros: s.micros.max(0), ..*s }).collect(),
    };
    admissions("L1 bound", algorithm, &forward)
}

/// L7: after the clock went back, nothing panics and no key waits for longer than one full refill
/// (at most one hour more if a window is kept that has not begun). While the clock stays within one
/// refill of the latest instant (windows: within one window and one hour), no more units are
/// admitted than the time that passed forwards allows.
pub fn time<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    admissions("L7 time", algorithm, trace)?;
    super::run("L7 time", algorithm, trace, wait_is_bounded)
}

/// L8: the same trace gives the same decisions, from a fresh state and from any copy of one.
pub fn replay<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    let first = decisions(algorithm, trace);
    let second = decisions(algorithm, trace);
    match first.iter().zip(&second).position(|(one, two)| one != two) {
        None => Ok(()),
        Some(step) => Err(Violation {
            law: "L8 replay",
            step,
            message: format!("{:?}, and again {:?}", first[step], second[step]),
        }),
    }
}

/// A lease id is issued once: ids only grow, whatever the clock does. A renewal issues no id.
pub fn leases<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    let mut newest = None;
    for (step, decision) in decisions(algorithm, trace).into_iter().enumerate() {
        if matches!(trace.steps[step].op, Op::Renew(_)) {
            continue;
        }
        if decision.lease.is_some() && decision.lease <= newest {
            let message = format!("{:?} after {newest:?}", decision.lease);
            return Err(Violation { law: "leases", step, message });
        }
        newest = decision.lease.or(newest);
    }
    Ok(())
}

/// Changed numbers on an existing state: from step `at` on, `after` decides on the state that
/// `before` left.
///
/// Nothing panics, every law about one instant holds, and no key waits for longer than one full
/// refill at the new numbers. Both limits must have the same windows, as they do under one key.
pub fn changed_numbers<A: Algorithm>(
    before: &A,
    after: &A,
    trace: &Trace,
    at: usize,
) -> Result<(), Violation> {
    let mut run = Run::new(trace);
    let mut state = A::State::default();
    let pace = Pace::of(after);
    let checks: [(&str, Check<A>); 9] = [
        ("L2 exact wait after a change", single::exact_wait),
        ("L4 additivity after a change", single::additivity),
        ("L5 peek after a change", single::peek),
        ("L6 idle after a change", single::idle),
        ("remaining after a change", single::remaining),
        ("refund after a change", single::refund),
        ("force after a change", single::force),
        ("starvation after a change", single::starvation),
        ("wait after a change", wait_is_bounded),
    ];
    for (step, planned) in trace.steps.iter().enumerate() {
        let Some(op) = run.advance(planned) else { break };
        let algorithm = if step < at { before } else { after };
        let (now, clean, wait_bound) = (run.now, false, run.wait_bound(pace));
        let context = StepContext { algorithm, state: &state, now, op, clean, pace, wait_bound };
        for (law, check) in checks.iter().filter(|_| step >= at) {
            check(&context).map_err(|message| Violation { law, step, message })?;
        }
        run.leases.extend(algorithm.decide(&mut state, now, op).lease);
    }
    Ok(())
}

/// No wait is longer than L7 allows.
fn wait_is_bounded<A: Algorithm>(context: &StepContext<'_, A>) -> Result<(), String> {
    let limit = context.after(Op::Read(0)).1.limit;
    for cost in [1, limit.div_ceil(2), limit].into_iter().filter(|cost| *cost > 0) {
        let wait = context.after(Op::Take(cost)).1.retry_after().unwrap_or(Span::ZERO);
        if context.now + wait > context.wait_bound {
            return Err(format!("at {} cost {cost} waits {wait}", context.now));
        }
    }
    Ok(())
}

fn decisions<A: Algorithm>(algorithm: &A, trace: &Trace) -> Vec<Decision> {
    let mut run = Run::new(trace);
    let mut state = A::State::default();
    let mut decisions = Vec::new();
    for step in &trace.steps {
        let Some(op) = run.advance(step) else { break };
        // Stores copy states, so only the value may matter.
        state = state.clone();
        let decision = algorithm.decide(&mut state, run.now, op);
        run.leases.extend(decision.lease);
        decisions.push(decision);
    }
    decisions
}

/// The units that one step took and returned.
struct Moved {
    step: usize,
    /// How far the clock has run forwards up to this step, not counting steps back.
    forward: u64,
    taken: u64,
    returned: u64,
    /// Intervals that span two eras are not checked.
    era: u32,
}

/// Checks the promise over every interval that begins and ends with an admission, in the time that
/// passed forwards.
fn admissions<A: Algorithm>(
    law: &'static str,
    algorithm: &A,
    trace: &Trace,
) -> Result<(), Violation> {
    let moved = movements(algorithm, trace);
    for (first, start) in moved.iter().enumerate().filter(|(_, start)| start.taken > 0) {
        let (mut taken, mut returned) = (0_u128, 0_u128);
        for end in moved[first..].iter().take_while(|end| end.era == start.era) {
            taken += u128::from(end.taken);
            returned += u128::from(end.returned);
            let within = Span::from_micros(end.forward - start.forward);
            let Some(promise) = algorithm.promise(within) else { return Ok(()) };
            if end.taken > 0 && taken > u128::from(promise) + returned {
                let message = format!(
                    "{taken} admitted (and {returned} returned) within {within} since step {}, \
                     promised {promise}",
                    start.step
                );
                return Err(Violation { law, step: end.step, message });
            }
        }
    }
    Ok(())
}

fn movements<A: Algorithm>(algorithm: &A, trace: &Trace) -> Vec<Moved> {
    let pace = Pace::of(algorithm);
    let mut run = Run::new(trace);
    let mut state = A::State::default();
    let (mut forward, mut era, mut high) = (0, 0, trace.start);
    let mut moved = Vec::new();
    for (step, planned) in trace.steps.iter().enumerate() {
        let was = run.now;
        let Some(op) = run.advance(planned) else { break };
        forward += run.now.since(was).as_micros();
        high = high.max(run.now);
        if high.since(run.now) > pace.tolerance() {
            // After such a step back all units may be free again. An operation that only reads
            // keeps the stale state, and even an operation that writes may keep the next window.
            era += 1;
            if matches!(op, Op::Take(1..) | Op::Force(1..)) {
                high = run.now + pace.window;
            }
        }
        let decision = algorithm.decide(&mut state, run.now, op);
        run.leases.extend(decision.lease);
        let (taken, returned) = match op {
            Op::Take(cost) if decision.is_allowed() => (cost, 0),
            Op::Force(cost) => (cost - decision.unbooked, 0),
            Op::Return(cost) => (0, cost.min(decision.limit)),
            // A part of a unit may be returned beside the whole ones.
            Op::ReturnOwed { units, .. } => (0, (units - decision.unbooked + 1).min(units)),
            _ => (0, 0),
        };
        moved.push(Moved { step, forward, taken, returned, era });
        era += u32::from(op == Op::Reset);
    }
    moved
}
