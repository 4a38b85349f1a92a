use std::collections::HashSet;

use tidegate_core::{Rate, Span};

use super::*;

fn units(limit: &Limit) -> u64 {
    limit.decide(&mut State::default(), Timestamp::from_secs(60), Op::Read(0)).limit
}

fn built(builder: tidegate_core::Builder) -> Limit {
    builder.build().unwrap()
}

/// For any limit, the shards add up to the whole limit: exactly in units, and in rate.
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

/// A cost that only some shards can ever admit goes to those shards.
#[test]
fn large_costs_go_to_the_larger_shards() {
    let limit = built(Limit::token_bucket(Rate::per_second(11)));
    let division = Division::new(&limit, 4).unwrap();
    assert_eq!([2, 3, 4].map(|cost| division.eligible(cost)), [4, 3, 4]);
}

/// The number of shards is part of their keys, and no two keys are equal.
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
