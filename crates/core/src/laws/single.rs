//! Laws about one state and one instant.

use alloc::format;
use alloc::string::String;

use super::StepContext;
use crate::algorithm::Algorithm;
use crate::decision::{Decision, MAX_COST, Op, Outcome};
use crate::time::{Span, Timestamp};

type Verdict = Result<(), String>;

/// The largest number of units probed one by one; above it, additivity replaces the slow probe.
const PROBES: u64 = 40;

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(message()) }
}

/// The costs to probe: small ones, the step's own, and those around the limit.
fn costs(op: Op, limit: u64) -> [u64; 7] {
    let own = match op {
        Op::Take(cost) | Op::Read(cost) | Op::Return(cost) | Op::Force(cost) => cost,
        Op::ReturnOwed { units, .. } => units,
        Op::Reset | Op::Release(_) | Op::Renew(_) | Op::Block(_) => limit / 3,
    };
    [1, 2, own, limit / 2, limit.saturating_sub(1), limit, limit.saturating_add(1)]
}

/// The decision without its lease id, for comparisons that must ignore it.
fn without_lease(decision: Decision) -> Decision {
    Decision { lease: None, ..decision }
}

pub(super) fn exact_wait<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let now = context.now;
    let limit = context.after(Op::Read(0)).1.limit;
    for cost in costs(context.op, limit) {
        let (state, denied) = context.after(Op::Take(cost));
        let Outcome::Deny { retry_after } = denied.outcome else { continue };
        if cost == 0 {
            // A peek may report that even a cost of 0 is denied, but it does not repair the state.
            continue;
        }
        let never = cost > limit || cost > MAX_COST;
        ensure(never == retry_after.is_none(), || {
            format!("cost {cost} of {limit} at {now} was denied with {retry_after:?}")
        })?;
        let Some(wait) = retry_after else { continue };
        ensure(!wait.is_zero(), || format!("cost {cost} at {now} was denied with no wait"))?;
        let allowed_at = |wait: Span| {
            let decision = context.algorithm.decide(&mut state.clone(), now + wait, Op::Take(cost));
            decision.is_allowed()
        };
        ensure(allowed_at(wait), || format!("cost {cost} at {now} was still denied after {wait}"))?;
        let early = Span::from_micros(wait.as_micros() - 1);
        ensure(!allowed_at(early), || {
            format!("cost {cost} at {now} was denied with {wait} but allowed after {early}")
        })?;
    }
    Ok(())
}

pub(super) fn stable_denial<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let limit = context.after(Op::Read(0)).1.limit;
    for cost in costs(context.op, limit) {
        let (state, denied) = context.after(Op::Take(cost));
        if denied.is_allowed() || state == *context.state {
            continue;
        }
        let changed = || format!("denying {cost} turned {:?} into {state:?}", context.state);
        ensure(!context.clean, changed)?;
        let mut again = state.clone();
        context.algorithm.decide(&mut again, context.now, Op::Take(cost));
        ensure(again == state, || format!("{}, and again into {again:?}", changed()))?;
        for probe in costs(context.op, limit) {
            let repaired =
                context.algorithm.decide(&mut state.clone(), context.now, Op::Read(probe));
            ensure(repaired == context.after(Op::Read(probe)).1, changed)?;
        }
    }
    Ok(())
}

pub(super) fn additivity<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let limit = context.after(Op::Read(0)).1.limit;
    for first in costs(context.op, limit) {
        for second in [1, first, limit / 2] {
            let Some(sum) = first.checked_add(second).filter(|sum| *sum <= MAX_COST) else {
                continue;
            };
            if first == 0 || second == 0 {
                continue;
            }
            let (mut state, one) = context.after(Op::Take(first));
            let two = context.algorithm.decide(&mut state, context.now, Op::Take(second));
            let both = one.is_allowed() && two.is_allowed();
            let whole = context.after(Op::Take(sum)).1;
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

pub(super) fn peek<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let read_only = |op: Op| {
        let (state, decision) = context.after(op);
        ensure(state == *context.state, || {
            format!("{op:?} turned {:?} into {state:?}", context.state)
        })?;
        Ok::<Decision, String>(decision)
    };
    let view = read_only(Op::Take(0))?;
    for cost in [0].into_iter().chain(costs(context.op, view.limit)) {
        let read = read_only(Op::Read(cost))?;
        let take = context.after(Op::Take(cost)).1;
        ensure(read.outcome == take.outcome, || {
            format!("Read({cost}) returned {:?}, Take({cost}) {:?}", read.outcome, take.outcome)
        })?;
        ensure(Decision { outcome: view.outcome, ..read } == view, || {
            format!("Read({cost}) returned {read:?}, Take(0) {view:?}")
        })?;
    }
    Ok(())
}

pub(super) fn idle<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let idle_at = context.algorithm.idle_at(context.state);
    for late in [0, 1, context.pace.refill.as_micros()] {
        decides_like_fresh(
            context,
            context.state,
            idle_at + Span::from_micros(late),
            |decision| decision,
        )?;
    }
    // A peek does not repair, so its answer on a stale state holds only after a repair.
    if !matches!(context.op, Op::Take(1..) | Op::Force(1..) | Op::Reset) {
        return Ok(());
    }
    let (state, decision) = context.after(context.op);
    decides_like_fresh(context, &state, context.now + decision.reset_after, without_lease)
}

