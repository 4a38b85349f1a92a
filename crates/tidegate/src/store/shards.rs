//! A key too hot for one server, divided into several: `shards: n` in a policy, never by itself.
//!
//! # Law
//! *What the parts admit is what the whole admits.* The units of the limit are divided so that they add
//! up to the whole exactly, and the rate of a bucket exactly by n. Each shard keeps the promise of the
//! limit with its own numbers, so all of them together keep that of the whole: never more, whoever asks
//! which.
//!
//! # Promise
//! Choose this when one key is decided on so often that one core of Redis cannot follow: from about
//! 50,000 decisions a second. Below that `tier: leased` asks less often and loses less. It can admit at
//! most what the limit admits. Too few are admitted where one shard is used up before the others; the
//! fewer units a shard has, the more. Measured with eight nodes, each unit of one window offered once:
//!
//! | units, shards | lost here | by chance, and a second time by chance | by chance |
//! |---|---|---|---|
//! | 1,000,000 in 10 | 0.0002 % | 0.07 % | 0.14 % |
//! | 100,000 in 10 | 0.003 % | 0.2 % | 0.4 % |
//! | 10,000 in 10 | 0.03 % | 0.6 % | 1.2 % |
//! | 1,000 in 10 | 0.3 % | 2.3 % | 4 % |
//! | 1,000 in 100 | 3 % | 7 % | 12 % |
//!
//! # Which shard
//! Requests for a key meet its shards by turns, beginning elsewhere on each node; one that is denied asks
//! a second by chance, and no third. A descriptor is all that is known of a request, and a hot key is one
//! descriptor: nothing tells its clients apart, and what would tell them apart makes keys of their own.
//! To keep a node or a client to one shard would lose whatever these do not share alike. Where many
//! keys are divided, they share their turns and meet shards by chance.
//!
//! A shard whose server is known to be away is passed over, so the others go on: fewer are admitted, and
//! nobody has to answer without the store until all are away.
//!
//! # Less exact than a whole key
//! - A cost above what one shard holds is denied for good, though the whole limit has as much.
//! - A denial says when the sooner of the shards asked is free. `remaining` is what they have left, taken
//!   to be as much in the others; `limit` is the whole's.
//! - Reading a key alone asks all shards, one after the other; an explanation is that of the shard that
//!   has least left. Resetting, giving back and booking go to all, as each owes or has room. None of
//!   these is one step, and all need every shard's server.
//! - The number of shards is a part of the keys: who changes it starts everybody afresh, once.
//! - Limits that space what they admit, places in flight, and limits of fewer units than shards stay whole.
//!
//! # Bound
//! [`MAX_SHARDS`] shards of a key. A request asks two of them at most. 32 KiB for turns.

mod division;
mod spread;

use std::hash::{BuildHasher, RandomState};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Decision, Explanation, Op, Outcome, Timestamp};

use self::division::{Division, Shard};
use self::spread::spread;
use super::{Charge, DecisionSource, Store, StoreError};
use crate::key::Key;

/// The most shards of one key.
pub const MAX_SHARDS: u16 = 256;

/// Keys beyond so many share their turns with others, and so meet shards by chance.
const TURNS: usize = 4_096;

/// A store that keeps hot keys in several places.
///
/// ```no_run
/// use tidegate::store::redis::{RedisConfig, RedisStore};
/// use tidegate::store::shards::Shards;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let config = RedisConfig::new("redis+cluster://10.0.0.1:6379")?;
/// let store = Shards::new(RedisStore::connect(config).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Shards<S> {
    store: S,
    /// Where this node begins.
    seed: u64,
    /// Whose turn it is, by a hash of the key.
    turns: Box<[AtomicU64]>,
    asked_again: AtomicU64,
    let_in_again: AtomicU64,
}

/// What second shards were good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardStats {
    /// Charges that one shard denied and a second was asked about.
    pub asked_again: u64,
    /// Those of them that the second let in.
    pub let_in_again: u64,
}

/// The shards that one charge may go to: the first, and the one that is asked if it denies.
struct Choice {
    division: Division,
    shards: [Option<Shard>; 2],
    /// What each said that was asked.
    said: Vec<(u32, Decision)>,
}

impl<S: Store> Shards<S> {
    /// Divides what is asked of `store`, where its options say so.
    pub fn new(store: S) -> Self {
        Self::seeded(store, RandomState::new().hash_one(1_u64))
    }

    /// The same, with shards that are chosen in an order that depends on `seed` alone.
    pub fn seeded(store: S, seed: u64) -> Self {
        let (asked_again, let_in_again) = (AtomicU64::new(0), AtomicU64::new(0));
        let turns = (0..TURNS).map(|_| AtomicU64::new(0)).collect();
        Self { store, seed, turns, asked_again, let_in_again }
    }

