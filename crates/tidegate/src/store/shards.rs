//! Divides a key that is too hot for one server into several keys (`shards: n` in a policy).
//!
//! # Law
//! The units of the shards add up to the limit's exactly, and so do the rates of a bucket. Each shard keeps the
//! promise of the limit with its own numbers, so all shards together never admit more than the limit.
//!
//! # Promise
//! Use it for a key with more than about 50,000 decisions per second, which one core of Redis cannot decide; below
//! that, `tier: leased` needs fewer calls and loses less. Units are lost where one shard is exhausted before the
//! others. Measured with eight nodes, each unit of one window requested once:
//!
//! | units, shards | lost | two random shards | one random shard |
//! |---|---|---|---|
//! | 1,000,000 in 10 | 0.0002 % | 0.07 % | 0.14 % |
//! | 100,000 in 10 | 0.003 % | 0.2 % | 0.4 % |
//! | 10,000 in 10 | 0.03 % | 0.6 % | 1.2 % |
//! | 1,000 in 10 | 0.3 % | 2.3 % | 4 % |
//! | 1,000 in 100 | 3 % | 7 % | 12 % |
//!
//! # Choice of a shard
//! Requests for a key take its shards by turns, from another start on each node. A denied request asks one more
//! shard, at random. A shard whose server is known to be unavailable is left out: fewer units are admitted, and no
//! request needs the fallback until all servers are unavailable.
//!
//! # Differences from a whole key
//! - A cost above the units of one shard is always denied.
//! - A denial tells when the sooner of the shards asked is free. `remaining` is estimated from the shards asked.
//! - A read of a single key asks all shards; an explanation is that of the shard with the fewest units left. Resets,
//!   returns and debits go to all shards, and need all their servers.
//! - The number of shards is part of the keys: changing it starts every key afresh, once.
//! - Limits that space requests, in-flight limits, and limits with fewer units than shards stay whole.
//!
//! # Bound
//! [`MAX_SHARDS`] shards per key, two shards per request, 32 KiB for turns.

mod division;
mod spread;

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, Explanation, Op, Outcome, Timestamp};

use self::division::{Division, Shard};
use self::spread::spread;
use super::partition::Partition;
use super::shared::Layers;
use super::{Batch, Charge, DecisionSource, Store, StoreError};
use crate::key::Key;

/// The most shards of one key.
pub const MAX_SHARDS: u16 = 256;

/// Counters of turns; keys with the same counter meet their shards at random.
const TURNS: usize = 4_096;

/// The turns of this node.
#[derive(Debug)]
pub(super) struct ShardTurns {
    /// Where this node begins.
    seed: u64,
    /// The next turn, by a hash of the key.
    turns: Box<[AtomicU64]>,
    asked_again: AtomicU64,
    admitted_again: AtomicU64,
}

/// Requests that asked a second shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Charges that one shard denied and a second was asked for.
    pub asked_again: u64,
    /// Of these, the charges that the second shard admitted.
    pub admitted_again: u64,
}

/// The shards that one charge may go to: the first, and the one to ask if it denies.
struct Choice {
    division: Division,
    asked: Shard,
    other: Option<Shard>,
    /// The decision of each shard that was asked.
    said: Vec<(u32, Decision)>,
}

impl ShardTurns {
    pub(super) fn new(seed: u64) -> Self {
        let turns = (0..TURNS).map(|_| AtomicU64::new(0)).collect();
        Self { seed, turns, asked_again: AtomicU64::new(0), admitted_again: AtomicU64::new(0) }
    }

    pub(super) fn stats(&self) -> ShardStats {
        ShardStats {
            asked_again: self.asked_again.load(Ordering::Relaxed),
            admitted_again: self.admitted_again.load(Ordering::Relaxed),
        }
    }

    /// The shard of a key whose turn it is, and a random number.
    fn turn(&self, key: Key<'_>, of: u32) -> (u32, u64) {
        let number = key.number();
        let turn = self.turns[number as usize % TURNS].fetch_add(1, Ordering::Relaxed);
        let start = mixed(self.seed ^ number);
        let shard = start.wrapping_add(turn) % u64::from(of);
        (shard as u32, mixed(start.wrapping_add(turn)))
    }

    fn count_second(&self, decision: &Decision) {
        self.asked_again.fetch_add(1, Ordering::Relaxed);
        self.admitted_again.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
    }
}

impl Choice {
    fn hear(&mut self, decision: Decision) {
        self.said.retain(|(number, _)| *number != self.asked.number);
        self.said.push((self.asked.number, decision));
    }

    /// Turns to the second shard, if there is one and the first has denied for now.
    fn turn(&mut self) -> bool {
        let is_denied = self.said.last().is_some_and(|(_, it)| it.retry_after().is_some());
        let Some(other) = self.other.take_if(|_| is_denied) else { return false };
        self.asked = other;
        true
    }

