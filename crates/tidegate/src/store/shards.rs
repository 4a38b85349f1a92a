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
//! | units, shards | lost | with a random shard |
//! |---|---|---|
//! | 1,000,000 in 10 | 0.0002 % | 0.14 % |
//! | 100,000 in 10 | 0.005 % | 0.4 % |
//! | 10,000 in 10 | 0.05 % | 1.2 % |
//! | 1,000 in 10 | 0.5 % | 4 % |
//! | 1,000 in 100 | 4.5 % | 12 % |
//!
//! # Choice of a shard
//! Requests for a key use its shards in turn, starting at a different shard on each node. A shard
//! whose server is known to be unavailable is skipped: fewer units are admitted, and no request
//! needs the fallback until all servers are unavailable.
//!
//! # Differences from a whole key
//! - A cost above the units of one shard is always denied.
//! - `retry_after` is that of the shard asked, and `remaining` is estimated from it.
//! - A read of a single key asks all shards. An explanation describes the shard with the fewest
//!   units left. Resets, returns and debits go to all shards, and need all their servers.
//! - The number of shards is part of the keys, so changing it resets every key once.
//! - Limits that space requests, in-flight limits, and limits with fewer units than shards are not
//!   divided.
//!
//! # Bound
//! [`MAX_SHARDS`] shards per key, one shard per request, 32 KiB for turns.

mod division;
mod spread;

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, Explanation, Op, Outcome, Timestamp};

use self::division::{Division, Shard};
use self::spread::spread;
use super::shared::Layers;
use super::{Batch, Charge, DecisionSource, Store, StoreError};
use crate::key::Key;

/// The most shards of one key.
pub const MAX_SHARDS: u16 = 256;

/// Number of turn counters. Keys that share a counter use their shards in a random order.
const TURNS: usize = 4_096;

/// The turns of this node.
#[derive(Debug)]
pub(super) struct ShardTurns {
    /// Determines the shard that this node starts at.
    seed: u64,
    /// The next turn, indexed by a hash of the key.
    turns: Box<[AtomicU64]>,
}

impl ShardTurns {
    pub(super) fn new(seed: u64) -> Self {
        let turns = (0..TURNS).map(|_| AtomicU64::new(0)).collect();
        Self { seed, turns }
    }

    /// The number of the shard whose turn it is.
    fn turn(&self, key: Key<'_>, of: u32) -> u32 {
        let number = key.number();
        let turn = self.turns[number as usize % TURNS].fetch_add(1, Ordering::Relaxed);
        (mixed(self.seed ^ number).wrapping_add(turn) % u64::from(of)) as u32
    }
}

/// Mixes the bits of a number (splitmix64).
const fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl<S: Store + 'static> Layers<S> {
    /// Checks whether a charge may be sent. Of a divided key, a take or a read needs one available
    /// shard, and any other operation needs all of them.
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
        let least = (0..).zip(&said).min_by_key(|(_, decision)| decision.remaining);
        let shard = division.shard(charge.key, least.map_or(0, |(number, _)| number));
        self.send_explain(now, &shard.charge(charge)).await
    }

    /// The shard whose turn it is, or the next shard whose server is not known to be unavailable.
    fn choose(&self, charge: &Charge<'_>, division: &Division) -> Shard {
        let cost = match charge.op {
            Op::Take(cost) | Op::Read(cost) => cost,
            _ => 0,
        };
        let of = division.eligible(cost);
        let first = self.shards.turn(charge.key, of);
        let shard = |step: u32| division.shard(charge.key, (first + step) % of);
        let sendable = |shard: &Shard| self.is_sendable(&shard.charge(charge)).is_ok();
        // If all servers are unavailable, sending fails.
        (0..of).map(shard).find(sendable).unwrap_or_else(|| shard(0))
    }

    /// Decides takes and reads, each on one shard.
    async fn ask_shards(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        whole: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let choose = |charge: &Charge<'_>| {
            let division = Division::of(charge)?;
            Some((division, self.choose(charge, &division)))
        };
        let chosen: Vec<Option<(Division, Shard)>> = batch.charges.iter().map(choose).collect();
        let asked = batch.charges.iter().zip(&chosen).map(|(charge, chosen)| match chosen {
            Some((_, shard)) => shard.charge(charge),
            None => *charge,
        });
        let (asked, before): (Vec<Charge<'_>>, _) = (asked.collect(), whole.len());
        let source = self.decide_cached(now, batch.of(&asked), whole).await?;
        for (decision, chosen) in whole[before..].iter_mut().zip(&chosen) {
            if let Some((division, _)) = chosen {
                *decision = division.whole(&[*decision], decision);
            }
        }
        Ok(source)
    }

    /// Carries out an operation on every shard of a key.
    async fn ask_all(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        division: &Division,
        op: impl Fn(u32) -> Op,
    ) -> Result<(Vec<Decision>, DecisionSource), StoreError> {
        let shards = (0..division.shards()).map(|number| division.shard(charge.key, number));
        let shards: Vec<Shard> = shards.collect();
        let each = shards.iter().map(|it| Charge { op: op(it.number), ..it.charge(charge) });
        let each: Vec<Charge<'_>> = each.collect();
        let mut said = Vec::with_capacity(each.len());
        let source = self.decide_cached(now, Batch::each(&each), &mut said).await?;
        Ok((said, source))
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
                let room = before.iter().map(|it| match gives {
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
        let allowed = said.iter().find(|it| it.is_allowed());
        let none = || StoreError::Protocol("no decision".into());
        let last = *allowed.or(said.first()).ok_or_else(none)?;
        let outcome = match allowed {
            Some(allowed) => allowed.outcome,
            // No shard admits it: the denial that ends first.
            None => {
                Outcome::Deny { retry_after: said.iter().filter_map(Decision::retry_after).min() }
            }
        };
        let unbooked = said.iter().map(|it| it.unbooked).sum();
        Ok((Decision { outcome, unbooked, ..division.whole(&said, &last) }, source))
    }
}

#[cfg(test)]
#[path = "shards_tests.rs"]
mod tests;
