//! Laws about one state and one instant.

use alloc::format;
use alloc::string::String;

use super::Visit;
use crate::algorithm::Algorithm;
use crate::decision::{Decision, MAX_COST, Op, Outcome};
use crate::time::{Span, Timestamp};

type Verdict = Result<(), String>;

/// Probing one by one is exact but slow; above this, additivity stands in for it.
const PROBES: u64 = 40;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(message()) }
}

/// The costs worth asking about: small ones, the step's own, and those around the limit.
fn costs(op: Op, limit: u64) -> [u64; 7] {
    let own = match op {
        Op::Take(cost) | Op::Read(cost) | Op::Return(cost) | Op::Force(cost) => cost,
        Op::Reset | Op::Release(_) | Op::Renew(_) => limit / 3,
    };
    [1, 2, own, limit / 2, limit.saturating_sub(1), limit, limit.saturating_add(1)]
}

/// Compared where the id of a lease is not at issue.
fn unnamed(decision: Decision) -> Decision {
    Decision { lease: None, ..decision }
}

pub(super) fn exact_wait<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let now = visit.now;
    let limit = visit.after(Op::Read(0)).1.limit;
    for cost in costs(visit.op, limit) {
        let (state, denied) = visit.after(Op::Take(cost));
        let Outcome::Deny { retry_after } = denied.outcome else { continue };
        if cost == 0 {
            // A peek may see that even nothing is too much, but it repairs nothing.
            continue;
        }
        let never = cost > limit || cost > MAX_COST;
        ensure(never == retry_after.is_none(), || {
            format!("cost {cost} of {limit} at {now} was denied with {retry_after:?}")
        })?;
        let Some(wait) = retry_after else { continue };
        ensure(!wait.is_zero(), || format!("cost {cost} at {now} was denied with no wait"))?;
        let allowed_at = |wait: Span| {
            let decision = visit.algorithm.decide(&mut state.clone(), now + wait, Op::Take(cost));
            decision.is_allowed()
        };
        ensure(allowed_at(wait), || format!("cost {cost} at {now} was still denied after {wait}"))?;
        let early = Span::from_micros(wait.as_micros() - 1);
        ensure(!allowed_at(early), || {
            format!("cost {cost} at {now} was told {wait} but allowed after {early}")
        })?;
    }
    Ok(())
}

pub(super) fn stable_denial<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let limit = visit.after(Op::Read(0)).1.limit;
    for cost in costs(visit.op, limit) {
        let (state, denied) = visit.after(Op::Take(cost));
        if denied.is_allowed() || state == *visit.state {
            continue;
        }
        let changed = || format!("denying {cost} turned {:?} into {state:?}", visit.state);
        ensure(!visit.clean, changed)?;
        let mut again = state.clone();
        visit.algorithm.decide(&mut again, visit.now, Op::Take(cost));
        ensure(again == state, || format!("{}, and again into {again:?}", changed()))?;
        for probe in costs(visit.op, limit) {
            let repaired = visit.algorithm.decide(&mut state.clone(), visit.now, Op::Read(probe));
            ensure(repaired == visit.after(Op::Read(probe)).1, changed)?;
        }
    }
    Ok(())
}

pub(super) fn additivity<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let limit = visit.after(Op::Read(0)).1.limit;
    for first in costs(visit.op, limit) {
        for second in [1, first, limit / 2] {
            let Some(sum) = first.checked_add(second).filter(|sum| *sum <= MAX_COST) else {
                continue;
            };
            if first == 0 || second == 0 {
                continue;
            }
            let (mut state, one) = visit.after(Op::Take(first));
            let two = visit.algorithm.decide(&mut state, visit.now, Op::Take(second));
            let both = one.is_allowed() && two.is_allowed();
            let whole = visit.after(Op::Take(sum)).1;
            ensure(whole.is_allowed() == both, || {
                format!("{first} then {second}: {one:?}, {two:?}; together: {whole:?}")
            })?;
            let same = (whole.remaining, whole.reset_after) == (two.remaining, two.reset_after);
            ensure(!both || same, || {
                format!("{first} then {second} left {two:?}; together: {whole:?}")
            })?;
        }
    }
    Ok(())
}

