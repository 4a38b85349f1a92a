//! What charging a request would say, without charging it.
//!
//! Reads alone are not enough: where one request meets the same state twice, the second charge sees
//! the first, and so must the second read.

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Decision, Limit, Op, Outcome, Timestamp};

use super::answer::Answer;
use super::picks::{Pick, Picks};
use crate::store::{Charge, Store, StoreError};

/// Reads what every pick would say in its turn, and tells the parts of the answer.
pub(super) async fn foresee<S: Store>(
    store: &S,
    local: Timestamp,
    picks: &Picks,
    answer: &mut Answer,
) -> Result<(), StoreError> {
    let (together, quotas, others) = picks.split();
    let all: Vec<&Pick> = quotas.iter().chain(together).chain(others).collect();
    let group = quotas.len()..quotas.len() + together.len();
    let mut decisions = Vec::with_capacity(all.len());
    let reads: Vec<Charge<'_>> = all.iter().map(|pick| read(picks, pick, 0)).collect();
    answer.basis = store.decide_each(local, &reads, &mut decisions).await?;
    let mut booked: Vec<u64> = Vec::with_capacity(all.len());
    let mut is_denied = false;
    for (number, pick) in all.iter().enumerate() {
        if number == group.start {
            is_denied = answer.quota_that_denies().is_some();
        }
        if number == group.end {
            keep_nothing(&mut booked[group.clone()], together, &decisions[group.clone()]);
        }
        // What quotas deny is not charged.
        let is_charged = !(is_denied && group.contains(&number));
        let same = |other: &usize| is_charged && picks.share_a_state(all[*other], pick);
        let before = (0..number).filter(same).map(|other| booked[other]);
        let before = before.fold(0, u64::saturating_add);
        if before > 0 {
            let mut again = Vec::with_capacity(1);
            let basis = store.decide_each(local, &[read(picks, pick, before)], &mut again).await?;
            answer.basis = answer.basis.max(basis);
            decisions.splice(number..=number, again);
        }
        if matches!(pick.op, Op::Return(_)) {
            // Giving back is never denied.
            decisions[number].outcome = Outcome::Allow;
        }
        let decision = decisions[number];
        booked.push(if is_charged { units_booked(pick, &decision) } else { 0 });
        let part = &mut answer.parts[pick.part];
        part.hear(pick, decision);
        if !pick.in_front {
            part.left = Some(left(pick, &decision, before));
        }
    }
    if group.end == all.len() {
        keep_nothing(&mut booked[group.clone()], together, &decisions[group.clone()]);
    }
    // Where one of those together is denied, the others keep what they have.
    for (number, pick) in group.zip(together) {
        let part = &mut answer.parts[pick.part];
        part.left = part.left.filter(|_| booked[number] > 0);
    }
    Ok(())
}

/// The question whether what a pick takes would fit after so many units more.
fn read<'p>(picks: &'p Picks, pick: &'p Pick, before: u64) -> Charge<'p> {
    let cost = match pick.op {
        Op::Take(cost) => cost,
        _ => 0,
    };
    Charge { op: Op::Read(cost.saturating_add(before)), ..picks.charge(pick) }
}

/// What a pick would add to its state.
fn units_booked(pick: &Pick, decision: &Decision) -> u64 {
    match pick.op {
        Op::Take(cost) if decision.is_allowed() || counts_denied(&pick.numbers) => cost,
        _ => 0,
    }
}

/// What a pick would leave to be taken.
fn left(pick: &Pick, decision: &Decision, before: u64) -> u64 {
    let free = decision.remaining.saturating_sub(before);
    match pick.op {
        Op::Return(units) => free.saturating_add(units).min(decision.limit),
        _ => free.saturating_sub(units_booked(pick, decision)),
    }
}

/// Of charges that are taken together, one denied lets none be booked; what a window counts though
/// it denies, it counts all the same.
fn keep_nothing(booked: &mut [u64], picks: &[Pick], decisions: &[Decision]) {
    if decisions.iter().all(Decision::is_allowed) {
        return;
    }
    for ((units, pick), decision) in booked.iter_mut().zip(picks).zip(decisions) {
        if decision.is_allowed() || !counts_denied(&pick.numbers) {
            *units = 0;
        }
    }
}

fn counts_denied(limit: &Limit) -> bool {
    matches!(limit, Limit::FixedWindow(window) if window.denied() == Denied::Counted)
}
