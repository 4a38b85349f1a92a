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
    let all: Vec<&Pick> = picks.iter().collect();
    let mut decisions = Vec::with_capacity(all.len());
    let reads: Vec<Charge<'_>> = all.iter().map(|pick| read(picks, pick, 0)).collect();
    store.decide_each(local, &reads, &mut decisions).await?;
    let (together, _) = picks.split();
    let mut booked: Vec<u64> = Vec::with_capacity(all.len());
    for (number, pick) in all.iter().enumerate() {
        if number == together.len() {
            keep_nothing(&mut booked, &all, &decisions);
        }
        let same = |other: &usize| picks.share_a_state(all[*other], pick);
        let before = (0..number).filter(same).map(|other| booked[other]);
        let before = before.fold(0, u64::saturating_add);
        if before > 0 {
            let mut again = Vec::with_capacity(1);
            store.decide_each(local, &[read(picks, pick, before)], &mut again).await?;
            decisions.splice(number..=number, again);
        }
        if matches!(pick.op, Op::Return(_)) {
            // Giving back is never denied.
            decisions[number].outcome = Outcome::Allow;
        }
        booked.push(units_booked(pick, &decisions[number]));
        answer.parts[pick.part].left = Some(left(pick, &decisions[number], before));
    }
    if together.len() == all.len() {
        keep_nothing(&mut booked, &all, &decisions);
    }
    // Where one of those together is denied, the others keep what they have.
    for (number, pick) in together.iter().enumerate() {
        let part = &mut answer.parts[pick.part];
        part.left = part.left.filter(|_| booked[number] > 0);
    }
    for (pick, decision) in all.iter().zip(decisions) {
        answer.parts[pick.part].decision = Some(decision);
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
fn keep_nothing(booked: &mut [u64], picks: &[&Pick], decisions: &[Decision]) {
    let together = booked.len();
    if decisions[..together].iter().all(Decision::is_allowed) {
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
