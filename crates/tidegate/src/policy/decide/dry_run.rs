//! Predicts the decisions on a request without charging it. Separate reads are not enough: if a
//! request has the same state twice, the second charge sees the first, and so must the second read.

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Decision, Limit, Op, Outcome, Timestamp};

use crate::policy::matching::matched_limits::{MatchedLimit, MatchedLimits};
use crate::store::{Batch, Charge, Store, StoreError};
use crate::verdict::Details;

/// Reads the decision of every matched limit in order, and records it.
pub(in crate::policy) async fn dry_run<S: Store>(
    store: &S,
    local: Timestamp,
    matched_limits: &MatchedLimits,
    details: &mut Details,
) -> Result<(), StoreError> {
    let (together, quotas, others) = matched_limits.split();
    let all: Vec<&MatchedLimit> = quotas.iter().chain(together).chain(others).collect();
    let group = quotas.len()..quotas.len() + together.len();
    let mut decisions = Vec::with_capacity(all.len());
    let reads: Vec<Charge<'_>> =
        all.iter().map(|matched| read(matched_limits, matched, 0)).collect();
    details.source = store.decide(local, Batch::each(&reads), &mut decisions).await?;
    let mut booked: Vec<u64> = Vec::with_capacity(all.len());
    let mut is_denied = false;
    for (number, matched) in all.iter().enumerate() {
        if number == group.start {
            is_denied = details.exhausted_quota().is_some();
        }
        if number == group.end {
            keep_nothing(&mut booked[group.clone()], together, &decisions[group.clone()]);
        }
        // Limits are not charged if a quota denies.
        let is_charged = !(is_denied && group.contains(&number));
        let same = |other: &usize| is_charged && matched_limits.share_a_state(all[*other], matched);
        let before = (0..number).filter(same).map(|other| booked[other]);
        let before = before.fold(0, u64::saturating_add);
        if before > 0 {
            let mut again = Vec::with_capacity(1);
            let read = read(matched_limits, matched, before);
            let source = store.decide(local, Batch::one(&read), &mut again).await?;
            details.source = details.source.max(source);
            decisions.splice(number..=number, again);
        }
        if matches!(matched.op, Op::Return(_)) {
            // A return is never denied.
            decisions[number].outcome = Outcome::Allow;
        }
        let decision = decisions[number];
        booked.push(if is_charged { units_booked(matched, &decision) } else { 0 });
        let record = &mut details.records[matched.record];
        matched.record_in(record, decision);
        if !matched.in_front {
            record.left = Some(left(matched, &decision, before));
        }
    }
    if group.end == all.len() {
        keep_nothing(&mut booked[group.clone()], together, &decisions[group.clone()]);
    }
    // If one of the limits decided together is denied, the others keep their units.
    for (number, matched) in group.zip(together) {
        let record = &mut details.records[matched.record];
        record.left = record.left.filter(|_| booked[number] > 0);
    }
    Ok(())
}

/// A read of whether the matched limit would admit its cost after `booked` further units.
fn read<'p>(
    matched_limits: &'p MatchedLimits,
    matched: &'p MatchedLimit,
    before: u64,
) -> Charge<'p> {
    let cost = match matched.op {
        Op::Take(cost) => cost,
        _ => 0,
    };
    Charge { op: Op::Read(cost.saturating_add(before)), ..matched_limits.charge(matched) }
}

/// The units that a matched limit would add to its state.
fn units_booked(matched: &MatchedLimit, decision: &Decision) -> u64 {
    match matched.op {
        Op::Take(cost) if decision.is_allowed() || counts_denied(&matched.numbers) => cost,
        _ => 0,
    }
}

/// The units that a matched limit would leave.
fn left(matched: &MatchedLimit, decision: &Decision, before: u64) -> u64 {
    let free = decision.remaining.saturating_sub(before);
    match matched.op {
        Op::Return(units) => free.saturating_add(units).min(decision.limit),
        _ => free.saturating_sub(units_booked(matched, decision)),
    }
}

/// If one of the charges taken together is denied, none is booked, except in windows that count
/// denied requests.
fn keep_nothing(booked: &mut [u64], matched_limits: &[MatchedLimit], decisions: &[Decision]) {
    if decisions.iter().all(Decision::is_allowed) {
        return;
    }
    for ((units, matched), decision) in booked.iter_mut().zip(matched_limits).zip(decisions) {
        if decision.is_allowed() || !counts_denied(&matched.numbers) {
            *units = 0;
        }
    }
}

fn counts_denied(limit: &Limit) -> bool {
    matches!(limit, Limit::FixedWindow(window) if window.denied() == Denied::Counted)
}
