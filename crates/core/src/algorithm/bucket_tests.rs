use super::*;
use alloc::vec::Vec;

const HOUR: u64 = 3_600_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn ms(millis: u64) -> Timestamp {
    at(millis * 1_000)
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn bucket(rate: &str, burst: u64) -> Bucket {
    Bucket::new(rate.parse().unwrap(), burst).unwrap()
}

fn shaping(rate: &str, burst: u64, queue: u64) -> Bucket {
    Bucket::shaping(rate.parse().unwrap(), burst, queue).unwrap()
}

fn take(bucket: &Bucket, state: &mut BucketState, now: Timestamp, cost: u64) -> Decision {
    bucket.decide(state, now, Op::Take(cost))
}

/// How many single units pass at one instant.
fn admitted(bucket: &Bucket, state: &mut BucketState, now: Timestamp) -> u64 {
    (0..).take_while(|_| take(bucket, state, now, 1).is_allowed()).count() as u64
}

fn emptied(bucket: &Bucket, now: Timestamp) -> BucketState {
    let mut state = BucketState::default();
    assert!(take(bucket, &mut state, now, bucket.capacity).is_allowed());
    state
}

fn wait(decision: Decision) -> Option<u64> {
    decision.retry_after().map(Span::as_micros)
}

#[test]
fn a_hundred_at_once_then_ten_a_second() {
    let (bucket, mut state) = (bucket("10/s", 100), BucketState::default());
    assert_eq!(admitted(&bucket, &mut state, secs(0)), 100);
    for second in 1..=30 {
        assert_eq!(admitted(&bucket, &mut state, secs(second)), 10, "second {second}");
    }
    assert_eq!(admitted(&bucket, &mut state, secs(1_000)), 100, "never above the bucket");
}

#[test]
fn the_first_request_ever_sees_a_full_bucket() {
    for now in [0, 1, 1_753_000_000_000_000] {
        let mut state = BucketState::default();
        let decision = take(&bucket("5/s", 5), &mut state, at(now), 1);
        assert_eq!((decision.outcome, decision.remaining), (Outcome::Allow, 4));
    }
}

#[test]
fn an_expensive_request_takes_its_cost_at_once() {
    let (bucket, mut state) = (bucket("10/s", 10), BucketState::default());
    assert_eq!(take(&bucket, &mut state, secs(0), 7).remaining, 3);
    let denied = take(&bucket, &mut state, secs(0), 5);
    assert_eq!((wait(denied), denied.remaining), (Some(200_000), 3));
    assert_eq!(take(&bucket, &mut state, secs(0), 3).remaining, 0);
}

#[test]
fn a_whole_burst_within_a_millisecond_is_legal() {
    let (bucket, mut state) = (bucket("1/s", 50), BucketState::default());
    let passed = (0..60).filter(|i| take(&bucket, &mut state, at(i * 16), 1).is_allowed()).count();
    assert_eq!(passed, 50);
}

#[test]
fn a_client_idle_for_half_an_hour_may_burst_to_fifty_at_a_hundred_a_minute() {
    let bucket = bucket("100/min", 50);
    let mut state = emptied(&bucket, secs(0));
    let later = secs(1_800);
    assert_eq!(admitted(&bucket, &mut state, later), 50);
    assert_eq!(wait(take(&bucket, &mut state, later, 1)), Some(600_000));
}

#[test]
fn a_token_bucket_lets_a_burst_through_where_a_leaky_bucket_spaces_it() {
    let (token, leaky) = (bucket("10/s", 10), shaping("10/s", 1, 9));
    let (mut first, mut second) = (BucketState::default(), BucketState::default());
    for place in 0..10 {
        assert_eq!(take(&token, &mut first, secs(5), 1).outcome, Outcome::Allow);
        let start = take(&leaky, &mut second, secs(5), 1).delay();
        assert_eq!(start, Span::from_millis(100 * place));
    }
    assert!(!take(&token, &mut first, secs(5), 1).is_allowed());
    assert!(!take(&leaky, &mut second, secs(5), 1).is_allowed());
    assert_eq!(first, second, "admission is the same, only the delay differs");
}

#[test]
fn a_leaky_bucket_drains_evenly_and_drops_overflow() {
    let (leaky, mut state) = (shaping("10/s", 1, 5), BucketState::default());
    let delays: Vec<_> = (0..6).map(|_| take(&leaky, &mut state, secs(0), 1).delay()).collect();
    assert_eq!(delays, [0, 100, 200, 300, 400, 500].map(Span::from_millis));
    let dropped = take(&leaky, &mut state, secs(0), 1);
    assert_eq!((wait(dropped), dropped.limit, dropped.remaining), (Some(100_000), 6, 0));
    assert_eq!(take(&leaky, &mut state, ms(100), 1).delay(), Span::from_millis(500));
}

#[test]
fn a_leaky_bucket_drains_without_a_timer() {
    let (leaky, mut state) = (shaping("10/s", 1, 5), BucketState::default());
    for _ in 0..6 {
        take(&leaky, &mut state, secs(0), 1);
    }
    let after_an_outage = take(&leaky, &mut state, secs(3_600), 1);
    assert_eq!((after_an_outage.outcome, after_an_outage.remaining), (Outcome::Allow, 5));
}

/// delay = max(0, S - now - (burst - min(cost, burst)) * T).
#[test]
fn a_leaky_bucket_with_a_burst_starts_that_many_at_once() {
    let (leaky, mut state) = (shaping("1/s", 3, 2), BucketState::default());
    let delays: Vec<_> = (0..5).map(|_| take(&leaky, &mut state, secs(9), 1).delay()).collect();
    assert_eq!(delays, [0, 0, 0, 1, 2].map(Span::from_secs));
    assert_eq!(wait(take(&leaky, &mut state, secs(9), 1)), Some(1_000_000));
    let mut state = BucketState::default();
    assert_eq!(take(&leaky, &mut state, secs(9), 3).outcome, Outcome::Allow);
    assert_eq!(take(&leaky, &mut state, secs(9), 2).delay(), Span::from_secs(2));
    assert!(take(&leaky, &mut BucketState::default(), secs(9), 6).is_never());
}

/// A delay is a wait, so it rounds up; a start a fraction early would break spacing.
#[test]
fn a_delay_of_a_fraction_of_a_microsecond_rounds_up() {
    let (leaky, mut state) = (shaping("3/s", 1, 5), BucketState::default());
    let delays: Vec<_> = (0..4).map(|_| take(&leaky, &mut state, secs(0), 1).delay()).collect();
    assert_eq!(delays, [0, 333_334, 666_667, 1_000_000].map(Span::from_micros));
}

/// No cost above 2^32, even where a queue makes room for it.
#[test]
fn a_cost_above_two_to_the_32_is_denied_for_good() {
    let (leaky, mut state) = (shaping("1000000000000/s", 1 << 32, 1 << 32), BucketState::default());
    assert!(take(&leaky, &mut state, secs(0), (1 << 32) + 1).is_never());
    assert!(take(&leaky, &mut state, secs(0), 1 << 32).is_allowed());
    assert!(take(&leaky, &mut state, secs(0), 1 << 32).is_allowed());
}

#[test]
fn a_leaky_bucket_without_a_queue_never_delays() {
    let (leaky, mut state) = (shaping("1/s", 2, 0), BucketState::default());
    assert_eq!(take(&leaky, &mut state, secs(0), 2).outcome, Outcome::Allow);
    assert!(!take(&leaky, &mut state, secs(0), 1).is_allowed());
}

/// Rejects iff ta < TAT - tau, and says how long exactly.
#[test]
fn denies_until_the_exact_instant() {
    let (bucket, mut state) = (bucket("10/s", 4), BucketState::default());
    let tau = 300_000;
    let mut tat = 0;
    for now in [0, 0, 0, 0, 99_999, 100_000, 150_000, 200_000, 900_000] {
        let decision = take(&bucket, &mut state, at(now), 1);
        if now + tau < tat {
            assert_eq!(wait(decision), Some(tat - tau - now), "at {now}");
        } else {
            assert!(decision.is_allowed(), "at {now}");
            tat = tat.max(now) + 100_000;
        }
        assert_eq!(state.full_at, Moment { ticks: tat, part: 0 });
    }
}

/// One instant a key. Where the interval is whole microseconds its fraction stays 0, so 8
/// bytes carry it.
#[test]
fn the_state_is_one_instant() {
    assert_eq!(size_of::<BucketState>(), 16);
    for (rate, denominator) in [("10/s", 1), ("100/min", 1), ("5000/h", 1), ("3/s", 3), ("7/s", 7)]
    {
        let bucket = bucket(rate, 4);
        assert_eq!(bucket.denominator(), denominator, "{rate}");
        let mut state = BucketState::default();
        for now in 0..100 {
            take(&bucket, &mut state, at(now * 12_345), 1);
            assert!(state.full_at.part < denominator, "{rate}");
        }
    }
}

#[test]
fn explains_the_debt_and_the_next_unit() {
    let bucket = bucket("10/s", 10);
    let mut state = BucketState::default();
    take(&bucket, &mut state, secs(100), 4);
    let explained = bucket.explain(&state, secs(100));
    assert_eq!(
        (explained.limit, explained.remaining, explained.next_allowed_at),
        (10, 6, Some(secs(100)))
    );
    let full_at = Moment { ticks: 100_400_000, part: 0 };
    let debt_time = Span::from_millis(400);
    let detail = Detail::Bucket { full_at, denominator: 1, debt_units: 4, debt_time };
    assert_eq!(explained.detail, detail);
    assert_eq!(
        explained.to_string(),
        "6 of 10 left: 4 owed, 400ms to refill, full at 1970-01-01T00:01:40.400000Z; one more is allowed now; \
         equals a fresh key from 1970-01-01T00:01:40.400000Z"
    );
}

#[test]
fn explains_an_empty_bucket_to_the_fraction_of_a_microsecond() {
    let bucket = bucket("3/s", 1);
    let state = emptied(&bucket, secs(100));
    let explained = bucket.explain(&state, secs(100));
    assert_eq!(explained.next_allowed_at, Some(at(100_333_334)));
    assert_eq!(
        explained.to_string(),
        "0 of 1 left: 1 owed, 333334us to refill, full at 1970-01-01T00:01:40.333333Z and 1/3 us; \
         one more is allowed at 1970-01-01T00:01:40.333334Z; equals a fresh key from 1970-01-01T00:01:40.333334Z"
    );
}

/// 1.13.1: `now < tat - T - tau` would admit 12.
#[test]
fn a_tolerance_of_one_second_at_ten_a_second_admits_eleven() {
    let (bucket, mut state) = (bucket("10/s", 11), BucketState::default());
    assert_eq!(admitted(&bucket, &mut state, secs(0)), 11);
}

/// 1.13.2: GCRA is a token bucket, not an exact rolling window.
#[test]
fn a_rolling_minute_can_hold_nearly_twice_the_burst() {
    let bucket = bucket("100/min", 100);
    let mut state = emptied(&bucket, secs(60));
    let mut within = 100;
    for now in (60_000_000..120_000_000).step_by(600_000) {
        within += admitted(&bucket, &mut state, at(now));
    }
    assert_eq!(within, 199);
    assert_eq!(bucket.promise(Span::from_micros(59_999_999)), Some(199));
    assert_eq!(admitted(&bucket, &mut state, secs(120)), 1);
    assert_eq!(bucket.promise(Span::from_secs(60)), Some(200), "closed at both ends");
}

/// 1.13.8: a time to live of an hour would lose half the debt.
#[test]
fn a_debt_of_two_hours_is_kept_for_two_hours() {
    let bucket = bucket("5000/h", 10_000);
    let mut state = emptied(&bucket, secs(0));
    assert_eq!(bucket.idle_at(&state), at(2 * HOUR));
    assert_eq!(take(&bucket, &mut state, at(HOUR), 0).remaining, 5_000);
    assert_eq!(wait(take(&bucket, &mut state, at(HOUR), 10_000)), Some(HOUR));
}

/// 1.13.9: AWS documents 10,000 a second with a burst of 5,000.
#[test]
fn a_burst_below_the_rate_is_legal() {
    let (bucket, mut state) = (bucket("10000/s", 5_000), BucketState::default());
    assert_eq!(admitted(&bucket, &mut state, secs(0)), 5_000);
    assert_eq!(wait(take(&bucket, &mut state, secs(0), 1)), Some(100));
    assert_eq!(admitted(&bucket, &mut state, secs(1)), 5_000);
}

/// throttlecrab clamps to now - tolerance: an idle key bursts 17 of 10 and 197 of 100.
#[test]
fn an_idle_key_never_bursts_above_its_capacity() {
    for burst in [10, 100] {
        let bucket = bucket("10/s", burst);
        for idle in (0..300).map(|tenth| tenth * 100_000) {
            let mut state = emptied(&bucket, secs(1));
            let expected = (idle / 100_000).min(burst);
            assert_eq!(admitted(&bucket, &mut state, secs(1) + Span::from_micros(idle)), expected);
        }
    }
}

/// throttlecrab promises cost 11 of 10 in 100 ms; governor #11 was off by one here.
#[test]
fn a_cost_above_the_capacity_is_denied_for_good() {
    let (bucket, mut state) = (bucket("10/s", 10), BucketState::default());
    for cost in [11, 1 << 32, (1 << 32) + 1, u64::MAX] {
        assert!(take(&bucket, &mut state, secs(0), cost).is_never(), "{cost}");
    }
    assert_eq!(state, BucketState::default());
    assert!(take(&bucket, &mut state, secs(0), 10).is_allowed());
}

/// governor #107, #249, #251: the sixth cell passed after idling.
#[test]
fn five_is_five_after_any_idle_time() {
    let bucket = bucket("5/s", 5);
    for idle in [1_000_000, 1_000_001, 1_199_999, 1_200_000, 60_000_000, HOUR] {
        let mut state = emptied(&bucket, secs(7));
        assert_eq!(admitted(&bucket, &mut state, secs(7) + Span::from_micros(idle)), 5, "{idle}");
    }
}

/// governor #102, #157: the snapshot's remaining was not what could be taken.
#[test]
fn remaining_is_the_number_of_successful_probes() {
    let bucket = bucket("7/s", 9);
    let mut state = BucketState::default();
    for now in (0..3_000_000).step_by(61_803) {
        let remaining = take(&bucket, &mut state, at(now), 1 + now % 3).remaining;
        assert_eq!(admitted(&bucket, &mut state.clone(), at(now)), remaining, "at {now}");
    }
}

/// governor multiplies nanoseconds unchecked; Redis #14826 wrapped into an admission.
#[test]
fn no_number_overflows_into_an_admission() {
    let slow = bucket("1/year", 100);
    let fast = bucket("1000000000000/s", 1 << 32);
    for bucket in [slow, fast, shaping("1000000000000/s", 1 << 32, 1 << 32)] {
        for now in [Timestamp::EPOCH, secs(1_753_000_000), Timestamp::MAX] {
            let mut state = BucketState::default();
            assert!(take(&bucket, &mut state, now, u64::MAX).is_never());
            let forced = bucket.decide(&mut state, now, Op::Force(u64::MAX));
            assert_eq!(forced.unbooked, u64::MAX - bucket.capacity);
            assert!(!take(&bucket, &mut state, now, 1).is_allowed());
            let full = bucket.decide(&mut state, now, Op::Return(u64::MAX));
            assert_eq!((full.remaining, full.reset_after), (bucket.capacity, Span::ZERO));
        }
    }
}

/// governor runs 600 million a second at a billion, Redis core anything above a million at one.
#[test]
fn rates_above_one_per_tick_are_exact() {
    for (rate, per_tick) in [("600000000/s", 600), ("10000000/s", 10), ("1000000000000/s", 1 << 20)]
    {
        let bucket = bucket(rate, 100_000);
        let mut state = emptied(&bucket, at(5));
        let refilled = take(&bucket, &mut state, at(6), 0).remaining;
        assert_eq!(refilled, per_tick.min(100_000), "{rate}");
    }
}

/// redis-cell #50: at 6000/s the key vanished; below a millisecond it answered retry_after 0.
#[test]
fn a_wait_below_a_millisecond_is_exact() {
    let bucket = bucket("6000/s", 1);
    let mut state = emptied(&bucket, secs(1));
    assert_eq!(wait(take(&bucket, &mut state, secs(1), 1)), Some(167));
    assert_eq!(bucket.idle_at(&state), at(1_000_167));
    assert!(!take(&bucket, &mut state, at(1_000_166), 1).is_allowed());
    assert!(take(&bucket, &mut state, at(1_000_167), 1).is_allowed());
}

/// redis-cell #12, #13 ran 30 % fast; throttled's `PerSec(3)` truncates the interval; gubernator
/// truncates a float.
#[test]
fn a_stream_gets_exactly_its_rate_at_any_polling_interval() {
    for (rate, count) in [("10/s", 10), ("3/s", 3), ("7/s", 7)] {
        for poll in [997, 33_333, 99_999] {
            let (bucket, mut state) = (bucket(rate, 2), BucketState::default());
            let passed = (0..=1_000_000_000 / poll)
                .filter(|i| take(&bucket, &mut state, at(i * poll), 1).is_allowed())
                .count();
            // The burst of two comes on top: without it a late poll would lose a unit.
            let expected = 1_000 * count..=1_000 * count + 2;
            assert!(expected.contains(&passed), "{rate} every {poll} us: {passed}");
        }
    }
}

/// Thirds add up: nothing is dropped over three million units.
#[test]
fn the_remainder_is_never_dropped() {
    let bucket = bucket("3/s", 3_000_000);
    let mut state = emptied(&bucket, secs(0));
    assert_eq!(state.full_at, Moment { ticks: 1_000_000_000_000, part: 0 });
    assert_eq!(admitted(&bucket, &mut state, at(333_333)), 0);
    for unit in 1..=10_u64 {
        let due = (unit * 1_000_000).div_ceil(3);
        assert_eq!(admitted(&bucket, &mut state, at(due - 1)), 0, "unit {unit}");
        assert_eq!(admitted(&bucket, &mut state, at(due)), 1, "unit {unit}");
    }
}

/// dragonfly #1008 answered a reset one second late.
#[test]
fn the_reset_is_exact() {
    let (bucket, mut state) = (bucket("1/s", 10), BucketState::default());
    assert_eq!(take(&bucket, &mut state, secs(0), 1).reset_after, Span::from_secs(1));
    assert_eq!(take(&bucket, &mut state, ms(500), 2).reset_after, Span::from_millis(2_500));
    assert_eq!(take(&bucket, &mut state, secs(3), 0).reset_after, Span::ZERO);
}

/// Redis #14826: the wait for a cost of the whole bucket was off between `<` and `<=`.
#[test]
fn the_whole_bucket_is_free_after_exactly_one_refill() {
    let bucket = bucket("3/s", 7);
    let mut state = emptied(&bucket, secs(1));
    assert_eq!(wait(take(&bucket, &mut state, secs(1), 7)), Some(2_333_334));
    assert!(!take(&bucket, &mut state.clone(), at(3_333_333), 7).is_allowed());
    assert!(take(&bucket, &mut state, at(3_333_334), 7).is_allowed());
}

/// gubernator #225: denied requests pushed the reset back, so the key never refilled.
#[test]
fn denied_requests_do_not_delay_the_refill() {
    let bucket = bucket("1/s", 2);
    let mut state = emptied(&bucket, secs(0));
    for now in (0..1_000_000).step_by(1_000) {
        let denied = take(&bucket, &mut state, at(now), 1);
        assert_eq!(wait(denied), Some(1_000_000 - now));
        assert_eq!(at(now) + denied.reset_after, secs(2));
    }
    assert!(take(&bucket, &mut state, secs(1), 1).is_allowed());
}

/// upstash tests only for 0 tokens: cost 5 passes with 1 left and leaves -4.
#[test]
fn a_cost_above_the_remaining_units_takes_nothing() {
    let (bucket, mut state) = (bucket("1/s", 10), BucketState::default());
    take(&bucket, &mut state, secs(0), 9);
    let denied = take(&bucket, &mut state, secs(0), 5);
    assert_eq!((wait(denied), denied.remaining), (Some(4_000_000), 1));
    assert!(take(&bucket, &mut state, secs(0), 1).is_allowed());
}

/// Cost 0 never writes, never creates a key, never repairs.
#[test]
fn a_peek_writes_nothing_not_even_a_repair() {
    let bucket = bucket("1/s", 10);
    let mut fresh = BucketState::default();
    let stale = emptied(&bucket, secs(3_600));
    for op in [Op::Take(0), Op::Read(0), Op::Read(1), Op::Read(10)] {
        assert_eq!(bucket.decide(&mut fresh, secs(0), op).remaining, 10);
        let mut seen = stale;
        assert_eq!(bucket.decide(&mut seen, secs(0), op).remaining, 0);
        assert_eq!((fresh, seen), (BucketState::default(), stale), "{op:?}");
    }
    let mut state = stale;
    assert_eq!(wait(bucket.decide(&mut state, secs(0), Op::Read(3))), Some(3_000_000));
}

/// A read of cost 0 on a shaping bucket answers as taking 0 does.
#[test]
fn taking_and_reading_nothing_answer_alike() {
    let leaky = shaping("1/s", 1, 5);
    let mut state = emptied(&leaky, secs(0));
    let read = leaky.decide(&mut state, secs(0), Op::Read(0));
    assert_eq!(read, leaky.decide(&mut state, secs(0), Op::Take(0)));
    assert_eq!(read.delay(), Span::from_secs(5));
}

/// Unwritten, a clock stepped back by 1 h locked the key out for 3,601 s.
#[test]
fn a_denial_writes_the_repair_so_a_stepped_clock_costs_one_second() {
    let bucket = bucket("1/s", 10);
    let mut state = emptied(&bucket, secs(3_600));
    assert_eq!(wait(take(&bucket, &mut state, secs(0), 1)), Some(1_000_000));
    assert_eq!(state.full_at, Moment { ticks: 10_000_000, part: 0 }, "the repair is written");
    assert!(!take(&bucket, &mut state, at(999_999), 1).is_allowed());
    assert!(take(&bucket, &mut state, secs(1), 1).is_allowed());
}

/// A denial for good repairs as well.
#[test]
fn a_cost_that_never_fits_writes_the_repair_too() {
    let bucket = bucket("1/s", 10);
    let mut state = emptied(&bucket, secs(3_600));
    assert!(take(&bucket, &mut state, secs(0), 11).is_never());
    assert_eq!(bucket.idle_at(&state), secs(10));
}

/// What no repair calls for is left alone.
#[test]
fn an_ordinary_denial_changes_nothing() {
    let bucket = bucket("3/s", 5);
    let state = emptied(&bucket, secs(10));
    for back in [0, 1, 999_999] {
        let mut denied = state;
        assert!(!take(&bucket, &mut denied, at(10_300_000 + back % 2), 2).is_allowed());
        assert_eq!(denied, state);
    }
}

/// 2.1: a clock that jumps ahead by J grants min(B, rJ) once, then repairs when it comes back.
#[test]
fn a_clock_that_jumps_ahead_grants_at_most_one_burst() {
    let bucket = bucket("1/s", 10);
    for (jump, granted) in [(4, 4), (10, 10), (3_600, 10)] {
        let mut state = emptied(&bucket, secs(1_000));
        assert_eq!(admitted(&bucket, &mut state, secs(1_000 + jump)), granted);
        assert_eq!(admitted(&bucket, &mut state, secs(1_000)), 0);
        assert_eq!(admitted(&bucket, &mut state, secs(1_001)), 1, "one refill, no lock-out");
    }
}

/// 2.1: an older `now` is only stricter.
#[test]
fn a_clock_that_lags_a_little_frees_nothing() {
    let bucket = bucket("10/s", 10);
    let mut state = BucketState::default();
    take(&bucket, &mut state, secs(10), 5);
    assert_eq!(take(&bucket, &mut state, at(9_900_000), 0).remaining, 4);
    assert_eq!(take(&bucket, &mut state, at(9_500_000), 0).remaining, 0);
    assert_eq!(take(&bucket, &mut state, secs(10), 0).remaining, 5);
}

/// Units come back, never above full, and a key never seen stays so.
#[test]
fn a_return_is_capped_at_the_debt() {
    let bucket = bucket("3/s", 9);
    let mut state = BucketState::default();
    assert_eq!(bucket.decide(&mut state, secs(1), Op::Return(5)).remaining, 9);
    assert_eq!(state, BucketState::default(), "a return creates no key");
    take(&bucket, &mut state, secs(1), 7);
    assert_eq!(bucket.decide(&mut state, secs(1), Op::Return(2)).remaining, 4);
    assert_eq!(state.full_at, Moment { ticks: 2_666_666, part: 2 });
    assert_eq!(bucket.decide(&mut state, secs(1), Op::Return(100)).remaining, 9);
    assert_eq!(admitted(&bucket, &mut state, secs(1)), 9);
}

/// `Force` stops at an empty bucket and reports what it could not book.
#[test]
fn a_forced_cost_books_the_remaining_units_and_reports_the_rest() {
    let (bucket, mut state) = (bucket("1/s", 10), BucketState::default());
    let forced = bucket.decide(&mut state, secs(0), Op::Force(4));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 6, 0));
    let forced = bucket.decide(&mut state, secs(0), Op::Force(9));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 3));
    assert_eq!(wait(take(&bucket, &mut state, secs(0), 1)), Some(1_000_000));
}

