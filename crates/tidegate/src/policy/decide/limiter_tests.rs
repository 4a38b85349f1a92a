//! A wall clock that is corrected while the limiter runs.

use std::time::Duration;

use tidegate_core::{Span, Timestamp};

use super::*;
use crate::clock::ManualClock;
use crate::policy::{Descriptor, Entry, Merging};

const HOUR: Span = Span::from_secs(3_600);
const DAY: Span = Span::from_secs(86_400);
/// 2026-03-04 12:00 UTC.
const NOON: Timestamp = Timestamp::from_secs(1_772_625_600);

const POLICY: &str = "
domain: shop
descriptors:
  - key: both
    limits:
      - {name: quota, rate: 3/day, algorithm: fixed_window, calendar: {tz: UTC}}
      - {name: rate, rate: 100/day, burst: 100}
  - key: quota
    rate: 3/day
    algorithm: fixed_window
    calendar: {tz: UTC}
  - {key: window, rate: 3/day, algorithm: fixed_window}
  - key: plan
    rate: 3/day
    overrides: [{value: bob, rate: 50/day, until: 2026-03-05}]
";

fn limiter() -> (PolicyLimiter<MemoryStore>, ManualClock) {
    let loaded = Policy::load_at(&[("policy.yaml", POLICY)], Merging::Refuse, NOON);
    let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
    let clock = ManualClock::at(NOON);
    let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).unwrap();
    let store = store.with_clock(clock.clone().into());
    (PolicyLimiter::new(policy, store, clock.clone().into()), clock)
}

fn check(limiter: &PolicyLimiter<MemoryStore>, key: &str, value: &str) -> Verdict {
    let entries = [Entry { key, value }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: "shop", descriptors: &descriptors, hits: None };
    limiter.check_now(&request).unwrap()
}

fn drain(limiter: &PolicyLimiter<MemoryStore>, key: &str) -> usize {
    (0..10).take_while(|_| check(limiter, key, "bob").is_allowed()).count()
}

/// The fields that are written once for all admissions of a limit are those of [`Verdict::headers`].
#[cfg(feature = "http")]
#[test]
fn the_fields_of_admissions_are_those_of_any_verdict() {
    let file = "
domain: shop
descriptors:
  - {key: bucket, rate: 7/min, burst: 9}
  - {key: fixed, rate: 7/min, algorithm: fixed_window}
  - {key: sliding, rate: 7/h, algorithm: sliding_window}
  - {key: gcra, rate: 7/s, algorithm: gcra, burst: 3}
  - {key: plan, rate: 5/min, overrides: [{value: ann, rate: 50/min}]}
";
    let loaded = Policy::load_at(&[("policy.yaml", file)], Merging::Refuse, NOON);
    let clock = ManualClock::at(NOON);
    let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).unwrap();
    let store = store.with_clock(clock.clone().into());
    let limiter = PolicyLimiter::new(loaded.policy.unwrap(), store, clock.clone().into());
    let mut written = 0;
    for round in 0..4_u64 {
        for key in ["bucket", "fixed", "sliding", "gcra", "plan"] {
            for value in ["bob", "ann", "a \"quoted\" name"] {
                let verdict = check(&limiter, key, value);
                let headers = verdict.headers();
                let Some(fields) = verdict.admission_fields() else { continue };
                assert_eq!(fields.policy(), headers.rate_limit_policy(), "{key} {value}");
                assert_eq!(fields.state().unwrap(), headers.rate_limit(), "{key} {value}");
                written += 1;
            }
        }
        clock.advance(Duration::from_millis(400 + 700 * round));
    }
    // All but those of the one value whose numbers are not those of the first value of its limit.
    assert_eq!(written, 4 * (5 * 3 - 1));
}

