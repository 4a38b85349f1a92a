//! Laws about how states follow one another.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{Check, Pace, Trace, Violation, Visit, Walk, single};
use crate::algorithm::Algorithm;
use crate::decision::{Decision, Op};
use crate::time::Span;

/// L1: no interval admits more than [`Algorithm::promise`] says.
///
/// Every interval that starts and ends with an admission is checked; what is given back meanwhile
/// may be admitted again. Time runs forward here: a step back counts as none.
pub fn bound<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    let forward = Trace {
        start: trace.start,
        steps: trace.steps.iter().map(|s| super::Step { micros: s.micros.max(0), ..*s }).collect(),
    };
    admissions("L1 bound", algorithm, &forward)
}

/// L7: when the clock goes back nothing panics, no key waits for longer than one full refill (and
/// at most one hour more where a window is kept that has not begun), and, while the clock stays within
/// one refill, or within one window and one hour, of the latest instant, no more is admitted than in the
/// time that did pass forwards.
pub fn time<A: Algorithm>(algorithm: &A, trace: &Trace) -> Result<(), Violation> {
    admissions("L7 time", algorithm, trace)?;
    super::walk("L7 time", algorithm, trace, patient)
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

/// A lease is named once: ids only grow, whatever the clock does. Renewing one names none.
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

/// New numbers on a living state: from step `at` on, `after` decides what `before` left.
///
/// Nothing panics, every law about one instant holds, and nobody waits for longer than one full
/// refill at the new numbers. Both limits must share their windows, as they do under one key.
pub fn changed_numbers<A: Algorithm>(
    before: &A,
    after: &A,
    trace: &Trace,
    at: usize,
) -> Result<(), Violation> {
    let mut walk = Walk::new(trace);
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
        ("wait after a change", patient),
    ];
    for (step, planned) in trace.steps.iter().enumerate() {
        let Some(op) = walk.advance(planned) else { break };
        let algorithm = if step < at { before } else { after };
        let (now, clean, patience) = (walk.now, false, walk.patience(pace));
        let visit = Visit { algorithm, state: &state, now, op, clean, pace, patience };
        for (law, check) in checks.iter().filter(|_| step >= at) {
            check(&visit).map_err(|message| Violation { law, step, message })?;
        }
        walk.leases.extend(algorithm.decide(&mut state, now, op).lease);
    }
    Ok(())
}

/// Nobody is told to wait beyond what L7 allows.
fn patient<A: Algorithm>(visit: &Visit<'_, A>) -> Result<(), String> {
    let limit = visit.after(Op::Read(0)).1.limit;
    for cost in [1, limit.div_ceil(2), limit].into_iter().filter(|cost| *cost > 0) {
        let told = visit.after(Op::Take(cost)).1.retry_after().unwrap_or(Span::ZERO);
        if visit.now + told > visit.patience {
            return Err(format!("at {} cost {cost} waits {told}", visit.now));
        }
    }
    Ok(())
}

fn decisions<A: Algorithm>(algorithm: &A, trace: &Trace) -> Vec<Decision> {
    let mut walk = Walk::new(trace);
    let mut state = A::State::default();
    let mut told = Vec::new();
    for step in &trace.steps {
        let Some(op) = walk.advance(step) else { break };
        // Only the value may matter, not which copy of it: a state is moved between carriers.
        state = state.clone();
        let decision = algorithm.decide(&mut state, walk.now, op);
        walk.leases.extend(decision.lease);
        told.push(decision);
    }
    told
}

/// What one step moved.
struct Moved {
    step: usize,
    /// How far the clock has run forwards by then, steps back aside.
    forward: u64,
    taken: u64,
    returned: u64,
    /// Intervals do not reach from one era into another.
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
                    "{taken} admitted (and {returned} given back) within {within} since step {}, \
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
    let mut walk = Walk::new(trace);
    let mut state = A::State::default();
    let (mut forward, mut era, mut high) = (0, 0, trace.start);
    let mut moved = Vec::new();
    for (step, planned) in trace.steps.iter().enumerate() {
        let was = walk.now;
        let Some(op) = walk.advance(planned) else { break };
        forward += walk.now.since(was).as_micros();
        high = high.max(walk.now);
        if high.since(walk.now) > pace.tolerance() {
            // So far back everything may be free again; but what only looks leaves the stale state,
            // and the window after this one may be kept even by what writes.
            era += 1;
            if matches!(op, Op::Take(1..) | Op::Force(1..)) {
                high = walk.now + pace.window;
            }
        }
        let decision = algorithm.decide(&mut state, walk.now, op);
        walk.leases.extend(decision.lease);
        let (taken, returned) = match op {
            Op::Take(cost) if decision.is_allowed() => (cost, 0),
            Op::Force(cost) => (cost - decision.unbooked, 0),
            Op::Return(cost) => (0, cost.min(decision.limit)),
            _ => (0, 0),
        };
        moved.push(Moved { step, forward, taken, returned, era });
        era += u32::from(op == Op::Reset);
    }
    moved
}