/// Units that do not fit take the started unit with them: it is not available a moment later.
#[test]
fn a_forced_cost_that_does_not_fit_empties_the_bucket() {
    let (bucket, mut state) = (bucket("1/s", 10), BucketState::default());
    take(&bucket, &mut state, secs(0), 4);
    // Half a second later, 3.5 units are owed: six are free, and half of the seventh.
    let forced = bucket.decide(&mut state, ms(500), Op::Force(9));
    assert_eq!((forced.remaining, forced.unbooked), (0, 3));
    assert_eq!(state.full_at, Moment { ticks: 10_500_000, part: 0 });
    assert_eq!(wait(take(&bucket, &mut state, ms(500), 1)), Some(1_000_000));
}

/// Seven owed and three given back leave what four owe: four times 142,857 and 1/7 us.
#[test]
fn a_return_is_exact_to_the_fraction_of_a_microsecond() {
    let bucket = bucket("7/s", 9);
    let (mut state, mut four) = (BucketState::default(), BucketState::default());
    take(&bucket, &mut state, secs(1), 7);
    assert_eq!(bucket.decide(&mut state, secs(1), Op::Return(3)).remaining, 5);
    take(&bucket, &mut four, secs(1), 4);
    assert_eq!(state, four);
    assert_eq!(state.full_at, Moment { ticks: 1_571_428, part: 4 });
}