    /// The store behind.
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// What second shards were good for.
    pub fn stats(&self) -> ShardStats {
        ShardStats {
            asked_again: self.asked_again.load(Ordering::Relaxed),
            let_in_again: self.let_in_again.load(Ordering::Relaxed),
        }
    }

    /// The shard of a key whose turn it is, of so many, and any number.
    fn turn(&self, key: Key<'_>, of: u32) -> (u32, u64) {
        let number = key.number();
        let turn = self.turns[number as usize % TURNS].fetch_add(1, Ordering::Relaxed);
        let start = mixed(self.seed ^ number);
        let shard = start.wrapping_add(turn) % u64::from(of);
        (shard as u32, mixed(start.wrapping_add(turn)))
    }

    /// Two shards of a charge's key whose servers are not known to be away, if there are.
    fn choose(&self, now: Timestamp, charge: &Charge<'_>, division: Division) -> Choice {
        let cost = match charge.op {
            Op::Take(cost) | Op::Read(cost) => cost,
            _ => 0,
        };
        let of = division.eligible(cost);
        let (first, chance) = self.turn(charge.key, of);
        let second = (first + 1 + chance as u32 % (of - 1).max(1)) % of;
        let ready = |from: u32, but: Option<u32>| {
            let numbers = (0..of).map(|step| (from + step) % of).filter(|it| Some(*it) != but);
            let mut shards = numbers.map(|number| division.shard(charge.key, number));
            shards.find(|shard| self.store.ready(now, &shard.charge(charge)).is_ok())
        };
        let chosen = ready(first, None);
        let second = chosen.as_ref().and_then(|chosen| ready(second, Some(chosen.number)));
        // If all are away, the store says so.
        let chosen = chosen.unwrap_or_else(|| division.shard(charge.key, first));
        Choice { division, shards: [Some(chosen), second], said: Vec::with_capacity(2) }
    }

    /// Decides what takes and reads, on one shard each, and where those deny on another.
    async fn ask(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        together: bool,
    ) -> Result<(Vec<Decision>, DecisionSource), StoreError> {
        let choose = |charge| Division::of(charge).map(|it| self.choose(now, charge, it));
        let mut choices: Vec<Option<Choice>> = charges.iter().map(choose).collect();
        let all = vec![true; charges.len()];
        let (mut decisions, mut decision_source) =
            (Vec::with_capacity(charges.len()), DecisionSource::Store);
        for attempt in 0..2 {
            let again: Vec<bool> = match attempt {
                0 => all.clone(),
                _ => choices.iter_mut().map(|it| it.as_mut().is_some_and(Choice::turn)).collect(),
            };
            // All or nothing: one that nobody else can let in settles it for all.
            let is_settled =
                |(decision, again): (&Decision, &bool)| !decision.is_allowed() && !again;
            let is_vain = together && decisions.iter().zip(&again).any(is_settled);
            if is_vain || !again.contains(&true) {
                break;
            }
            let asked = if together { &all } else { &again };
            let each = charges.iter().zip(&choices).zip(asked);
            let each =
                each.filter(|(_, asked)| **asked).map(|((charge, choice), _)| match choice {
                    Some(choice) => choice.charge(charge),
                    None => *charge,
                });
            let (each, mut said): (Vec<Charge<'_>>, _) = (each.collect(), Vec::new());
            let answered = match together {
                true => self.store.decide(now, &each, &mut said).await,
                false => self.store.decide_each(now, &each, &mut said).await,
            };
            drop(each);
            match answered {
                Ok(own) => decision_source = decision_source.max(own),
                Err(error) if attempt == 0 => return Err(error),
                // What the first ones said holds.
                Err(_) => break,
            }
            let mut said = said.into_iter();
            let mut told = Vec::with_capacity(charges.len());
            for (number, choice) in choices.iter_mut().enumerate() {
                let fresh = if asked[number] { said.next() } else { None };
                let decision = fresh.or_else(|| decisions.get(number).copied());
                let decision =
                    decision.ok_or_else(|| StoreError::Protocol("no decision".into()))?;
                if let (Some(choice), Some(fresh)) = (choice, fresh) {
                    choice.hear(fresh);
                    self.count(attempt == 1 && again[number], &fresh);
                }
                told.push(decision);
            }
            decisions = told;
        }
        let whole = decisions.iter().zip(&choices).map(|(decision, choice)| match choice {
            Some(choice) => choice.whole(decision),
            None => *decision,
        });
        Ok((whole.collect(), decision_source))
    }

    fn count(&self, is_second: bool, decision: &Decision) {
        if is_second {
            self.asked_again.fetch_add(1, Ordering::Relaxed);
            self.let_in_again.fetch_add(u64::from(decision.is_allowed()), Ordering::Relaxed);
        }
    }

    /// Does something to every shard of a key.
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
        let decision_source = self.store.decide_each(now, &each, &mut said).await?;
        Ok(((0..).zip(said).collect(), decision_source))
    }

