//! How a limit is divided, and what its shards are called.

use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use super::MAX_SHARDS;
use crate::key::{Key, Scope};
use crate::scaling::resized;
use crate::store::Charge;

/// A limit in so many parts. Their units are the whole's, as even as whole numbers can be; the rate of
/// a bucket is divided exactly.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    of: u32,
    /// So many of the shards have one unit more.
    larger: u32,
    /// What those have, and the others.
    limits: [Limit; 2],
    units: u64,
}

/// What one shard's state is kept under.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) number: u32,
    scope: Scope,
    tag: Vec<u8>,
    limit: Limit,
}

impl Division {
    /// The division that a charge asks for; `None` if it asks for none, or its limit cannot be divided
    /// and stays whole: shards that space what they let in cannot do so together, places in flight are
    /// released by who took them, and a shard without units would let nobody in.
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
        // If the larger one is a limit, so is the smaller.
        let part = |units: u64| resized(limit, (1, of), |_| units);
        let limits = [part(units.div_ceil(parts))?, part(units / parts)?];
        Some(Self { of, larger: (units % parts) as u32, limits, units })
    }

    /// How many shards there are.
    pub(super) const fn shards(&self) -> u32 {
        self.of
    }

    pub(super) const fn limit(&self, number: u32) -> &Limit {
        &self.limits[if number < self.larger { 0 } else { 1 }]
    }

    /// How many shards, from the first, may ever let in this cost; all of them if none does.
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

    /// What shards said that were asked the same, as the whole would say it as far as they know: the
    /// units left are taken to be as many in the others.
    pub(super) fn whole(&self, asked: &[(u32, Decision)], last: &Decision) -> Decision {
        let all = asked.iter().map(|(_, decision)| decision);
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
    /// The same charge, on this shard. What it is denied on is the shard's and nobody else's.
    pub(super) fn charge<'s>(&'s self, charge: &Charge<'s>) -> Charge<'s> {
        let key = Key { scope: self.scope, text: charge.key.text, tag: &self.tag };
        Charge { key, limit: &self.limit, denied_state: None, ..*charge }
    }
}

/// Two letters that tell the tags of shards apart.
///
/// A cluster finds the slot of a key by CRC-16, which is linear: what two letters change of a slot does
/// not depend on the tag before them. Each bit of a shard's number is given the letters that halve the
/// slots once more. So the first two shards are half of all slots apart, the first four a quarter, and
/// all 256 lie in slots of their own, spread over a cluster's servers as evenly as can be. (Tags that
/// are kept as a hash lie anywhere.)
fn mark(number: u32) -> [u8; 2] {
    const HALVES: [u8; 8] = [0x02, 0x01, 0x7d, 0x39, 0x1b, 0x08, 0x04, 0xf1];
    let bits = HALVES.iter().enumerate().filter(|(bit, _)| number >> bit & 1 == 1);
    let letters = bits.fold(0, |letters, (_, half)| letters ^ half);
    [b'@' | letters >> 4, b'@' | letters & 0xf]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tidegate_core::{Rate, Span};

    use super::*;

    fn units(limit: &Limit) -> u64 {
        limit.decide(&mut State::default(), Timestamp::from_secs(60), Op::Read(0)).limit
    }

    fn built(builder: tidegate_core::Builder) -> Limit {
        builder.build().unwrap()
    }

    /// Whatever the numbers, shards together are the whole: in units exactly, and in rate.
    #[test]
    fn shards_together_are_the_whole() {
        for (count, secs) in [(2, 1), (7, 60), (100, 1), (999_983, 60), (1 << 32, 86_400)] {
            let rate = Rate::new(count, Span::from_secs(secs));
            for limit in [
                built(Limit::token_bucket(rate)),
                built(Limit::gcra(rate).burst(count)),
                built(Limit::fixed_window(rate)),
                built(Limit::fixed_window(rate).count_denied()),
                built(Limit::sliding_window(rate)),
                built(Limit::sliding_log(Rate::new(count.min(1_000_000), rate.per)).large_log()),
            ] {
                for of in 2..=u32::from(MAX_SHARDS) {
                    let Some(division) = Division::new(&limit, of) else {
                        assert!(count < u64::from(of), "{limit:?} in {of}");
                        continue;
                    };
                    let each = (0..of).map(|number| units(division.limit(number)));
                    let (least, most) = (each.clone().min(), each.clone().max());
                    assert_eq!(each.sum::<u64>(), units(&limit), "{limit:?} in {of}");
                    assert!(most <= least.map(|least| least + 1), "{limit:?} in {of}");
                    rate_is_divided(&limit, &division);
                }
            }
        }
    }

    /// One unit takes exactly `of` times as long, in the same fractions.
    fn rate_is_divided(limit: &Limit, division: &Division) {
        let time = |limit: &Limit| match limit {
            Limit::Bucket(it) => {
                let (one, of) = (it.time_of(1).unwrap(), u128::from(it.denominator()));
                Some((u128::from(one.ticks) * of + u128::from(one.part), of))
            }
            _ => None,
        };
        for number in [0, division.shards() - 1] {
            let (Some((whole, of)), Some((part, part_of))) =
                (time(limit), time(division.limit(number)))
            else {
                return;
            };
            let shards = u128::from(division.shards());
            assert_eq!(whole * part_of * shards, part * of, "{limit:?} in {shards}");
        }
    }

    #[test]
    fn what_cannot_be_divided_stays_whole() {
        let whole = [
            built(Limit::gcra(Rate::per_second(100))),
            built(Limit::leaky_bucket(Rate::per_second(100)).burst(50)),
            built(Limit::fixed_window(Rate::per_second(1))),
            built(Limit::fixed_window(Rate::per_second(0))),
            Limit::in_flight(100, Span::from_secs(60)).unwrap(),
        ];
        for limit in whole {
            assert!(Division::new(&limit, 2).is_none(), "{limit:?}");
        }
        let limit = built(Limit::token_bucket(Rate::per_second(10)));
        assert!(Division::new(&limit, 1).is_none() && Division::new(&limit, 11).is_none());
    }

    /// A cost that only some shards can ever let in goes to those.
    #[test]
    fn large_costs_go_to_the_larger_shards() {
        let limit = built(Limit::token_bucket(Rate::per_second(11)));
        let division = Division::new(&limit, 4).unwrap();
        assert_eq!([2, 3, 4].map(|cost| division.eligible(cost)), [4, 3, 4]);
    }

    /// How many shards there are is a part of their keys, and no two keys are the same.
    #[test]
    fn every_shard_of_every_division_has_a_key_of_its_own() {
        let limit = built(Limit::token_bucket(Rate::per_second(1_000)));
        let key = Key::new(Scope::new("a", &limit), b"acme");
        let mut scopes = HashSet::from([key.scope]);
        let mut tags = HashSet::new();
        for of in 2..=u32::from(MAX_SHARDS) {
            let division = Division::new(&limit, of).unwrap();
            for number in 0..of {
                let shard = division.shard(key, number);
                assert!(scopes.insert(shard.scope), "shard {number} of {of}");
                tags.insert(shard.tag);
            }
        }
        assert_eq!(tags.len(), 256);
        let first = Division::new(&limit, 2).unwrap().shard(key, 1);
        assert_eq!(first.tag, b"acme/@B", "the same in every release, lest all state be lost");
    }
}