/// What is owed beyond whole units stays owed.
#[test]
fn a_return_of_all_whole_units_leaves_the_begun_one() {
    let (bucket, mut state) = (bucket("1/s", 10), BucketState::default());
    take(&bucket, &mut state, secs(0), 4);
    // Half a second later, 3.5 units are owed; three are returned.
    let decision = bucket.decide(&mut state, ms(500), Op::Return(3));
    assert_eq!((decision.remaining, decision.reset_after), (9, Span::from_millis(500)));
    assert_eq!(state.full_at, Moment { ticks: 1_000_000, part: 0 });
}

/// Giving or forcing nothing is a peek, also of a state that calls for a repair.
#[test]
fn nothing_returned_and_nothing_forced_write_nothing() {
    let bucket = bucket("1/s", 10);
    let stale = emptied(&bucket, secs(3_600));
    for op in [Op::Return(0), Op::Force(0)] {
        let (mut fresh, mut seen) = (BucketState::default(), stale);
        assert_eq!(bucket.decide(&mut fresh, secs(5), op).remaining, 10);
        assert_eq!(bucket.decide(&mut seen, secs(5), op).remaining, 0);
        assert_eq!((fresh, seen), (BucketState::default(), stale), "{op:?}");
    }
}

/// 2.1: the burst and floor(w x N / P), where the interval is no whole number of microseconds.
#[test]
fn the_promise_counts_thirds_of_a_microsecond() {
    let bucket = bucket("3/s", 9);
    for (within, expected) in
        [(0, 9), (333_333, 9), (333_334, 10), (666_666, 10), (666_667, 11), (1_000_000, 12)]
    {
        assert_eq!(bucket.promise(Span::from_micros(within)), Some(expected), "{within} us");
    }
}

