//! The limiter, as a program uses it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::time::Duration;

use tidegate::{
    Admission, BuildError, Clock, Detail, Explanation, InFlight, Limit, Limiter, ManualClock, Rate,
    Span,
};

fn limiter(limit: tidegate::Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("default", limit).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

/// The state of a key under one of the limits.
fn state(limiter: &Limiter, key: &str, limit: usize) -> Explanation {
    limiter.explain(key).parts().nth(limit).unwrap().state.unwrap().clone()
}

fn bucket(rate: Rate, burst: u64) -> Limit {
    Limit::token_bucket(rate).burst(burst).build().unwrap()
}

#[test]
fn keys_do_not_share_a_budget() {
    let (limiter, _) = limiter(bucket(Rate::per_minute(1), 2));
    for _ in 0..2 {
        assert!(limiter.check("a").is_allowed());
        assert!(limiter.check(String::from("b")).is_allowed());
        assert!(limiter.check(b"c").is_allowed());
    }
    for key in ["a", "b", "c"] {
        let verdict = limiter.check(key);
        assert!(verdict.is_denied());
        assert_eq!(verdict.retry_after(), Some(Duration::from_secs(60)));
    }
}

#[test]
fn the_advertised_wait_is_exact() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(3), 1));
    assert!(limiter.check("k").is_allowed());
    let wait = limiter.check("k").retry_after().unwrap();
    assert_eq!(wait, Duration::from_micros(333_334));
    clock.advance(wait - Duration::from_micros(1));
    assert!(limiter.check("k").is_denied());
    clock.advance(Span::from_micros(1));
    assert!(limiter.check("k").is_allowed());
}

#[test]
fn cost_peek_refund_force_and_reset() {
    let (limiter, _) = limiter(bucket(Rate::per_minute(10), 10));
    assert_eq!(limiter.check_cost("k", 7).remaining(), 3);
    assert_eq!(limiter.peek("k", 3).remaining(), 3);
    assert!(limiter.peek("k", 4).is_denied());
    assert_eq!(limiter.peek("k", 3).remaining(), 3);
    assert!(limiter.check_cost("k", 11).is_never());
    assert_eq!(limiter.refund("k", 2).remaining(), 5);
    assert_eq!(limiter.refund("k", 100).remaining(), 10);
    let forced = limiter.force("k", 25);
    assert_eq!((forced.is_allowed(), forced.unbooked(), forced.remaining()), (true, 15, 0));
    assert_eq!(limiter.reset("k").remaining(), 10);
    assert_eq!(limiter.check_cost("k", 0).remaining(), 10);
}

#[test]
fn several_limits_are_charged_all_or_none() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder()
        .limit("second", bucket(Rate::per_second(2), 2))
        .limit("hour", Limit::fixed_window(Rate::per_hour(3)).build().unwrap())
        .clock(clock.clone())
        .build()
        .unwrap();
    assert!(limiter.check("k").is_allowed());
    assert!(limiter.check("k").is_allowed());
    let denied = limiter.check("k");
    assert_eq!(denied.denied_by().collect::<Vec<_>>(), [0]);
    assert_eq!(limiter.limit_name(denied.binding().unwrap()).as_deref(), Some("second"));
    clock.advance(Span::from_secs(1));
    assert!(limiter.check("k").is_allowed());
    let report = limiter.report("k", 1);
    assert!(report.is_denied());
    assert_eq!(report.denied_by().collect::<Vec<_>>(), [1]);
    assert_eq!(limiter.limit_name(1).as_deref(), Some("hour"));
    // The limit that would have allowed was not charged.
    let first = report.parts().next().unwrap();
    assert_eq!((first.name, first.decision.unwrap().remaining), ("second", 1));
    assert_eq!(limiter.peek("k", 0).remaining(), 0);
}

