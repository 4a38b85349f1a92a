use tidegate_core::algorithm::blocking::Blocking;
use tidegate_core::{Rate, Span};

use super::*;
use crate::scaling::share_of_node;

const AT: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limits() -> [Limit; 5] {
    let rate = Rate::per_minute(60);
    [
        Limit::token_bucket(rate),
        Limit::leaky_bucket(rate).burst(20).queue(40),
        Limit::fixed_window(rate),
        Limit::sliding_window(rate),
        Limit::sliding_log(rate),
    ]
    .map(|builder| builder.build().unwrap())
}

/// Units that the share of one of `nodes` nodes admits at once, `later` than the store admitted
/// `taken`.
fn free(limit: &Limit, nodes: u32, taken: u64, later: Span) -> u64 {
    let (mut store, nodes) = (State::default(), NonZeroU32::new(nodes).unwrap());
    let decision = limit.decide(&mut store, AT, Op::Take(taken));
    assert!(decision.is_allowed());
    let mut state = share_state(limit, nodes, AT, &decision).unwrap();
    share_of_node(limit, nodes).decide(&mut state, AT + later, Op::Read(0)).remaining
}

#[test]
fn an_exhausted_key_stays_exhausted() {
    for limit in limits() {
        for nodes in [1, 2, 3, 7, 40] {
            assert_eq!(free(&limit, nodes, 60, Span::ZERO), 0, "{limit:?}, {nodes} nodes");
        }
    }
}

#[test]
fn a_share_has_the_same_fraction_left() {
    for limit in limits() {
        for (nodes, left) in [(1, 45), (2, 22), (3, 15)] {
            let free = free(&limit, nodes, 30, Span::ZERO);
            assert!(free.abs_diff(left) <= 1, "{free} of {left}: {limit:?}, {nodes} nodes");
        }
    }
}

/// A share refills in the same time as the limit, and no sooner.
#[test]
fn an_exhausted_key_refills_as_its_share_does() {
    for limit in limits() {
        let whole = share_of_node(&limit, NonZeroU32::new(3).unwrap());
        let whole = whole.decide(&mut State::default(), AT, Op::Read(0)).remaining;
        let (mut store, at) = (State::default(), AT + Span::from_secs(7));
        let wait = limit.decide(&mut store, AT, Op::Take(60)).reset_after;
        assert_eq!(free(&limit, 3, 60, wait), whole, "{limit:?}");
        let half = limit.decide(&mut store, at, Op::Read(0)).remaining;
        let mine = free(&limit, 3, 60, Span::from_secs(7));
        assert!(mine * 3 <= half * 3 / 2 + 3, "{mine} of {half}: {limit:?}");
    }
}

#[test]
fn places_in_flight_are_not_remembered() {
    let limit = Limit::in_flight(3, Span::from_secs(1)).unwrap();
    let decision = limit.decide(&mut State::default(), AT, Op::Take(3));
    assert!(share_state(&limit, NonZeroU32::MIN, AT, &decision).is_none());
}

#[test]
fn a_blocked_key_stays_blocked() {
    let block_for = Span::from_secs(600);
    for rate in limits() {
        let limit = Limit::Blocking(Blocking::new(rate, block_for).unwrap());
        let mut store = State::default();
        assert!(limit.decide(&mut store, AT, Op::Take(60)).is_allowed());
        let denied = limit.decide(&mut store, AT, Op::Take(1));
        let nodes = NonZeroU32::new(3).unwrap();
        let (mut state, share) =
            (share_state(&limit, nodes, AT, &denied).unwrap(), share_of_node(&limit, nodes));
        let last = AT + Span::from_micros(block_for.as_micros() - 1);
        assert!(!share.decide(&mut state, last, Op::Take(1)).is_allowed(), "{limit:?}");
        assert!(share.decide(&mut state, AT + block_for, Op::Take(1)).is_allowed(), "{limit:?}");
    }
}