#[test]
fn a_reset_deletes_the_debt() {
    let bucket = bucket("1/h", 10);
    let mut state = emptied(&bucket, secs(50));
    let decision = bucket.decide(&mut state, secs(50), Op::Reset);
    assert_eq!((decision.remaining, decision.reset_after), (10, Span::ZERO));
    assert_eq!(state, BucketState::default());
}

/// limitador's `max - hits` would underflow here.
#[test]
fn after_lowering_no_key_waits_longer_than_one_new_refill() {
    let (old, new) = (bucket("1/min", 100), bucket("1/s", 5));
    let mut state = emptied(&old, secs(0));
    let denied = take(&new, &mut state, secs(10), 5);
    assert_eq!((wait(denied), denied.remaining, denied.limit), (Some(5_000_000), 0, 5));
    assert!(take(&new, &mut state, secs(15), 5).is_allowed());
}

/// redis-cell #54 and boulder #8785 deny wrongly after a raise, gubernator refills.
#[test]
fn after_raising_the_debt_is_kept_as_time() {
    let (old, new) = (bucket("10/s", 10), bucket("20/s", 20));
    let mut state = emptied(&old, secs(0));
    assert_eq!(take(&new, &mut state, secs(0), 0).remaining, 0, "no gift");
    assert_eq!(admitted(&new, &mut state, ms(500)), 10, "refilled at the new rate");
}

