//! Units returned as far as they are owed: never more than if they had not been taken.

use proptest::prelude::*;
use tidegate_core::{Algorithm, Decision, Limit, Op, Rate, Span, State, Timestamp};

const SECOND: u64 = 1_000_000;

fn limits() -> [Limit; 6] {
    let minute = Rate::per_minute(20);
    [
        Limit::token_bucket(minute).build().expect("valid numbers"),
        Limit::token_bucket(Rate::per_second(7)).burst(3).build().expect("valid numbers"),
        Limit::fixed_window(minute).build().expect("valid numbers"),
        Limit::sliding_window(minute).build().expect("valid numbers"),
        Limit::sliding_log(minute).build().expect("valid numbers"),
        Limit::sliding_log(minute)
            .build()
            .expect("valid numbers")
            .blocking(Span::from_secs(1))
            .expect("valid numbers"),
    ]
}

/// One key, and the same key had it reserved only what the request cost.
struct Twins {
    limit: Limit,
    now: Timestamp,
    reserved: State,
    actual: State,
}

impl Twins {
    /// Decides on both, if the key that owes more admits it.
    fn take(&mut self, cost: u64) -> bool {
        let is_admitted =
            self.limit.decide(&mut self.reserved, self.now, Op::Take(cost)).is_allowed();
        let twin = self.limit.decide(&mut self.actual, self.now, Op::Read(cost));
        assert!(twin.is_allowed() || !is_admitted, "fewer units deny what more admit");
        if is_admitted {
            self.limit.decide(&mut self.actual, self.now, Op::Take(cost));
        }
        is_admitted
    }

    fn left(&self, state: &State, later: u64) -> u64 {
        let at = self.now + Span::from_micros(later);
        self.limit.decide(&mut state.clone(), at, Op::Read(0)).remaining
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// The bound of the limit (L1) therefore holds for what requests cost after all.
    #[test]
    fn a_return_of_owed_units_never_leaves_more_than_if_they_had_not_been_taken(
        which in 0..6_usize,
        start in 0..200 * SECOND,
        before in prop::collection::vec((0..5 * SECOND, 1..6_u64), 0..6),
        (reserved, difference) in (1..8_u64, 0..8_u64),
        after in prop::collection::vec((0..20 * SECOND, 1..6_u64), 0..8),
        rest in 0..70 * SECOND,
    ) {
        let limit = limits()[which];
        let now = Timestamp::from_micros(start);
        let mut twins = Twins { limit, now, reserved: State::default(), actual: State::default() };
        for (wait, cost) in before {
            twins.now = twins.now + Span::from_micros(wait);
            twins.take(cost);
        }
        let difference = difference.min(reserved);
        let taken = limit.decide(&mut twins.reserved, twins.now, Op::Take(reserved));
        if !taken.is_allowed() {
            return Ok(());
        }
        limit.decide(&mut twins.actual, twins.now, Op::Take(reserved - difference));
        let until = twins.now + taken.reset_after;
        for (wait, cost) in after {
            twins.now = twins.now + Span::from_micros(wait);
            // A block that only one of them starts is not compared.
            if !twins.take(cost) && matches!(limit, Limit::Blocking(_)) {
                return Ok(());
            }
        }
        twins.now = twins.now + Span::from_micros(rest % (SECOND * 10));
        let op = Op::ReturnOwed { units: difference, until };
        let Decision { unbooked, .. } = limit.decide(&mut twins.reserved, twins.now, op);
        prop_assert!(unbooked <= difference);
        for later in [0, 1, SECOND, 10 * SECOND, 30 * SECOND, 59 * SECOND, 60 * SECOND, 90 * SECOND] {
            let (left, most) = (twins.left(&twins.reserved, later), twins.left(&twins.actual, later));
            prop_assert!(left <= most, "{left} left after {later}, {most} had it cost less at once");
        }
    }
}

/// The window of the take has ended, or its units have been refilled.
#[test]
fn nothing_is_owed_once_the_key_would_be_idle() {
    for limit in limits() {
        let now = Timestamp::from_secs(59);
        let mut state = State::default();
        let taken = limit.decide(&mut state, now, Op::Take(3));
        let until = now + taken.reset_after;
        // Other requests keep the key busy.
        let busy = until - Span::from_micros(1);
        limit.decide(&mut state, busy, Op::Take(1));
        limit.decide(&mut state, until, Op::Take(1));
        let before = state.clone();
        let late = limit.decide(&mut state, until, Op::ReturnOwed { units: 3, until });
        assert_eq!((late.unbooked, state), (3, before), "{limit:?}");
    }
}

/// In a busy key the units are returned exactly, whatever other requests have taken since.
#[test]
fn a_busy_key_gets_back_every_unit_that_the_request_did_not_cost() {
    let [.., fast] =
        [Limit::token_bucket(Rate::per_minute(100_000)).build().expect("valid numbers")];
    let windows = limits().into_iter().skip(2);
    for limit in windows.chain([fast]) {
        let (now, second) = (Timestamp::from_secs(61), Span::from_secs(1));
        let (mut state, mut twin) = (State::default(), State::default());
        let all = limit.decide(&mut state, now, Op::Read(0)).remaining;
        for state in [&mut state, &mut twin] {
            limit.decide(state, now, Op::Take(all - 8));
        }
        let taken = limit.decide(&mut state, now, Op::Take(5));
        limit.decide(&mut twin, now, Op::Take(2));
        let until = now + taken.reset_after;
        for state in [&mut state, &mut twin] {
            assert!(limit.decide(state, now + second, Op::Take(3)).is_allowed());
        }
        let op = Op::ReturnOwed { units: 3, until };
        let returned = limit.decide(&mut state, now + second + second, op);
        assert_eq!(returned.unbooked, 0, "{limit:?}");
        for later in [0, 1, 30, 59, 60, 90] {
            let at = now + second + second + Span::from_secs(later);
            let left = |state: &State| limit.decide(&mut state.clone(), at, Op::Read(0)).remaining;
            assert_eq!(left(&state), left(&twin), "{limit:?} after {later} s");
        }
    }
}