    /// Decides what is done to a key as a whole.
    async fn decide_whole(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        division: &Division,
    ) -> Result<(Decision, DecisionSource), StoreError> {
        let (said, decision_source) = match charge.op {
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
        let last = allowed.or(said.first().map(|(_, it)| it)).copied();
        let last = last.ok_or_else(|| StoreError::Protocol("no decision".into()))?;
        let unbooked = said.iter().map(|(_, it)| it.unbooked).sum();
        let outcome = if allowed.is_some() { last.outcome } else { soonest };
        Ok((Decision { outcome, unbooked, ..division.whole(&said, &last) }, decision_source))
    }
}

impl Choice {
    /// The charge on the shard that is asked now.
    fn charge<'s>(&'s self, charge: &Charge<'s>) -> Charge<'s> {
        self.shards[0].as_ref().map_or(*charge, |shard| shard.charge(charge))
    }

    fn hear(&mut self, decision: Decision) {
        let Some(shard) = &self.shards[0] else { return };
        // Of two answers the later counts.
        self.said.retain(|(number, _)| *number != shard.number);
        self.said.push((shard.number, decision));
    }

    /// Turns to the second shard, if the first has denied for now and there is one.
    fn turn(&mut self) -> bool {
        let is_denied = self.said.last().is_some_and(|(_, it)| it.retry_after().is_some());
        let turns = is_denied && self.shards[1].is_some();
        if turns {
            self.shards.swap(0, 1);
        }
        turns
    }

    fn whole(&self, last: &Decision) -> Decision {
        let whole = self.division.whole(&self.said, last);
        let outcome = if last.is_allowed() { last.outcome } else { soonest(&self.said) };
        Decision { outcome, ..whole }
    }
}

/// A number that has nothing in common with this one (splitmix64).
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

/// Whether nothing of this is divided, as nearly always.
#[inline(always)]
fn is_whole(charges: &[Charge<'_>]) -> bool {
    charges.iter().all(|charge| charge.options.shards.is_none())
}

impl<S: Store> Store for Shards<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if is_whole(charges) {
            return self.store.decide(now, charges, decisions).await;
        }
        if charges.len() == 1 || !charges.iter().all(Charge::is_deniable) {
            return self.decide_each(now, charges, decisions).await;
        }
        let (mut said, decision_source) = self.ask(now, charges, true).await?;
        decisions.append(&mut said);
        Ok(decision_source)
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if is_whole(charges) {
            return self.store.decide_each(now, charges, decisions).await;
        }
        if charges.iter().all(|charge| matches!(charge.op, Op::Take(_))) {
            let (mut said, decision_source) = self.ask(now, charges, false).await?;
            decisions.append(&mut said);
            return Ok(decision_source);
        }
        let (mut told, mut decision_source) =
            (Vec::with_capacity(charges.len()), DecisionSource::Store);
        for charge in charges {
            let own = match (Division::of(charge), charge.op) {
                (None, _) => self.store.decide(now, slice::from_ref(charge), &mut told).await?,
                (Some(_), Op::Take(_)) => {
                    let (mut said, own) = self.ask(now, slice::from_ref(charge), false).await?;
                    told.append(&mut said);
                    own
                }
                (Some(division), _) => {
                    let (decision, own) = self.decide_whole(now, charge, &division).await?;
                    told.push(decision);
                    own
                }
            };
            decision_source = decision_source.max(own);
        }
        decisions.append(&mut told);
        Ok(decision_source)
    }

    #[inline]
    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        if is_whole(slice::from_ref(charge)) {
            self.store.try_decide_locally(now, charge)
        } else {
            None
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        let Some(division) = Division::of(charge) else {
            return self.store.explain(now, charge).await;
        };
        let (said, _) = self.ask_all(now, charge, &division, |_| Op::Read(0)).await?;
        let least = said.iter().min_by_key(|(_, decision)| decision.remaining);
        let shard = division.shard(charge.key, least.map_or(0, |(number, _)| *number));
        self.store.explain(now, &shard.charge(charge)).await
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        match Division::of(charge) {
            Some(it) => self.store.endpoint(&it.shard(charge.key, 0).charge(charge)),
            None => self.store.endpoint(charge),
        }
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        let Some(division) = Division::of(charge) else { return self.store.ready(now, charge) };
        let ready =
            |number| self.store.ready(now, &division.shard(charge.key, number).charge(charge));
        let mut each = (0..division.shards()).map(ready);
        match charge.is_deniable() {
            // One is enough to ask.
            true => each.find(Result::is_ok).unwrap_or_else(|| ready(0)),
            false => each.collect(),
        }
    }

    fn limits_changed(&self) {
        self.store.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}

#[cfg(test)]
#[path = "shards_tests.rs"]
mod tests;