    fn whole(&self, last: &Decision) -> Decision {
        let whole = self.division.whole(&self.said, last);
        let outcome = if last.is_allowed() { last.outcome } else { soonest(&self.said) };
        Decision { outcome, ..whole }
    }
}

/// The charges, those of divided keys on the shards that are asked now.
fn on_shards<'s>(charges: &[Charge<'s>], choices: &'s [Option<Choice>]) -> Vec<Charge<'s>> {
    let each = charges.iter().zip(choices);
    each.map(|(charge, choice)| match choice {
        Some(choice) => choice.asked.charge(charge),
        None => *charge,
    })
    .collect()
}

/// A number that looks unrelated to this one (splitmix64).
const fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

/// The denial that ends first.
fn soonest(said: &[(u32, Decision)]) -> Outcome {
    let waits = said.iter().filter_map(|(_, decision)| decision.retry_after());
    Outcome::Deny { retry_after: waits.min() }
}

fn no_decision() -> StoreError {
    StoreError::Protocol("no decision".into())
}

impl<S: Store + 'static> Layers<S> {
    /// Whether a charge may be sent; for a divided key, whether one of its shards may be asked, or all of them
    /// changed.
    pub(super) fn is_shard_sendable(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        let Some(division) = Division::of(charge) else { return self.is_sendable(charge) };
        let sendable =
            |number| self.is_sendable(&division.shard(charge.key, number).charge(charge));
        let mut each = (0..division.shards()).map(sendable);
        match charge.is_deniable() {
            true => each.find(Result::is_ok).unwrap_or_else(|| sendable(0)),
            false => each.collect(),
        }
    }

    /// The endpoint of a charge; of a divided key, that of its first shard.
    pub(super) fn endpoint(&self, charge: &Charge<'_>) -> usize {
        match Division::of(charge) {
            Some(it) => self.endpoints.of(&it.shard(charge.key, 0).charge(charge)),
            None => self.endpoints.of(charge),
        }
    }

    /// Decides charges of divided keys on their shards, and the others as they are.
    pub(super) async fn decide_sharded(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        if charges.iter().all(|charge| charge.options.shards.is_none()) {
            return self.decide_cached(now, batch, decisions).await;
        }
        let takes = charges.iter().all(|charge| matches!(charge.op, Op::Take(_)));
        if batch.is_all_or_nothing() || takes {
            return Box::pin(self.ask_shards(now, batch, decisions)).await;
        }
        Box::pin(self.decide_shards_each(now, batch, decisions)).await
    }

    async fn decide_shards_each(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        let (mut told, mut source) = (Vec::with_capacity(charges.len()), DecisionSource::Store);
        for charge in charges {
            let one = batch.of(slice::from_ref(charge));
            let own = match (Division::of(charge), charge.op) {
                (None, _) => self.decide_cached(now, one, &mut told).await?,
                (Some(_), Op::Take(_)) => self.ask_shards(now, one, &mut told).await?,
                (Some(division), _) => {
                    let (decision, own) = self.decide_whole(now, charge, &division).await?;
                    told.push(decision);
                    own
                }
            };
            source = source.max(own);
        }
        decisions.append(&mut told);
        Ok(source)
    }

    /// Explains a key; of a divided key, the shard with the fewest units left.
    pub(super) async fn explain_sharded(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        let Some(division) = Division::of(charge) else {
            return self.send_explain(now, charge).await;
        };
        let (said, _) = self.ask_all(now, charge, &division, |_| Op::Read(0)).await?;
        let least = said.iter().min_by_key(|(_, decision)| decision.remaining);
        let shard = division.shard(charge.key, least.map_or(0, |(number, _)| *number));
        self.send_explain(now, &shard.charge(charge)).await
    }

    /// Two shards of a charge's key whose servers are not known to be unavailable, if there are.
    fn choose(&self, charge: &Charge<'_>, division: Division) -> Choice {
        let cost = match charge.op {
            Op::Take(cost) | Op::Read(cost) => cost,
            _ => 0,
        };
        let of = division.eligible(cost);
        let (first, chance) = self.shards.turn(charge.key, of);
        let second = (first + 1 + chance as u32 % (of - 1).max(1)) % of;
        let sendable = |from: u32, but: Option<u32>| {
            let numbers = (0..of).map(|step| (from + step) % of).filter(|it| Some(*it) != but);
            let mut shards = numbers.map(|number| division.shard(charge.key, number));
            shards.find(|shard| self.is_sendable(&shard.charge(charge)).is_ok())
        };
        let chosen = sendable(first, None);
        let second = chosen.as_ref().and_then(|chosen| sendable(second, Some(chosen.number)));
        // If all servers are unavailable, sending fails.
        let asked = chosen.unwrap_or_else(|| division.shard(charge.key, first));
        Choice { division, asked, other: second, said: Vec::with_capacity(2) }
    }

    /// Decides takes and reads, each on one shard, and on another if that denies.
    async fn ask_shards(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        whole: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let (charges, is_group) = (batch.charges, batch.is_all_or_nothing());
        let choose = |charge| Division::of(charge).map(|it| self.choose(charge, it));
        let mut choices: Vec<Option<Choice>> = charges.iter().map(choose).collect();
        let mut decisions = Vec::with_capacity(charges.len());
        let first = on_shards(charges, &choices);
        let mut source = self.decide_cached(now, batch.of(&first), &mut decisions).await?;
        for (choice, decision) in choices.iter_mut().zip(&decisions) {
            choice.iter_mut().for_each(|choice| choice.hear(*decision));
        }
        let turns = choices.iter_mut().map(|it| it.as_mut().is_some_and(Choice::turn));
        let again: Vec<bool> = turns.collect();
        // All or nothing: a denial that no other shard can change settles the request; otherwise all are asked.
        let is_settled = |(decision, again): (&Decision, &bool)| !decision.is_allowed() && !again;
        let is_vain = is_group && decisions.iter().zip(&again).any(is_settled);
        if again.contains(&true) && !is_vain {
            let second = on_shards(charges, &choices);
            let partition = Partition::new(&second, |i| is_group || again[i]);
            let mut said = Vec::with_capacity(partition.here.len());
            let asked = self.decide_cached(now, batch.of(&partition.here), &mut said).await;
            // Without an answer, the first shards' decisions stand.
            if let Ok(own) = asked {
                source = source.max(own);
                let kept = decisions.iter().zip(&again).filter(|(_, again)| !is_group && !**again);
                let kept: Vec<Decision> = kept.map(|(decision, _)| *decision).collect();
                decisions.clear();
                partition.merge(said, kept, &mut decisions);
                for ((choice, decision), again) in choices.iter_mut().zip(&decisions).zip(&again) {
                    choice.iter_mut().for_each(|choice| choice.hear(*decision));
                    if *again {
                        self.shards.count_second(decision);
                    }
                }
            }
        }
        whole.extend(decisions.iter().zip(&choices).map(|(decision, choice)| match choice {
            Some(choice) => choice.whole(decision),
            None => *decision,
        }));
        Ok(source)
    }

    /// Carries out an operation on every shard of a key.
    async fn ask_all(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        division: &Division,
        op: impl Fn(u32) -> Op,
    ) -> Result<(Vec<(u32, Decision)>, DecisionSource), StoreError> {
        let shards = (0..division.shards()).map(|number| division.shard(charge.key, number));
        let shards: Vec<Shard> = shards.collect();
        let each = shards.iter().map(|it| Charge { op: op(it.number), ..it.charge(charge) });
        let each: Vec<Charge<'_>> = each.collect();
        let mut said = Vec::with_capacity(each.len());
        let source = self.decide_cached(now, Batch::each(&each), &mut said).await?;
        Ok(((0..).zip(said).collect(), source))
    }

    /// Decides an operation on a key as a whole.
    async fn decide_whole(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        division: &Division,
    ) -> Result<(Decision, DecisionSource), StoreError> {
        let (said, source) = match charge.op {
            Op::Return(units) | Op::Force(units) => {
                let (before, _) = self.ask_all(now, charge, division, |_| Op::Read(0)).await?;
                let gives = matches!(charge.op, Op::Return(_));
                let room = before.iter().map(|(_, it)| match gives {
                    true => it.limit.saturating_sub(it.remaining),
                    false => it.remaining,
                });
                let parts = spread(units, &room.collect::<Vec<_>>());
                let op = |number: u32| match (parts.get(number as usize), gives) {
                    (Some(0) | None, _) => Op::Read(0),
                    (Some(units), true) => Op::Return(*units),
                    (Some(units), false) => Op::Force(*units),
                };
                self.ask_all(now, charge, division, op).await?
            }
            op => self.ask_all(now, charge, division, |_| op).await?,
        };
        let soonest = soonest(&said);
        let allowed = said.iter().map(|(_, it)| it).find(|it| it.is_allowed());
        let last = allowed.or(said.first().map(|(_, it)| it)).copied().ok_or_else(no_decision)?;
        let unbooked = said.iter().map(|(_, it)| it.unbooked).sum();
        let outcome = if allowed.is_some() { last.outcome } else { soonest };
        Ok((Decision { outcome, unbooked, ..division.whole(&said, &last) }, source))
    }
}

#[cfg(test)]
#[path = "shards_tests.rs"]
mod tests;
