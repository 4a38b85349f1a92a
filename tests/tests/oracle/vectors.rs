//! The oracle against numbers worked out by hand, so that it and the engine cannot share a
//! misreading.

use tidegate_core::{AlgorithmName, Op, Outcome, Span};
use tidegate_tests::oracle::Oracle;
use tidegate_tests::subject::{Numbers, Subject};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;

fn numbers(name: AlgorithmName, count: u64, per: u64) -> Numbers {
    let subject = Subject::Rated(name);
    Numbers {
        subject,
        count,
        per,
        burst: None,
        queue: None,
        offset: 0,
        count_denied: false,
        block_for: None,
    }
}

/// How many single units pass if one is asked for at each of these instants.
fn admitted(oracle: &mut Oracle, instants: impl Iterator<Item = u64>) -> usize {
    instants.filter(|&now| oracle.decide(now, Op::Take(1)).is_allowed()).count()
}

#[test]
fn gcra_of_ten_a_second_with_one_second_of_tolerance_admits_eleven() {
    let mut oracle =
        Oracle::new(Numbers { burst: Some(11), ..numbers(AlgorithmName::Gcra, 10, SECOND) });
    assert_eq!(admitted(&mut oracle, std::iter::repeat_n(0, 20)), 11);
}

#[test]
fn a_bucket_of_100_a_minute_lets_199_through_in_less_than_a_minute() {
    let mut oracle = Oracle::new(numbers(AlgorithmName::TokenBucket, 100, MINUTE));
    let instants = std::iter::repeat_n(0, 100).chain((0..MINUTE).step_by(1_000));
    assert_eq!(admitted(&mut oracle, instants), 199);
}

#[test]
fn a_third_of_a_second_is_kept_exactly() {
    let mut oracle =
        Oracle::new(Numbers { burst: Some(1), ..numbers(AlgorithmName::Gcra, 3, SECOND) });
    assert!(oracle.decide(0, Op::Take(1)).is_allowed());
    let denied = oracle.decide(0, Op::Take(1));
    assert_eq!(denied.retry_after(), Some(Span::from_micros(333_334)));
    assert!(!oracle.decide(333_333, Op::Take(1)).is_allowed());
    assert!(oracle.decide(333_334, Op::Take(1)).is_allowed());
}

#[test]
fn a_bucket_whose_clock_stepped_back_an_hour_is_locked_for_one_unit_only() {
    let mut oracle =
        Oracle::new(Numbers { burst: Some(10), ..numbers(AlgorithmName::TokenBucket, 1, SECOND) });
    let hour = 3_600 * SECOND;
    assert!(oracle.decide(hour, Op::Take(10)).is_allowed());
    assert_eq!(oracle.decide(0, Op::Take(1)).retry_after(), Some(Span::from_secs(1)));
    assert!(oracle.decide(SECOND, Op::Take(1)).is_allowed());
}

#[test]
fn a_leaky_bucket_spaces_what_it_admits() {
    let limit = Numbers { queue: Some(2), ..numbers(AlgorithmName::LeakyBucket, 10, SECOND) };
    let mut oracle = Oracle::new(limit);
    let outcomes: Vec<Outcome> = (0..4).map(|_| oracle.decide(0, Op::Take(1)).outcome).collect();
    let tenths = |tenths: u64| Span::from_millis(100 * tenths);
    let denied = Outcome::Deny { retry_after: Some(tenths(1)) };
    let expected = [Outcome::Allow, Outcome::Delay(tenths(1)), Outcome::Delay(tenths(2)), denied];
    assert_eq!(outcomes, expected);
}

#[test]
fn a_fixed_window_passes_twice_its_limit_across_a_boundary() {
    let mut oracle = Oracle::new(numbers(AlgorithmName::FixedWindow, 100, MINUTE));
    let instants = [59 * SECOND, 61 * SECOND].into_iter();
    assert_eq!(admitted(&mut oracle, instants.flat_map(|now| std::iter::repeat_n(now, 150))), 200);
}

#[test]
fn a_sliding_window_admits_at_an_estimate_of_49_and_a_half_of_50() {
    let mut oracle = Oracle::new(numbers(AlgorithmName::SlidingWindow, 50, MINUTE));
    assert!(oracle.decide(0, Op::Take(42)).is_allowed());
    // Late enough that little of the 42 weighs, then back within the window to its quarter.
    assert!(oracle.decide(MINUTE + 59 * SECOND, Op::Take(18)).is_allowed());
    let quarter = MINUTE + 15 * SECOND;
    assert_eq!(oracle.decide(quarter, Op::Take(0)).remaining, 1);
    assert!(oracle.decide(quarter, Op::Take(1)).is_allowed());
    assert!(!oracle.decide(quarter, Op::Take(1)).is_allowed());
}

#[test]
fn a_sliding_window_passes_at_most_104_of_100_in_two_seconds_around_a_boundary() {
    let mut oracle = Oracle::new(numbers(AlgorithmName::SlidingWindow, 100, MINUTE));
    let last = std::iter::repeat_n(MINUTE - 1, 150);
    assert_eq!(admitted(&mut oracle, last), 100);
    let drip = (MINUTE..=MINUTE + 2 * SECOND).step_by(1_000);
    assert!(admitted(&mut oracle, drip) <= 4);
}

#[test]
fn an_entry_of_a_sliding_log_is_out_when_exactly_one_window_old() {
    let mut oracle = Oracle::new(numbers(AlgorithmName::SlidingLog, 5, 3_600 * SECOND));
    assert!(oracle.decide(7, Op::Take(5)).is_allowed());
    let denied = oracle.decide(8, Op::Take(1));
    assert_eq!(denied.retry_after(), Some(Span::from_micros(3_600 * SECOND - 1)));
    assert!(!oracle.decide(3_600 * SECOND + 6, Op::Take(1)).is_allowed());
    assert!(oracle.decide(3_600 * SECOND + 7, Op::Take(5)).is_allowed());
}

#[test]
fn a_place_in_flight_is_free_once_released_or_expired() {
    let limit =
        Numbers { subject: Subject::InFlight, ..numbers(AlgorithmName::Gcra, 1, 10 * SECOND) };
    let mut oracle = Oracle::new(limit);
    let lease = oracle.decide(5, Op::Take(1)).lease.unwrap();
    assert!(!oracle.decide(6, Op::Take(1)).is_allowed());
    assert_eq!(oracle.decide(6, Op::Release(lease)).remaining, 1);
    let second = oracle.decide(6, Op::Take(1)).lease.unwrap();
    assert!(second > lease);
    // A late release of the first must not free the second's place.
    assert_eq!(oracle.decide(7, Op::Release(lease)).remaining, 0);
    assert!(!oracle.decide(10 * SECOND + 5, Op::Take(1)).is_allowed());
    assert!(oracle.decide(10 * SECOND + 6, Op::Take(1)).is_allowed());
}
