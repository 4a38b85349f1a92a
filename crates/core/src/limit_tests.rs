use alloc::string::ToString;

use super::*;

fn builder(name: AlgorithmName) -> Builder {
    Builder::new(name, Rate::per_minute(100))
}

fn any(name: AlgorithmName) -> Limit {
    builder(name).build().unwrap()
}

#[test]
fn all_six_algorithms_stand_behind_one_type() {
    let families = AlgorithmName::ALL.map(|name| any(name).family());
    let windows = ["fixed_window", "sliding_log", "sliding_window"];
    assert_eq!(families[..3], windows);
    assert_eq!(families[3..], ["bucket"; 3]);
    for name in AlgorithmName::ALL {
        let mut state = State::default();
        let decision = any(name).decide(&mut state, Timestamp::from_secs(7), Op::Take(1));
        assert!(decision.is_allowed(), "{name}");
        assert_ne!(state, State::Absent, "{name}");
    }
}

/// The burst defaults to the count, so a count of 0 makes both invalid. The error names the
/// rate.
#[test]
fn a_rate_of_zero_is_reported_as_such() {
    for name in AlgorithmName::ALL.into_iter().filter(|name| name.is_bucket()) {
        for builder in [
            Builder::new(name, Rate::per_second(0)),
            Builder::new(name, Rate::per_second(0)).burst(0),
        ] {
            assert_eq!(builder.build(), Err(InvalidLimit::Count), "{name}");
        }
    }
}

#[test]
fn a_name_reads_back_as_it_is_spelled() {
    for name in AlgorithmName::ALL {
        assert_eq!(name.to_string().parse(), Ok(name));
    }
    let unknown = "token-bucket".parse::<AlgorithmName>().unwrap_err();
    assert_eq!(
        unknown.to_string(),
        "algorithm must be one of fixed_window sliding_log sliding_window token_bucket gcra \
         leaky_bucket"
    );
}

/// The default capacity of a bucket.
#[test]
fn defaults_are_those_of_the_policy_language() {
    let limit = |name| {
        let mut state = State::default();
        any(name).decide(&mut state, Timestamp::EPOCH, Op::Read(0)).limit
    };
    assert_eq!(limit(AlgorithmName::TokenBucket), 100);
    assert_eq!(limit(AlgorithmName::Gcra), 1);
    assert_eq!(limit(AlgorithmName::LeakyBucket), 101);
    assert_eq!(limit(AlgorithmName::FixedWindow), 100);
}

/// With the same burst, both are the same limit.
#[test]
fn gcra_is_a_token_bucket() {
    let rate = Rate::per_second(7);
    assert_eq!(
        Limit::gcra(rate).burst(9).build().unwrap(),
        Limit::token_bucket(rate).burst(9).build().unwrap()
    );
}

/// A burst over the boundary, coordinated over many accounts.
#[test]
fn choosing_another_algorithm_ends_the_boundary_burst() {
    let boundary = Timestamp::from_secs(60);
    let second = Span::from_secs(1);
    let passed = |name| {
        let (limit, mut state) = (any(name), State::default());
        let mut hits = [boundary - second, boundary + second]
            .into_iter()
            .flat_map(|at| core::iter::repeat_n(at, 500));
        hits.by_ref().filter(|at| limit.decide(&mut state, *at, Op::Take(1)).is_allowed()).count()
    };
    assert_eq!(passed(AlgorithmName::FixedWindow), 200);
    assert_eq!(passed(AlgorithmName::SlidingWindow), 102);
    assert_eq!(passed(AlgorithmName::SlidingLog), 100);
    let promise = any(AlgorithmName::SlidingWindow).promise(second + second);
    assert_eq!(promise, Some(104));
}

