//! Every law of `tidegate_core::laws` on random numbers and random traces, for every algorithm.

mod owed;
mod strategy;

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use strategy::{Case, Change};
use tidegate_core::algorithm::blocking::BlockingState;
use tidegate_core::algorithm::bucket::Bucket;
use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::laws::{
    Trace, Violation, additivity, bound, changed_numbers, check_all, check_all_but_stable_denial,
    exact_wait, idle, monotone, peek, remaining, replay, reset,
};
use tidegate_core::{Algorithm, Op, Timestamp};

fn holds(checked: Result<(), Violation>) -> TestCaseResult {
    checked.map_err(|violation| TestCaseError::fail(violation.to_string()))
}

fn survives<A: Algorithm>(change: &Change<A>) -> TestCaseResult {
    holds(changed_numbers(&change.before, &change.after, &change.trace, change.at))
}

/// The instants and operations of a trace, steps back included.
fn instants(trace: &Trace) -> impl Iterator<Item = (Timestamp, Op)> + '_ {
    let mut now = trace.start.as_micros();
    trace.steps.iter().map(move |step| {
        now = now.saturating_add_signed(step.micros).min(1 << 52);
        (Timestamp::from_micros(now), step.op)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_token_bucket_keeps_every_law(case in strategy::token_bucket()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn gcra_keeps_every_law(case in strategy::gcra()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn a_leaky_bucket_keeps_every_law(case in strategy::leaky_bucket()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn a_fixed_window_keeps_every_law(case in strategy::fixed_window(Denied::Ignored)) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn a_window_that_counts_denied_hits_keeps_every_other_law(
        case in strategy::fixed_window(Denied::Counted)
    ) {
        holds(check_all_but_stable_denial(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn a_sliding_window_keeps_every_law(case in strategy::sliding_window()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn a_sliding_log_keeps_every_law(case in strategy::sliding_log()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    #[test]
    fn an_in_flight_limit_keeps_every_law(case in strategy::in_flight()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }

    /// A block outlasts a refill (L7), and the first denial writes it (L3). The other laws hold, also when
    /// the clock goes back during a block.
    #[test]
    fn a_rate_with_a_block_keeps_its_waits_exact(case in strategy::blocking()) {
        for law in [bound, exact_wait, additivity, peek, idle, replay, remaining, monotone, reset] {
            holds(law(&case.algorithm, &case.trace))?;
        }
    }

    /// The block of the first denial and the repairs are the only changes that a denial makes, a block
    /// only denies, and it lasts for no longer than it was set for, wherever the clock goes (L7).
    #[test]
    fn a_block_is_started_by_the_first_denial_alone(case in strategy::blocking()) {
        let (limit, rate) = (case.algorithm, case.algorithm.rate());
        let mut state = BlockingState::default();
        let mut longest = limit.block_for();
        for (now, op) in instants(&case.trace) {
            let before = state.clone();
            let ahead = before.block.from.saturating_sub(now.as_micros());
            let until = Timestamp::from_micros(before.block.until.saturating_sub(ahead));
            let is_blocked = until > now;
            let mut without_block = (*before.rate).clone();
            let alone = rate.decide(&mut without_block, now, op);
            let decision = limit.decide(&mut state, now, op);
            if let Op::Block(span) = op {
                longest = longest.max(span);
            }
            let Op::Take(1..) = op else { continue };
            prop_assert_eq!(decision.is_allowed(), alone.is_allowed() && !is_blocked);
            if is_blocked {
                // A cost that never fits leaves only its repair.
                let mut repaired = (*before.rate).clone();
                rate.decide(&mut repaired, now, Op::Take(u64::MAX));
                prop_assert_eq!(&*state.rate, &repaired);
                prop_assert_eq!(state.block.until, until.as_micros());
                let wait = until.since(now).max(alone.retry_after().unwrap_or_default());
                prop_assert!(until.since(now) <= longest);
                prop_assert_eq!(decision.retry_after(), (!alone.is_never()).then_some(wait));
            } else if !decision.is_allowed() && !decision.is_never() {
                prop_assert_eq!(&*state.rate, &without_block);
                let until = now + limit.block_for();
                prop_assert_eq!(state.block.until, until.as_micros());
            }
        }
    }

    #[test]
    fn any_limit_behind_the_one_type_keeps_every_law(case in strategy::any_limit()) {
        holds(check_all(&case.algorithm, &case.trace))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_bucket_survives_new_numbers(change in strategy::changed(strategy::any_bucket)) {
        survives(&change)?;
    }

    #[test]
    fn a_fixed_window_survives_a_new_limit(change in strategy::changed_fixed_window()) {
        survives(&change)?;
    }

    #[test]
    fn a_sliding_window_survives_a_new_limit(change in strategy::changed_sliding_window()) {
        survives(&change)?;
    }

    #[test]
    fn a_sliding_log_survives_new_numbers(change in strategy::changed(strategy::sliding_log)) {
        survives(&change)?;
    }

    #[test]
    fn an_in_flight_limit_survives_new_numbers(change in strategy::changed(strategy::in_flight)) {
        survives(&change)?;
    }

    /// Requests that a leaky bucket starts are spaced by their cost, and no request waits for
    /// longer than the queue takes.
    #[test]
    fn a_leaky_bucket_of_burst_one_spaces_its_starts(
        (rate, queue, trace) in strategy::spaced_leaky_bucket()
    ) {
        let bucket = Bucket::shaping(rate, 1, queue).expect("strategies make valid numbers");
        let mut state = Default::default();
        let (count, per) = (u128::from(rate.count), u128::from(rate.per.as_micros()));
        let (mut last, mut newest) = (None, Timestamp::EPOCH);
        for (now, op) in instants(&trace) {
            newest = now.max(newest);
            let Op::Take(cost @ 1..) = op else { continue };
            let decision = bucket.decide(&mut state, newest, op);
            if !decision.is_allowed() {
                continue;
            }
            let delay = decision.delay();
            prop_assert!(u128::from(delay.as_micros()) * count < u128::from(queue) * per + count);
            let start = u128::from((newest + delay).as_micros());
            if let Some((previous, cost)) = last {
                // Each start was rounded up, so the earlier one may come almost a tick late.
                prop_assert!((start - previous + 1) * count > cost * per);
            }
            last = Some((start, u128::from(cost)));
        }
    }

    /// Seen from the holders: what they hold never outweighs the limit, and no
    /// lease is named twice.
    #[test]
    fn holders_of_unexpired_leases_never_outweigh_the_limit(case in strategy::in_flight()) {
        let Case { algorithm, trace } = case;
        let ttl = algorithm.idle_at(&{
            let mut state = Default::default();
            algorithm.decide(&mut state, Timestamp::from_secs(1), Op::Take(1));
            state
        }).since(Timestamp::from_secs(1));
        let (mut state, mut names) = (Default::default(), BTreeSet::new());
        let mut held: Vec<(Timestamp, u64, Op)> = Vec::new();
        let mut newest = Timestamp::EPOCH;
        for (now, op) in instants(&trace) {
            newest = now.max(newest);
            held.retain(|(until, ..)| *until > newest);
            let op = match op {
                Op::Release(id) if !held.is_empty() => {
                    held.swap_remove(id.number() as usize % held.len()).2
                }
                Op::Renew(id) if !held.is_empty() => {
                    let place = id.number() as usize % held.len();
                    held[place].0 = newest + ttl;
                    let Op::Release(lease) = held[place].2 else { unreachable!("as pushed") };
                    Op::Renew(lease)
                }
                Op::Reset => { held.clear(); op }
                op => op,
            };
            let decision = algorithm.decide(&mut state, newest, op);
            if let (Some(lease), Op::Take(cost) | Op::Force(cost)) = (decision.lease, op) {
                prop_assert!(names.insert(lease), "{lease:?} was given out twice");
                held.push((newest + ttl, cost - decision.unbooked, Op::Release(lease)));
            }
            let sum: u64 = held.iter().map(|(_, weight, _)| weight).sum();
            prop_assert!(sum <= decision.limit);
            prop_assert_eq!(decision.remaining, decision.limit - sum);
        }
    }
}