#[test]
fn each_limit_may_have_a_key_of_its_own() {
    let limiter = Limiter::builder()
        .limit("user", bucket(Rate::per_minute(2), 2))
        .limit("tenant", bucket(Rate::per_minute(3), 3))
        .clock(ManualClock::new())
        .build()
        .unwrap();
    assert!(limiter.check_together(&["u1", "t"]).is_allowed());
    assert!(limiter.check_together(&["u1", "t"]).is_allowed());
    assert!(limiter.check_together(&["u1", "t"]).is_denied());
    assert!(limiter.check_together(&["u2", "t"]).is_allowed());
    let denied = limiter.check_together(&["u2", "t"]);
    assert_eq!(denied.denied_by().collect::<Vec<_>>(), [1]);
}

/// governor #39, #193, #273: other numbers, same state.
#[test]
fn limits_change_while_running_and_keep_everybodys_state() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 10));
    let _ = limiter.check_cost("k", 10);
    limiter.set_limit("default", bucket(Rate::per_second(1), 20)).unwrap();
    // Debt is kept as time: raising the burst hands out the difference, not a refill.
    assert_eq!(limiter.peek("k", 1).remaining(), 10);
    limiter.set_limit("default", bucket(Rate::per_second(100), 5)).unwrap();
    // Ten seconds of debt cannot arise under these numbers: repaired to one full refill.
    let denied = limiter.check("k");
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(10)));
    clock.advance(Span::from_millis(50));
    assert_eq!(limiter.peek("k", 1).remaining(), 5);
    let unknown = limiter.set_limit("other", bucket(Rate::per_second(1), 1)).unwrap_err();
    assert_eq!(unknown.to_string(), "no limit is called \"other\"");
}

/// A denominator above 1,024 needs a wider slot: the state moves there, and back.
#[test]
fn state_survives_a_change_to_an_awkward_rate_and_back() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 10));
    let _ = limiter.check_cost("k", 4);
    let awkward = bucket(Rate::per_second(10_007), 100_070);
    limiter.set_limit("default", awkward).unwrap();
    assert_eq!(limiter.peek("k", 1).remaining(), 100_070 - 4 * 10_007);
    let _ = limiter.check_cost("k", 10_007);
    limiter.set_limit("default", bucket(Rate::per_second(1), 10)).unwrap();
    assert_eq!(limiter.peek("k", 1).remaining(), 5);
    clock.advance(Span::from_secs(5));
    limiter.set_limit("default", awkward).unwrap();
    assert_eq!(limiter.peek("k", 1).remaining(), 100_070);
}

#[test]
fn another_algorithm_starts_afresh() {
    let (limiter, _) = limiter(bucket(Rate::per_minute(2), 2));
    let _ = limiter.check_cost("k", 2);
    let window = Limit::sliding_window(Rate::per_minute(5)).build().unwrap();
    limiter.set_limit("default", window).unwrap();
    assert_eq!(limiter.peek("k", 1).remaining(), 5);
}

#[test]
fn a_permit_frees_its_place_when_dropped() {
    let (limiter, _) = limiter(Limit::in_flight(2, InFlight::NO_EXPIRY).unwrap());
    let first = limiter.acquire("k").permit().unwrap();
    let second = limiter.acquire("k").permit().unwrap();
    assert_eq!(second.verdict().remaining(), 0);
    let Admission::Denied(verdict) = limiter.acquire("k") else { panic!("a third place") };
    assert_eq!(verdict.limit(), 2);
    assert!(limiter.acquire("other").is_granted());
    drop(first);
    let third = limiter.acquire("k");
    assert!(third.is_granted());
    drop((second, third));
    assert_eq!(limiter.peek("k", 1).remaining(), 2);
}

#[test]
fn a_permit_lost_for_good_ends_with_its_lease() {
    let (limiter, clock) = limiter(Limit::in_flight(1, Span::from_secs(60)).unwrap());
    std::mem::forget(limiter.acquire("k"));
    assert_eq!(limiter.peek("k", 1).retry_after(), Some(Duration::from_secs(60)));
    clock.advance(Span::from_secs(60));
    assert!(limiter.acquire("k").is_granted());
}