pub(super) fn peek<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let fresh_decision = |op: Op| {
        let (state, decision) = visit.after(op);
        ensure(state == *visit.state, || {
            format!("{op:?} turned {:?} into {state:?}", visit.state)
        })?;
        Ok::<Decision, String>(decision)
    };
    let view = fresh_decision(Op::Take(0))?;
    for cost in [0].into_iter().chain(costs(visit.op, view.limit)) {
        let read = fresh_decision(Op::Read(cost))?;
        let take = visit.after(Op::Take(cost)).1;
        ensure(read.outcome == take.outcome, || {
            format!("Read({cost}) said {:?}, Take({cost}) {:?}", read.outcome, take.outcome)
        })?;
        ensure(Decision { outcome: view.outcome, ..read } == view, || {
            format!("Read({cost}) saw {read:?}, Take(0) {view:?}")
        })?;
    }
    Ok(())
}

pub(super) fn idle<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let idle_at = visit.algorithm.idle_at(visit.state);
    for late in [0, 1, visit.pace.refill.as_micros()] {
        as_fresh(visit, visit.state, idle_at + Span::from_micros(late), |decision| decision)?;
    }
    // A peek does not repair, so what it says of a stale state holds only once something does.
    if !matches!(visit.op, Op::Take(1..) | Op::Force(1..) | Op::Reset) {
        return Ok(());
    }
    let (state, decision) = visit.after(visit.op);
    as_fresh(visit, &state, visit.now + decision.reset_after, unnamed)
}

/// From `at` on, `state` decides as no state does, then and a moment later.
fn as_fresh<A: Algorithm>(
    visit: &Visit<'_, A>,
    state: &A::State,
    at: Timestamp,
    seen: fn(Decision) -> Decision,
) -> Verdict {
    let algorithm = visit.algorithm;
    let limit = visit.after(Op::Read(0)).1.limit;
    let [one, two, own, .., whole, above] = costs(visit.op, limit);
    let ops = [Op::Take(one), Op::Take(own), Op::Take(whole), Op::Take(above), Op::Take(0)];
    for op in ops.into_iter().chain([Op::Force(two), Op::Return(one), Op::Read(own), Op::Reset]) {
        let (mut old, mut fresh) = (state.clone(), A::State::default());
        for (at, op) in [(at, op), (at, Op::Read(one)), (at + Span::from_micros(1), Op::Take(two))]
        {
            let told = seen(algorithm.decide(&mut old, at, op));
            let expected = seen(algorithm.decide(&mut fresh, at, op));
            ensure(told == expected, || {
                format!("{op:?} at {at} on {state:?}: {told:?}, on a fresh key {expected:?}")
            })?;
        }
    }
    Ok(())
}

pub(super) fn remaining<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let (state, decision) = visit.after(visit.op);
    let left = decision.remaining;
    ensure(left <= decision.limit, || format!("{left} left of {}", decision.limit))?;
    let mut probed = state.clone();
    let probes = left.min(PROBES);
    for probe in 0..probes {
        let took = visit.algorithm.decide(&mut probed, visit.now, Op::Take(1));
        ensure(took.is_allowed(), || format!("{left} left, but probe {probe} was denied"))?;
        ensure(took.remaining == left - probe - 1, || {
            format!("{left} left, but {} after probe {probe}", took.remaining)
        })?;
    }
    let rest = left - probes;
    if rest > MAX_COST {
        return Ok(());
    }
    if rest > 0 {
        let took = visit.algorithm.decide(&mut probed, visit.now, Op::Take(rest));
        ensure(took.is_allowed(), || format!("{left} left, but not all of it: {took:?}"))?;
    }
    let more = visit.algorithm.decide(&mut probed, visit.now, Op::Take(1));
    ensure(!more.is_allowed(), || format!("{left} left, but one more was admitted"))
}