/// Checks that from `at` on, `state` decides like a fresh state, at `at` and a moment later.
fn decides_like_fresh<A: Algorithm>(
    context: &StepContext<'_, A>,
    state: &A::State,
    at: Timestamp,
    seen: fn(Decision) -> Decision,
) -> Verdict {
    let algorithm = context.algorithm;
    let limit = context.after(Op::Read(0)).1.limit;
    let [one, two, own, .., whole, above] = costs(context.op, limit);
    let ops = [Op::Take(one), Op::Take(own), Op::Take(whole), Op::Take(above), Op::Take(0)];
    for op in ops.into_iter().chain([Op::Force(two), Op::Return(one), Op::Read(own), Op::Reset]) {
        let (mut old, mut fresh) = (state.clone(), A::State::default());
        for (at, op) in [(at, op), (at, Op::Read(one)), (at + Span::from_micros(1), Op::Take(two))]
        {
            let decision = seen(algorithm.decide(&mut old, at, op));
            let expected = seen(algorithm.decide(&mut fresh, at, op));
            ensure(decision == expected, || {
                format!("{op:?} at {at} on {state:?}: {decision:?}, on a fresh key {expected:?}")
            })?;
        }
    }
    Ok(())
}

pub(super) fn remaining<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let (state, decision) = context.after(context.op);
    let left = decision.remaining;
    ensure(left <= decision.limit, || format!("{left} left of {}", decision.limit))?;
    let mut probed = state.clone();
    let probes = left.min(PROBES);
    for probe in 0..probes {
        let took = context.algorithm.decide(&mut probed, context.now, Op::Take(1));
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
        let took = context.algorithm.decide(&mut probed, context.now, Op::Take(rest));
        ensure(took.is_allowed(), || format!("{left} left, but not all of it: {took:?}"))?;
    }
    let more = context.algorithm.decide(&mut probed, context.now, Op::Take(1));
    ensure(!more.is_allowed(), || format!("{left} left, but one more was admitted"))
}

pub(super) fn monotone<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let limit = context.after(Op::Read(0)).1.limit;
    let mut costs = costs(context.op, limit);
    costs.sort_unstable();
    // Order: allowed, by delay; denied, by wait; never.
    let rank = |outcome| match outcome {
        Outcome::Allow => (0, Span::ZERO),
        Outcome::Delay(delay) => (0, delay),
        Outcome::Deny { retry_after: Some(wait) } => (1, wait),
        Outcome::Deny { retry_after: None } => (2, Span::ZERO),
    };
    let mut worst = (0, (0, Span::ZERO));
    for cost in costs {
        let outcome = context.after(Op::Read(cost)).1.outcome;
        let (smaller, before) = worst;
        ensure(rank(outcome) >= before, || {
            format!("cost {cost} is decided better ({outcome:?}) than cost {smaller}")
        })?;
        worst = (cost, rank(outcome));
    }
    Ok(())
}

pub(super) fn refund<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let algorithm = context.algorithm;
    let view = context.after(Op::Read(0)).1;
    for cost in costs(context.op, view.limit) {
        let (_, returned) = context.after(Op::Return(cost));
        ensure(returned.is_allowed(), || format!("returning {cost} was denied"))?;
        let most = view.remaining.saturating_add(cost).min(view.limit);
        ensure((view.remaining..=most).contains(&returned.remaining), || {
            format!("returning {cost} to {} left {}", view.remaining, returned.remaining)
        })?;
        let (mut state, taken) = context.after(Op::Take(cost));
        if !taken.is_allowed() || cost == 0 {
            continue;
        }
        // In-flight units are returned by releasing the lease, other units by their number.
        let undo = taken.lease.map_or(Op::Return(cost), Op::Release);
        let undone = algorithm.decide(&mut state, context.now, undo);
        ensure(undone.remaining == view.remaining, || {
            format!("{} left, {cost} taken and returned: {}", view.remaining, undone.remaining)
        })?;
        if taken.lease.is_some() {
            let (once, twice) = (state.clone(), algorithm.decide(&mut state, context.now, undo));
            ensure(state == once && without_lease(twice) == without_lease(undone), || {
                format!("releasing twice turned {once:?} into {state:?}")
            })?;
        }
    }
    Ok(())
}

pub(super) fn force<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let view = context.after(Op::Read(0)).1;
    for cost in [0].into_iter().chain(costs(context.op, view.limit)) {
        let (state, forced) = context.after(Op::Force(cost));
        let booked = cost.min(view.remaining);
        let expected = (true, cost - booked, view.remaining - booked);
        ensure((forced.is_allowed(), forced.unbooked, forced.remaining) == expected, || {
            format!("forcing {cost} onto {} left: {forced:?}", view.remaining)
        })?;
        ensure(cost > 0 || state == *context.state, || format!("forcing 0 wrote {state:?}"))?;
    }
    Ok(())
}

pub(super) fn reset<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let (state, decision) = context.after(Op::Reset);
    let fresh = context.algorithm.decide(&mut A::State::default(), context.now, Op::Read(0));
    ensure(decision == fresh, || format!("reset returned {decision:?}, a fresh key {fresh:?}"))?;
    decides_like_fresh(context, &state, context.now, without_lease)
}

pub(super) fn starvation<A: Algorithm>(context: &StepContext<'_, A>) -> Verdict {
    let (state, decision) = context.after(context.op);
    let most = decision.limit.min(MAX_COST);
    if most == 0 {
        // A limit of 0 admits nothing by design.
        return Ok(());
    }
    let fits_at = |at: Timestamp, state: &A::State| {
        let decision = context.algorithm.decide(&mut state.clone(), at, Op::Take(most));
        ensure(decision.is_allowed(), || {
            format!("{most} does not fit {state:?} even at {at}: {decision:?}")
        })
    };
    fits_at(context.algorithm.idle_at(&state).max(context.now), &state)?;
    // An operation that writes has repaired the state, so from here on one refill is enough.
    if matches!(context.op, Op::Take(1..) | Op::Force(1..) | Op::Reset) {
        fits_at(context.wait_bound, &state)?;
    }
    Ok(())
}