/// Rate and concurrency deny independently, and a denial by one takes nothing of the other.
#[test]
fn rate_and_concurrency_stand_side_by_side() {
    let limiter = Limiter::builder()
        .limit("rate", bucket(Rate::per_minute(3), 3))
        .limit("in_flight", Limit::in_flight(1, InFlight::NO_EXPIRY).unwrap())
        .clock(ManualClock::new())
        .build()
        .unwrap();
    let permit = limiter.acquire("k").permit().unwrap();
    let Admission::Denied(verdict) = limiter.acquire("k") else { panic!("two at once") };
    assert_eq!(verdict.denied_by().collect::<Vec<_>>(), [1]);
    drop(permit);
    assert!(limiter.acquire("k").is_granted());
    assert!(limiter.acquire("k").is_granted());
    let Admission::Denied(verdict) = limiter.acquire("k") else { panic!("a fourth") };
    assert_eq!(verdict.denied_by().collect::<Vec<_>>(), [0]);
    assert_eq!(state(&limiter, "k", 1).remaining, 1);
}

#[test]
fn many_keys_at_once_are_decided_as_one_by_one() {
    let (batched, _) = limiter(bucket(Rate::per_minute(3), 3));
    let (single, _) = limiter(bucket(Rate::per_minute(3), 3));
    let keys: Vec<String> = (0..100).map(|i| format!("user:{}", i % 23)).collect();
    let mut verdicts = Vec::new();
    batched.check_each(&keys, &mut verdicts);
    let expected: Vec<_> = keys.iter().map(|key| single.check(key)).collect();
    assert_eq!(verdicts, expected);
    assert!(verdicts.iter().any(|verdict| verdict.is_denied()));
}

#[test]
fn a_leaky_bucket_tells_how_long_to_hold_back() {
    let limit = Limit::leaky_bucket(Rate::per_second(10)).queue(3).build().unwrap();
    let (limiter, _) = limiter(limit);
    let delays: Vec<_> = (0..5).map(|_| limiter.check("k")).collect();
    let millis = |i: usize| delays[i].delay().as_micros() / 1_000;
    assert_eq!([millis(0), millis(1), millis(2), millis(3)], [0, 100, 200, 300]);
    assert!(delays[4].is_denied());
}

#[test]
fn explain_tells_what_the_state_means() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 10));
    let _ = limiter.check_cost("k", 10);
    let verdict = limiter.explain("k");
    let first = verdict.parts().next().unwrap();
    let (name, explanation) = (first.name, first.state.unwrap());
    assert_eq!(name, "default");
    assert_eq!(explanation.next_allowed_at, Some(clock.now() + Span::from_secs(1)));
    let Detail::Bucket { debt_units, debt_time, .. } = explanation.detail else { panic!() };
    assert_eq!((debt_units, debt_time), (10, Span::from_secs(10)));
    assert_eq!(state(&limiter, "never seen", 0).remaining, 10);
}

#[test]
fn a_limiter_that_cannot_be_built_gives_the_reason() {
    let error = |builder: tidegate::LimiterBuilder| builder.build().unwrap_err().to_string();
    let limit = bucket(Rate::per_second(1), 1);
    assert_eq!(error(Limiter::builder()), "a limiter needs at least one limit");
    let twice = Limiter::builder().limit("a", limit).limit("a", limit);
    assert_eq!(error(twice), "two limits are called \"a\"");
    let many = (0..17).fold(Limiter::builder(), |b, i| b.limit(i.to_string(), limit));
    assert_eq!(error(many), "17 limits on one request, at most 16 are possible");
    let small = Limiter::builder().limit("a", limit).max_bytes(1);
    assert_eq!(error(small), "max_bytes is 1, at least 65536 are needed");
    assert!(matches!(Limiter::builder().build(), Err(BuildError::NoLimit)));
}

/// The machine's wall clock takes no part once a limiter runs.
#[test]
fn the_real_clock_refills() {
    let limiter = Limiter::builder()
        .limit("default", bucket(Rate::per_second(1_000), 1))
        .clock(Clock::default())
        .build()
        .unwrap();
    assert!(limiter.check("k").is_allowed());
    let mut tries = 0_u64;
    while limiter.check("k").is_denied() {
        tries += 1;
        std::hint::spin_loop();
    }
    assert!(tries > 0, "a millisecond is longer than one check");
}

#[test]
fn spans_and_durations_convert() {
    assert_eq!(Duration::from(Span::from_millis(2)), Duration::from_millis(2));
}
