use fastrand::Rng;
use tidegate_core::{Algorithm, Rate, State};

use super::*;

const THEN: Timestamp = Timestamp::from_secs(1_000_020);

/// What became of a share that units were taken of and given back, beside one that they were never taken of.
struct Both {
    limit: Limit,
    real: State,
    without: State,
}

impl Both {
    fn free(&mut self, now: Timestamp) -> (u64, u64) {
        let read = |state: &mut State| self.limit.decide(state, now, Op::Read(0)).remaining;
        (read(&mut self.real), read(&mut self.without))
    }

    /// Others ask, and get what is there in fact.
    fn take(&mut self, now: Timestamp, cost: u64) {
        if self.limit.decide(&mut self.real, now, Op::Take(cost)).is_allowed() {
            self.limit.decide(&mut self.without, now, Op::Take(cost));
        }
    }
}

/// Whether a window, if there is one, is the same.
fn is_same_window(limit: &Limit, then: Timestamp, now: Timestamp) -> bool {
    let length = match limit {
        Limit::FixedWindow(window) => window.length(),
        Limit::SlidingWindow(window) => window.length(),
        _ => return true,
    };
    then.as_micros() / length.as_micros() == now.as_micros() / length.as_micros()
}

fn any_limit(rng: &mut Rng) -> Limit {
    let rate = Rate::new(rng.u64(1..40), Span::from_millis(rng.u64(1..30)));
    let limit = match rng.u8(0..4) {
        0 => Limit::token_bucket(rate).burst(rng.u64(1..40)),
        1 => Limit::fixed_window(rate),
        2 => Limit::sliding_window(rate),
        _ => Limit::sliding_log(rate),
    };
    limit.build().unwrap()
}

/// A share is never larger for a request that was not let in, and hardly smaller.
#[test]
fn no_more_is_given_back_than_is_still_owed() {
    let mut rng = Rng::with_seed(22);
    let (mut given, mut kept) = (0, 0);
    for _ in 0..100_000 {
        let limit = any_limit(&mut rng);
        let mut both = Both { limit, real: State::default(), without: State::default() };
        let at = THEN + Span::from_micros(rng.u64(0..30_000));
        both.take(at, rng.u64(1..10));
        let then = at + Span::from_micros(rng.u64(0..5_000));
        let cost = rng.u64(1..10);
        let taken = limit.decide(&mut both.real, then, Op::Take(cost));
        if !taken.is_allowed() {
            continue;
        }
        let others = then + Span::from_micros(rng.u64(0..3_000));
        let has_others = rng.bool();
        // The store's clock, as far as it is known, may go back a little.
        let back = if has_others { 0 } else { rng.u64(0..900) };
        let now = others + Span::from_micros(rng.u64(0..3_000)) - Span::from_micros(back);
        if has_others {
            both.take(others, rng.u64(1..10));
        }
        let idle = limit.decide(&mut both.real, now, Op::Read(0)).reset_after;
        let units = still_owed(&limit, cost, &taken, (then, now), idle);
        limit.decide(&mut both.real, now, Op::Return(units));
        // Later as well: what is in another window, or leaves a log later, counts for longer.
        for later in [0, 1, 500, 5_000, 20_000, 60_000] {
            let (real, without) = both.free(now.max(others) + Span::from_micros(later));
            let is_exact = real == without || has_others || now < then;
            assert!(real <= without, "{limit:?}: {cost} at {then:?}, {units} at {now:?}");
            assert!(is_exact || !is_same_window(&limit, then, now), "{limit:?}: {units} of {cost}");
        }
        (given, kept) = (given + units, kept + cost - units);
    }
    assert!(given > kept && kept > 1_000, "{given} given back, {kept} not");
}

/// Where shares are small, a unit is all that there is.
#[test]
fn all_is_given_back_where_nobody_has_written_since() {
    let minute = Rate::per_minute(2);
    let (bucket, window) = (Limit::token_bucket(minute), Limit::fixed_window(minute));
    for limit in [bucket, window, Limit::sliding_window(minute), Limit::sliding_log(minute)] {
        let limit = limit.build().unwrap();
        let mut state = State::default();
        let taken = limit.decide(&mut state, THEN, Op::Take(1));
        // A log holds nothing later than now, so its content is unknown when the clock goes back.
        let is_log = matches!(limit, Limit::SlidingLog(_));
        let back = if is_log { THEN } else { THEN - Span::from_millis(3) };
        for now in [THEN, THEN + Span::from_millis(3), back] {
            let idle = limit.decide(&mut state, now, Op::Read(0)).reset_after;
            assert_eq!(still_owed(&limit, 1, &taken, (THEN, now), idle), 1, "{limit:?}");
        }
    }
}

#[test]
fn a_bucket_that_others_took_from_gives_back_what_is_not_refilled() {
    let limit = Limit::token_bucket(Rate::per_second(1_000)).burst(50).build().unwrap();
    let mut state = State::default();
    let others = Span::from_secs(1);
    let owed = |taken: &Decision, millis| {
        still_owed(&limit, 10, taken, (THEN, THEN + Span::from_millis(millis)), others)
    };
    let taken = limit.decide(&mut state, THEN, Op::Take(10));
    assert_eq!([owed(&taken, 4), owed(&taken, 10), owed(&taken, 99)], [5, 0, 0]);
    // There is enough else to refill.
    let taken = limit.decide(&mut state, THEN, Op::Take(10));
    assert_eq!([owed(&taken, 4), owed(&taken, 9), owed(&taken, 15)], [10, 10, 4]);
    let back = THEN - Span::from_millis(1);
    assert_eq!(still_owed(&limit, 10, &taken, (THEN, back), others), 0);
}
