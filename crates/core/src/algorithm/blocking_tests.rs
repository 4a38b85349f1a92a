use super::*;
use crate::rate::Rate;

const START: Timestamp = Timestamp::from_secs(1_577_836_800);

fn second(number: u64) -> Timestamp {
    START + Span::from_secs(number)
}

/// Two per minute, and ten minutes of block.
fn limits() -> [Blocking; 4] {
    let rate = Rate::per_minute(2);
    [
        Limit::token_bucket(rate),
        Limit::fixed_window(rate),
        Limit::sliding_window(rate),
        Limit::sliding_log(rate),
    ]
    .map(|builder| Blocking::new(builder.build().unwrap(), Span::from_secs(600)).unwrap())
}

fn wait(decision: Decision) -> u64 {
    decision.retry_after().expect("a denial with a wait").as_micros() / 1_000_000
}

#[test]
fn the_first_denial_starts_the_block_and_later_ones_do_not_extend_it() {
    for limit in limits() {
        let mut state = BlockingState::default();
        let mut take = |at| limit.decide(&mut state, second(at), Op::Take(1));
        assert!(take(0).is_allowed() && take(0).is_allowed(), "{limit:?}");
        let first = take(1);
        assert_eq!((wait(first), first.remaining), (600, 0), "{limit:?}");
        for at in [2, 100, 300, 600] {
            assert_eq!(wait(take(at)), 601 - at, "{limit:?}");
        }
        assert!(take(601).is_allowed(), "{limit:?}");
    }
}

/// What the take would answer, without starting the block.
#[test]
fn a_peek_starts_no_block() {
    for limit in limits() {
        let mut state = BlockingState::default();
        limit.decide(&mut state, second(0), Op::Take(2));
        let before = state.clone();
        let read = limit.decide(&mut state, second(1), Op::Read(1));
        assert_eq!((wait(read), &state), (600, &before), "{limit:?}");
        assert!(limit.decide(&mut state, second(61), Op::Take(1)).is_allowed(), "{limit:?}");
    }
}

#[test]
fn a_cost_that_never_fits_starts_no_block() {
    for limit in limits() {
        let mut state = BlockingState::default();
        assert!(limit.decide(&mut state, second(0), Op::Take(3)).is_never());
        assert!(limit.decide(&mut state, second(0), Op::Take(2)).is_allowed(), "{limit:?}");
    }
}

#[test]
fn an_operator_sets_and_lifts_a_block() {
    for limit in limits() {
        let mut state = BlockingState::default();
        limit.decide(&mut state, second(0), Op::Block(Span::from_secs(7_200)));
        assert_eq!(wait(limit.decide(&mut state, second(1), Op::Take(1))), 7_199);
        limit.decide(&mut state, second(2), Op::Block(Span::ZERO));
        assert!(limit.decide(&mut state, second(2), Op::Take(2)).is_allowed(), "{limit:?}");
        // A reset lifts it as well.
        assert!(!limit.decide(&mut state, second(3), Op::Take(1)).is_allowed());
        limit.decide(&mut state, second(3), Op::Reset);
        assert!(limit.decide(&mut state, second(3), Op::Take(2)).is_allowed(), "{limit:?}");
        assert_eq!(state.block, Block::default());
        let long = Span::from_secs(365 * 86_400);
        limit.decide(&mut state, second(3), Op::Block(long));
        assert_eq!(wait(limit.decide(&mut state, second(3), Op::Take(1))), 30 * 86_400);
    }
}

/// Units that come back do not end a block.
#[test]
fn a_return_leaves_the_block() {
    for limit in limits() {
        let mut state = BlockingState::default();
        limit.decide(&mut state, second(0), Op::Take(2));
        limit.decide(&mut state, second(0), Op::Take(1));
        let returned = limit.decide(&mut state, second(1), Op::Return(2));
        assert_eq!((returned.remaining, returned.is_allowed()), (0, true), "{limit:?}");
        assert_eq!(wait(limit.decide(&mut state, second(1), Op::Take(1))), 599, "{limit:?}");
    }
}

#[test]
fn a_clock_that_goes_back_does_not_lengthen_a_block() {
    for limit in limits() {
        let mut state = BlockingState::default();
        limit.decide(&mut state, second(10_000), Op::Block(Span::from_secs(600)));
        assert!(limit.is_ahead(&state, second(0)), "{limit:?}");
        assert_eq!(wait(limit.decide(&mut state, second(0), Op::Take(1))), 600, "{limit:?}");
        assert!(limit.decide(&mut state, second(600), Op::Take(1)).is_allowed(), "{limit:?}");
    }
}

/// Then the rate is ahead as well. It is repaired under the block, as it is without one.
#[test]
fn a_clock_that_goes_back_during_a_block_leaves_the_wait_exact() {
    for limit in limits() {
        let mut state = BlockingState::default();
        let mut take = |at| limit.decide(&mut state, second(at), Op::Take(1));
        assert!(take(1_000_000).is_allowed() && take(1_000_000).is_allowed(), "{limit:?}");
        assert_eq!(wait(take(1_000_000)), 600, "{limit:?}");
        assert_eq!(wait(take(0)), 600, "{limit:?}");
        assert_eq!(wait(take(599)), 1, "{limit:?}");
        assert!(take(600).is_allowed(), "{limit:?}");
    }
}

/// A window that counts denied requests counts none that the block denies, also while it repairs.
#[test]
fn a_block_counts_no_denied_request() {
    let rate = Limit::fixed_window(Rate::per_minute(2)).count_denied().build().unwrap();
    let limit = Blocking::new(rate, Span::from_secs(600)).unwrap();
    let mut state = BlockingState::default();
    limit.decide(&mut state, second(1_000_000), Op::Block(Span::from_secs(30)));
    limit.decide(&mut state, second(1_000_000), Op::Force(2));
    for at in [0, 1, 2] {
        assert_eq!(wait(limit.decide(&mut state, second(at), Op::Take(1))), 30 - at);
    }
    assert!(limit.decide(&mut state, second(30), Op::Take(2)).is_allowed());
}

#[test]
fn only_rates_have_a_block_of_up_to_thirty_days() {
    let rate = Limit::token_bucket(Rate::per_minute(2)).build().unwrap();
    let minute = Span::from_secs(60);
    let in_flight = Limit::in_flight(2, minute).unwrap();
    assert_eq!(Blocking::new(in_flight, minute), Err(InvalidLimit::BlockOutsideRate));
    let twice = Limit::Blocking(Blocking::new(rate, minute).unwrap());
    assert_eq!(Blocking::new(twice, minute), Err(InvalidLimit::BlockOutsideRate));
    let long = Blocking::MAX_BLOCK + Span::from_micros(1);
    for wrong in [Span::ZERO, long] {
        assert_eq!(Blocking::new(rate, wrong), Err(InvalidLimit::BlockTime));
    }
}

#[test]
fn an_explanation_names_the_end_of_the_block() {
    let [limit, ..] = limits();
    let mut state = BlockingState::default();
    limit.decide(&mut state, second(0), Op::Take(2));
    limit.decide(&mut state, second(0), Op::Take(1));
    let explained = limit.explain(&state, second(0));
    assert_eq!((explained.remaining, explained.next_allowed_at), (0, Some(second(600))));
    assert_eq!(explained.idle_at, second(600));
}