/// Lowering and raising again forgives at most one burst.
#[test]
fn lowering_then_raising_forgives_at_most_one_burst() {
    let (wide, narrow) = (bucket("1/s", 100), bucket("1/s", 10));
    let mut state = emptied(&wide, secs(1_000));
    assert!(!take(&narrow, &mut state, secs(1_000), 1).is_allowed());
    let mut again = state;
    assert_eq!(admitted(&wide, &mut again, secs(1_000)), 90);
}

/// A fraction written under another rate is rounded up, never lost, never more than one tick.
#[test]
fn a_fraction_of_another_rate_is_worth_at_most_a_tick() {
    let (sevenths, whole) = (bucket("7/s", 1), bucket("1/s", 1));
    let mut state = emptied(&sevenths, secs(0));
    assert_eq!(state.full_at, Moment { ticks: 142_857, part: 1 });
    assert_eq!(whole.idle_at(&state), at(142_858));
    assert!(!take(&whole, &mut state, at(142_857), 1).is_allowed());
    assert!(take(&whole, &mut state, at(142_858), 1).is_allowed());
}

#[test]
fn numbers_out_of_range_are_refused() {
    let rate: Rate = "10/s".parse().unwrap();
    let year: Rate = "1/year".parse().unwrap();
    assert_eq!(Bucket::new(rate, 0), Err(InvalidLimit::Burst));
    assert_eq!(Bucket::new(rate, (1 << 32) + 1), Err(InvalidLimit::Burst));
    assert!(Bucket::new(rate, 1 << 32).is_ok());
    assert!(Bucket::new(year, 100).is_ok());
    assert_eq!(Bucket::new(year, 101), Err(InvalidLimit::RefillTime));
    // A year has no whole seventh in microseconds; 700 of them are a hundred years all the same.
    let sevenths: Rate = "7/year".parse().unwrap();
    assert!(Bucket::new(sevenths, 700).is_ok());
    assert_eq!(Bucket::new(sevenths, 701), Err(InvalidLimit::RefillTime));
    assert_eq!(Bucket::shaping(rate, 0, 1), Err(InvalidLimit::Burst));
    assert_eq!(Bucket::shaping(rate, 1, (1 << 32) + 1), Err(InvalidLimit::Queue));
    assert_eq!(Bucket::shaping(year, 1, 100), Err(InvalidLimit::RefillTime));
    assert_eq!(Bucket::new(Rate::per_second(0), 1), Err(InvalidLimit::Count));
}