pub(super) fn monotone<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let limit = visit.after(Op::Read(0)).1.limit;
    let mut costs = costs(visit.op, limit);
    costs.sort_unstable();
    // Allowed, by delay; denied, by wait; never.
    let rank = |outcome| match outcome {
        Outcome::Allow => (0, Span::ZERO),
        Outcome::Delay(delay) => (0, delay),
        Outcome::Deny { retry_after: Some(wait) } => (1, wait),
        Outcome::Deny { retry_after: None } => (2, Span::ZERO),
    };
    let mut worst = (0, (0, Span::ZERO));
    for cost in costs {
        let outcome = visit.after(Op::Read(cost)).1.outcome;
        let (smaller, before) = worst;
        ensure(rank(outcome) >= before, || {
            format!("cost {cost} fares better ({outcome:?}) than cost {smaller}")
        })?;
        worst = (cost, rank(outcome));
    }
    Ok(())
}

pub(super) fn refund<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let algorithm = visit.algorithm;
    let view = visit.after(Op::Read(0)).1;
    for cost in costs(visit.op, view.limit) {
        let (_, returned) = visit.after(Op::Return(cost));
        ensure(returned.is_allowed(), || format!("giving {cost} back was denied"))?;
        let most = view.remaining.saturating_add(cost).min(view.limit);
        ensure((view.remaining..=most).contains(&returned.remaining), || {
            format!("giving {cost} back to {} left {}", view.remaining, returned.remaining)
        })?;
        let (mut state, taken) = visit.after(Op::Take(cost));
        if !taken.is_allowed() || cost == 0 {
            continue;
        }
        // Places come back by their lease, units by their number.
        let undo = taken.lease.map_or(Op::Return(cost), Op::Release);
        let undone = algorithm.decide(&mut state, visit.now, undo);
        ensure(undone.remaining == view.remaining, || {
            format!("{} left, {cost} taken and given back: {}", view.remaining, undone.remaining)
        })?;
        if taken.lease.is_some() {
            let (once, twice) = (state.clone(), algorithm.decide(&mut state, visit.now, undo));
            ensure(state == once && unnamed(twice) == unnamed(undone), || {
                format!("releasing twice turned {once:?} into {state:?}")
            })?;
        }
    }
    Ok(())
}

pub(super) fn force<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let view = visit.after(Op::Read(0)).1;
    for cost in [0].into_iter().chain(costs(visit.op, view.limit)) {
        let (state, forced) = visit.after(Op::Force(cost));
        let booked = cost.min(view.remaining);
        let expected = (true, cost - booked, view.remaining - booked);
        ensure((forced.is_allowed(), forced.unbooked, forced.remaining) == expected, || {
            format!("forcing {cost} onto {} left: {forced:?}", view.remaining)
        })?;
        ensure(cost > 0 || state == *visit.state, || format!("forcing 0 wrote {state:?}"))?;
    }
    Ok(())
}

pub(super) fn reset<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let (state, told) = visit.after(Op::Reset);
    let fresh = visit.algorithm.decide(&mut A::State::default(), visit.now, Op::Read(0));
    ensure(told == fresh, || format!("reset said {told:?}, a fresh key {fresh:?}"))?;
    as_fresh(visit, &state, visit.now, unnamed)
}

pub(super) fn starvation<A: Algorithm>(visit: &Visit<'_, A>) -> Verdict {
    let (state, decision) = visit.after(visit.op);
    let most = decision.limit.min(MAX_COST);
    if most == 0 {
        // A limit of 0 starves everybody by design.
        return Ok(());
    }
    let fits_at = |at: Timestamp, state: &A::State| {
        let decision = visit.algorithm.decide(&mut state.clone(), at, Op::Take(most));
        ensure(decision.is_allowed(), || {
            format!("{most} does not fit {state:?} even at {at}: {decision:?}")
        })
    };
    fits_at(visit.algorithm.idle_at(&state).max(visit.now), &state)?;
    // Whoever may write has repaired the state, so from here on one refill is enough.
    if matches!(visit.op, Op::Take(1..) | Op::Force(1..) | Op::Reset) {
        fits_at(visit.patience, &state)?;
    }
    Ok(())
}