#[test]
fn a_calendar_window_follows_a_corrected_wall_clock() {
    let (limiter, clock) = limiter();
    for key in ["quota", "both", "window"] {
        assert_eq!(drain(&limiter, key), 3, "{key}");
    }
    clock.set_wall(NOON + DAY);
    assert_eq!(drain(&limiter, "quota"), 3, "another day");
    assert_eq!(drain(&limiter, "both"), 3, "charged together with a bucket");
    assert_eq!(drain(&limiter, "window"), 0, "a plain window goes by monotonic time");
    // The wait is told by wall time, too.
    assert_eq!(
        check(&limiter, "quota", "bob").retry_after(),
        Some(Duration::from_secs(12 * 3_600))
    );
    // A correction that crosses no midnight changes nothing.
    clock.set_wall(NOON + DAY + HOUR);
    assert_eq!(drain(&limiter, "quota") + drain(&limiter, "both"), 0);
}

#[test]
fn a_wall_clock_that_goes_back_denies_no_longer_than_a_window_and_an_hour() {
    let (limiter, clock) = limiter();
    clock.set_wall(NOON + DAY);
    assert_eq!(drain(&limiter, "quota"), 3);
    clock.set_wall(NOON);
    assert_eq!(drain(&limiter, "quota"), 3, "noon is further from midnight than an hour");
    // Half an hour before midnight the next window is kept, so that a small step frees nothing.
    let midnight = NOON + Span::from_secs(12 * 3_600);
    clock.set_wall(midnight);
    assert_eq!(drain(&limiter, "quota"), 3);
    clock.set_wall(Timestamp::from_micros(midnight.as_micros() - HOUR.as_micros() / 2));
    assert_eq!(drain(&limiter, "quota"), 0);
    let wait = check(&limiter, "quota", "bob").retry_after().unwrap();
    assert!(wait <= (DAY + HOUR).into(), "{wait:?}");
}

#[test]
fn an_override_ends_by_wall_time() {
    let (limiter, clock) = limiter();
    let capacity = |limiter| check(limiter, "plan", "bob").limit();
    assert_eq!(capacity(&limiter), 50);
    clock.set_wall(NOON + DAY);
    assert_eq!(capacity(&limiter), 3);
    clock.set_wall(NOON);
    assert_eq!(capacity(&limiter), 50);
}

/// The table takes slots back whose windows are over; a period that is over by monotonic time only is not.
#[test]
fn no_calendar_window_is_dropped_before_it_ends() {
    let (limiter, clock) = limiter();
    clock.set_wall(NOON - Span::from_secs(2 * 86_400));
    assert_eq!(drain(&limiter, "quota"), 3);
    for stranger in 0..2_000 {
        check(&limiter, "quota", &stranger.to_string());
    }
    assert_eq!(drain(&limiter, "quota"), 0, "a full table keeps the keys that it denies");
}

/// The example of README, guide and `explain`: buckets keep the share used, windows the units.
#[test]
fn a_changed_limit_keeps_the_share_that_a_bucket_has_used() {
    let policy = |numbers: &str| {
        let text = format!("domain: api\ndescriptors:\n  - {{key: user, {numbers}}}\n");
        let loaded = Policy::load(&[("p.yaml", &text)], Merging::Refuse);
        loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
    };
    let left = |before: &str, used: u64, after: &str| {
        let clock = Clock::from(ManualClock::new());
        let store = MemoryStore::new(MemoryStore::DEFAULT_BYTES, Hashing::Fast).unwrap();
        let store = store.with_clock(clock.clone());
        let limiter = PolicyLimiter::new(policy(before), store, clock);
        let entries = [Entry { key: "user", value: "bob" }];
        let descriptors = [Descriptor::new(&entries)];
        let request = Request { domain: "api", descriptors: &descriptors, hits: Some(used) };
        assert!(limiter.check_now(&request).unwrap().is_allowed());
        limiter.replace(policy(after));
        let explained = limiter.explain_now(&request).unwrap();
        explained.parts().find_map(|part| part.state).map(|state| state.remaining)
    };
    assert_eq!(left("rate: 5/min", 3, "rate: 10/min"), Some(4));
    assert_eq!(left("rate: 5/min", 5, "rate: 8/min"), Some(0));
    assert_eq!(left("rate: 10/min", 3, "rate: 5/min"), Some(3));
    let window = |count: u32| format!("rate: {count}/min, algorithm: fixed_window");
    assert_eq!(left(&window(5), 3, &window(10)), Some(7));
}
