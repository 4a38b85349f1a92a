//! Scales the numbers of a limit, for shares and percentages.

use std::num::NonZeroU32;

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Limit, Rate, Span};

/// `times / out_of` of a limit: its units rounded down, at least one if the limit has any; a
/// bucket's rate exactly. The refill or window takes at most as long as the limit's. `None` if the
/// result is no valid limit.
pub(crate) fn scaled(limit: &Limit, times: u32, out_of: u32) -> Option<Limit> {
    let share = |count: u64| {
        let share = u128::from(count) * u128::from(times) / u128::from(out_of.max(1));
        u64::try_from(share).unwrap_or(u64::MAX).max(u64::from(count > 0))
    };
    resized(limit, (times, out_of), share)
}

/// The factor of a node's share, above 1 because nodes do not get the same traffic: 3 / 2.
const MORE: (u32, u32) = (3, 2);

/// The local limit of one of `nodes` nodes: rate and units times 1.5, divided by the nodes. The
/// limit itself if it cannot be divided.
pub(crate) fn share_of_node(limit: &Limit, nodes: NonZeroU32) -> Limit {
    let (times, out_of) = MORE;
    scaled(limit, times, out_of.saturating_mul(nodes.get())).unwrap_or(*limit)
}

/// The part of `used` units that counts towards the share of one node, rounded up.
pub(crate) fn units_of_share(used: u64, nodes: NonZeroU32) -> u64 {
    let (times, out_of) = (u128::from(MORE.0), u128::from(MORE.1) * u128::from(nodes.get()));
    u64::try_from((u128::from(used) * times).div_ceil(out_of)).unwrap_or(u64::MAX)
}

/// The factor of the share of a node whose store has not answered since the start: 1 / 4.
const FIRST: (u32, u32) = (1, 4);

/// The local limit of one of `nodes` nodes before its store has answered: rate and units divided by
/// four times the nodes. The limit itself if it cannot be divided.
pub(crate) fn first_share_of_node(limit: &Limit, nodes: NonZeroU32) -> Limit {
    let (times, out_of) = FIRST;
    scaled(limit, times, out_of.saturating_mul(nodes.get())).unwrap_or(*limit)
}

/// The limit with `share` of its units, and `times / out_of` of a bucket's rate.
pub(crate) fn resized(
    limit: &Limit,
    (times, out_of): (u32, u32),
    share: impl Fn(u64) -> u64 + Copy,
) -> Option<Limit> {
    let window = |count, length| Rate::new(share(count), length);
    match limit {
        Limit::FixedWindow(it) => {
            let other = Limit::fixed_window(window(it.limit(), it.length())).offset(it.offset());
            match it.denied() {
                Denied::Counted => other.count_denied().build().ok(),
                Denied::Ignored => other.build().ok(),
            }
        }
        Limit::SlidingWindow(it) => {
            Limit::sliding_window(window(it.limit(), it.length())).build().ok()
        }
        Limit::SlidingLog(it) => {
            Limit::sliding_log(window(it.limit(), it.length())).large_log().build().ok()
        }
        Limit::Bucket(it) => {
            // The time of one unit is ticks + part / denominator, scaled by out_of / times.
            let (one, denominator) = (it.time_of(1)?, u128::from(it.denominator()));
            let time = u128::from(one.ticks) * denominator + u128::from(one.part);
            let (count, per) = (u128::from(times) * denominator, time * u128::from(out_of));
            let divisor = greatest_common_divisor(count, per);
            let (count, per) = (u64::try_from(count / divisor), u64::try_from(per / divisor));
            let rate = Rate::new(count.ok()?, Span::from_micros(per.ok()?));
            let waiting = it.capacity() - it.burst();
            let other = match waiting {
                0 => Limit::token_bucket(rate).burst(share(it.capacity())),
                _ => Limit::leaky_bucket(rate).burst(share(it.burst())).queue(share(waiting)),
            };
            other.build().ok()
        }
        Limit::InFlight(it) => Limit::in_flight(share(it.limit()), it.ttl()).ok(),
        Limit::Blocking(it) => {
            resized(&it.rate(), (times, out_of), share)?.blocking(it.block_for()).ok()
        }
        _ => None,
    }
}

/// The same bucket with another capacity; `None` for other algorithms.
pub(crate) fn with_capacity(limit: &Limit, capacity: u64) -> Option<Limit> {
    let Limit::Bucket(bucket) = limit else { return None };
    let one = bucket.time_of(1)?;
    let per = one.ticks.checked_mul(bucket.denominator())?.checked_add(one.part)?;
    let rate = Rate::new(bucket.denominator(), Span::from_micros(per));
    Limit::token_bucket(rate).burst(capacity).build().ok()
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Op, State, Timestamp};

    use super::*;

    fn capacity(limit: &Limit) -> u64 {
        limit.decide(&mut State::default(), Timestamp::EPOCH, Op::Read(0)).limit
    }

    /// Units that a key admits in `secs` seconds, tried every millisecond.
    fn admitted(limit: &Limit, secs: u64) -> u64 {
        let mut state = State::default();
        let start = Timestamp::from_secs(1_000_000_020);
        let ask = |millis: &u64| {
            let now = start + Span::from_millis(*millis);
            limit.decide(&mut state, now, Op::Take(1)).is_allowed()
        };
        (0..secs * 1_000).filter(ask).count() as u64
    }

    #[test]
    fn a_share_is_rounded_down_and_never_nothing() {
        let rate = Rate::per_minute(7);
        for builder in [
            Limit::token_bucket(rate),
            Limit::fixed_window(rate),
            Limit::sliding_window(rate),
            Limit::sliding_log(rate),
        ] {
            let limit = builder.build().unwrap();
            for (nodes, expected) in [(1, 10), (2, 5), (4, 2), (8, 1), (1_000, 1)] {
                let share = scaled(&limit, 3, 2 * nodes).unwrap();
                assert_eq!(capacity(&share), expected, "{limit:?} on {nodes} nodes");
            }
        }
        let none = Limit::fixed_window(Rate::per_minute(0)).build().unwrap();
        assert_eq!(capacity(&scaled(&none, 3, 2).unwrap()), 0, "nothing stays nothing");
    }

    /// Half as much again over all nodes, and no more.
    #[test]
    fn shares_of_all_nodes_together_are_one_and_a_half() {
        let limit = Limit::token_bucket(Rate::per_second(100)).burst(40).build().unwrap();
        for nodes in [1, 2, 4, 5] {
            let share = scaled(&limit, 3, 2 * nodes).unwrap();
            let all = u64::from(nodes) * admitted(&share, 10);
            assert!(all <= 60 + 1_500 && all > 1_500 - u64::from(nodes), "{nodes}: {all}");
        }
    }

    #[test]
    fn a_leaky_bucket_goes_on_pacing() {
        let limit = Limit::leaky_bucket(Rate::per_second(10)).queue(20).build().unwrap();
        let share = scaled(&limit, 3, 4).unwrap();
        let mut state = State::default();
        let mut take = || share.decide(&mut state, Timestamp::from_secs(1), Op::Take(1)).delay();
        let (first, second) = (take(), take());
        assert!(first.is_zero() && second == Span::from_micros(133_334), "{first} {second}");
        assert_eq!(capacity(&share), 16);
    }
}