#[test]
fn a_state_of_another_family_reads_as_never_seen() {
    let now = Timestamp::from_secs(9);
    for (old, new) in [
        (AlgorithmName::TokenBucket, AlgorithmName::FixedWindow),
        (AlgorithmName::SlidingLog, AlgorithmName::TokenBucket),
        (AlgorithmName::FixedWindow, AlgorithmName::SlidingWindow),
    ] {
        let (mut state, mut fresh) = (State::default(), State::default());
        any(old).decide(&mut state, now, Op::Force(1_000));
        assert_eq!(any(new).idle_at(&state), Timestamp::EPOCH);
        let kept = state.clone();
        let decision = any(new).decide(&mut state, now, Op::Read(1));
        assert_eq!(decision, any(new).decide(&mut fresh, now, Op::Read(1)));
        assert_eq!(state, kept, "a peek writes nothing");
        any(new).decide(&mut state, now, Op::Take(1));
        any(new).decide(&mut fresh, now, Op::Take(1));
        assert_eq!(state, fresh);
    }
}

/// Neither a peek nor a return nor a denial creates a key.
#[test]
fn operations_that_take_nothing_create_no_key() {
    let now = Timestamp::from_secs(9);
    for name in AlgorithmName::ALL {
        let mut state = State::default();
        for op in [Op::Take(0), Op::Read(1), Op::Return(1), Op::Force(0), Op::Take(1_000)] {
            any(name).decide(&mut state, now, op);
            assert_eq!(state, State::Absent, "{name} {op:?}");
        }
    }
}

#[test]
fn an_option_of_another_algorithm_is_refused() {
    use AlgorithmName::{FixedWindow, LeakyBucket, SlidingLog, TokenBucket};
    for (builder, error) in [
        (builder(FixedWindow).burst(5), InvalidLimit::BurstOnWindow),
        (builder(TokenBucket).queue(5), InvalidLimit::QueueOutsideLeakyBucket),
        (builder(SlidingLog).offset(Span::from_secs(1)), InvalidLimit::WindowOption),
        (builder(SlidingLog).count_denied(), InvalidLimit::WindowOption),
        (builder(LeakyBucket).large_log(), InvalidLimit::LogOption),
    ] {
        assert_eq!(builder.build(), Err(error));
    }
    assert!(builder(FixedWindow).offset(Span::from_secs(1)).count_denied().build().is_ok());
    assert!(builder(LeakyBucket).burst(5).queue(0).build().is_ok());
    let long = Builder::new(SlidingLog, Rate::per_minute(100_000));
    assert_eq!(long.build(), Err(InvalidLimit::LogLength));
    assert!(long.large_log().build().is_ok());
    assert!(Limit::in_flight(5, Span::from_secs(1)).is_ok());
}

/// A state is sound at the instant that left it and ahead one tick earlier.
#[test]
fn a_state_is_ahead_of_the_tick_before_it_was_left() {
    let minute = Rate::per_minute(2);
    let in_flight = Limit::in_flight(2, Span::from_secs(5)).unwrap();
    let limits = [
        Limit::token_bucket(minute).build().unwrap(),
        Limit::token_bucket(Rate::per_second(7)).burst(2).build().unwrap(),
        Limit::leaky_bucket(minute).queue(1).build().unwrap(),
        Limit::fixed_window(minute).build().unwrap(),
        Limit::sliding_window(minute).build().unwrap(),
        Limit::sliding_log(minute).build().unwrap(),
        in_flight,
    ];
    let left = Timestamp::from_secs(1_577_836_800);
    for limit in limits {
        let mut state = State::default();
        assert!(!limit.is_ahead(&state, Timestamp::EPOCH), "{limit:?}");
        assert!(limit.decide(&mut state, left, Op::Take(2)).is_allowed(), "{limit:?}");
        assert!(!limit.is_ahead(&state, left), "{limit:?}");
        assert!(!limit.is_ahead(&state, left + Span::from_secs(1)), "{limit:?}");
        assert!(limit.is_ahead(&state, left - Span::from_micros(1)), "{limit:?}");
        assert!(limit.is_ahead(&state, left - Span::from_secs(3_600)), "{limit:?}");
    }
}