/// `Whole`, which skips fractions and delays, decides like the bucket it wraps.
#[test]
fn a_whole_bucket_decides_as_the_bucket_it_is() {
    let bucket = Bucket::new(Rate::per_second(2), 5).unwrap();
    let whole = Whole::new(bucket).expect("half a second is whole microseconds");
    let (mut state, mut other) = (BucketState::default(), BucketState::default());
    let mut now = Timestamp::from_secs(1_000);
    for step in 0..10_000_u64 {
        let op = match step % 7 {
            0 => Op::Take(step % 8),
            1 => Op::Return(1),
            2 => Op::Force(2),
            3 => Op::Read(3),
            4 if step % 11 == 0 => Op::Reset,
            _ => Op::Take(1),
        };
        assert_eq!(whole.is_ahead(&other, now), bucket.is_ahead(&state, now));
        assert_eq!(whole.decide(&mut other, now, op), bucket.decide(&mut state, now, op), "{step}");
        assert_eq!(state, other);
        assert_eq!(whole.idle_at(&other), bucket.idle_at(&state));
        assert_eq!(whole.explain(&other, now), bucket.explain(&state, now));
        let span = Span::from_micros(step * 7_919 % 900_000);
        now = if step % 13 == 0 { now - span } else { now + span };
    }
    assert_eq!(whole.promise(Span::from_secs(3)), Some(11));
    let thirds = Bucket::new(Rate::per_second(3), 5).unwrap();
    assert_eq!(Whole::new(thirds), None);
    assert_eq!(Whole::new(Bucket::shaping(Rate::per_second(2), 1, 4).unwrap()), None);
}

/// Thirds of a second: 4 units take 1,333,333 and 1/3 us, all nine take 3 s.
#[test]
fn a_bucket_reports_its_capacity_and_times() {
    let bucket = bucket("3/s", 9);
    assert_eq!(bucket.capacity(), 9);
    assert_eq!(bucket.time_of(0), Some(Moment::default()));
    assert_eq!(bucket.time_of(4), Some(Moment { ticks: 1_333_333, part: 1 }));
    assert_eq!(bucket.time_of(9), Some(bucket.fill_time()));
    assert_eq!(bucket.fill_time(), Moment { ticks: 3_000_000, part: 0 });
    assert_eq!(bucket.time_of(10), None);
}
