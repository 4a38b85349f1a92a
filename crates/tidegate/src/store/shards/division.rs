//! The division of a limit into shards, and the keys of the shards.

use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use super::MAX_SHARDS;
use crate::key::{Key, Scope};
use crate::scaling::resized;
use crate::store::Charge;

/// A limit in several parts. Their units add up to the limit's and differ by at most one; the rate of a bucket
/// is divided exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    of: u32,
    /// Number of shards with one unit more.
    larger: u32,
    /// The limit of these shards, and that of the others.
    limits: [Limit; 2],
    units: u64,
}

/// The key and the limit of one shard.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) number: u32,
    scope: Scope,
    tag: Vec<u8>,
    limit: Limit,
}

impl Division {
    /// The division that a charge asks for; `None` if it asks for none, or its limit cannot be divided: shards
    /// cannot space requests together, an in-flight place is released where it was taken, and a shard without
    /// units would admit nothing.
    pub(super) fn of(charge: &Charge<'_>) -> Option<Self> {
        let of = charge.options.shards?.get().min(MAX_SHARDS);
        Self::new(charge.limit, of.into())
    }

    pub(super) fn new(limit: &Limit, of: u32) -> Option<Self> {
        let units = match limit {
            Limit::Bucket(it) if it.burst() == it.capacity() => it.capacity(),
            Limit::FixedWindow(it) => it.limit(),
            Limit::SlidingWindow(it) => it.limit(),
            Limit::SlidingLog(it) => it.limit(),
            _ => return None,
        };
        let parts = u64::from(of);
        if of < 2 || units < parts {
            return None;
        }
        // If the larger part is a valid limit, so is the smaller.
        let part = |units: u64| resized(limit, (1, of), |_| units);
        let limits = [part(units.div_ceil(parts))?, part(units / parts)?];
        Some(Self { of, larger: (units % parts) as u32, limits, units })
    }

    /// Number of shards.
    pub(super) const fn shards(&self) -> u32 {
        self.of
    }

    pub(super) const fn limit(&self, number: u32) -> &Limit {
        &self.limits[if number < self.larger { 0 } else { 1 }]
    }

    /// Number of shards, from the first, that can admit this cost; all of them if none can.
    pub(super) fn eligible(&self, cost: u64) -> u32 {
        let fits = |limit: &Limit| {
            !limit.decide(&mut State::default(), Timestamp::EPOCH, Op::Read(cost)).is_never()
        };
        match self.limits.each_ref().map(fits) {
            [true, false] if self.larger > 0 => self.larger,
            _ => self.of,
        }
    }

    /// One of the shards of a key.
    pub(super) fn shard(&self, key: Key<'_>, number: u32) -> Shard {
        let mut tag = Vec::with_capacity(key.tag.len() + 3);
        tag.extend_from_slice(key.tag);
        tag.push(b'/');
        tag.extend_from_slice(&mark(number));
        let scope = key.scope.shard(number, self.of);
        Shard { number, scope, tag, limit: *self.limit(number) }
    }

    /// The decision of the whole key, estimated from the decisions of some shards: the other shards are taken
    /// to have as many units left.
    pub(super) fn whole(&self, asked: &[Decision], last: &Decision) -> Decision {
        let all = asked.iter();
        let (left, of) = all.clone().fold((0_u128, 0_u128), |(left, of), it| {
            (left + u128::from(it.remaining), of + u128::from(it.limit))
        });
        let remaining = (left * u128::from(self.units)).checked_div(of).unwrap_or(0);
        Decision {
            limit: self.units,
            remaining: u64::try_from(remaining).unwrap_or(u64::MAX).min(self.units),
            reset_after: all.map(|it| it.reset_after).max().unwrap_or(last.reset_after),
            ..*last
        }
    }
}

impl Shard {
    /// The same charge on this shard. It does not report the denied state, because that state is
    /// the shard's and not the whole key's.
    pub(super) fn charge<'s>(&'s self, charge: &Charge<'s>) -> Charge<'s> {
        let key = Key { scope: self.scope, text: charge.key.text, tag: &self.tag };
        Charge { key, limit: &self.limit, denied_state: None, print: None, ..*charge }
    }
}

/// Two letters that distinguish the tags of shards.
///
/// A cluster computes the slot of a key by CRC-16, which is linear: the effect of two letters on
/// the slot does not depend on the tag before them. Each bit of a shard's number selects letters
/// that halve the distance between slots once more: the first two shards are half of all slots
/// apart, the first four a quarter, and all 256 have different slots, spread over a cluster's
/// servers as evenly as possible. Tags that are stored as a hash have arbitrary slots.
fn mark(number: u32) -> [u8; 2] {
    const HALVES: [u8; 8] = [0x02, 0x01, 0x7d, 0x39, 0x1b, 0x08, 0x04, 0xf1];
    let bits = HALVES.iter().enumerate().filter(|(bit, _)| number >> bit & 1 == 1);
    let letters = bits.fold(0, |letters, (_, half)| letters ^ half);
    [b'@' | letters >> 4, b'@' | letters & 0xf]
}

#[cfg(test)]
#[path = "division_tests.rs"]
mod tests;
