//! The quick way through a limiter (one limit, the machine's clock) against the full one.
//!
//! `check` goes the quick way, `check_cost(key, 1)` the full one: two limiters that are asked the
//! same must answer the same. Limits are counted in days, so that the clock takes no part.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use tidegate::{Limit, Limiter, Rate, Span, Verdict};

fn limits() -> Vec<(&'static str, Limit)> {
    let day = Rate::per_day;
    vec![
        ("whole bucket", Limit::token_bucket(day(1)).burst(5).build().unwrap()),
        ("bucket in parts", Limit::token_bucket(day(7)).burst(5).build().unwrap()),
        ("awkward bucket", Limit::token_bucket(day(10_007)).burst(5).build().unwrap()),
        ("leaky bucket", Limit::leaky_bucket(day(1)).burst(2).queue(3).build().unwrap()),
        ("fixed window", Limit::fixed_window(Rate::new(5, WEEK)).build().unwrap()),
        ("sliding window", Limit::sliding_window(Rate::new(5, WEEK)).build().unwrap()),
        ("sliding log", Limit::sliding_log(Rate::new(5, WEEK)).build().unwrap()),
    ]
}

const WEEK: Span = Span::from_secs(7 * 86_400);

fn limiter(limit: Limit) -> Limiter {
    Limiter::builder().limit("default", limit).max_bytes(16 << 20).build().unwrap()
}

/// Both answers, as far as a few milliseconds between them do not matter.
fn assert_alike(quick: &Verdict, full: &Verdict, context: &str) {
    let answer = |v: &Verdict| (v.is_allowed(), v.limit(), v.remaining(), v.is_never());
    assert_eq!(answer(quick), answer(full), "{context}");
    let micros = |v: &Verdict| {
        let waits = [v.reset_after(), v.delay(), v.retry_after().unwrap_or_default()];
        waits.map(|wait| wait.as_micros())
    };
    for (quick, full) in micros(quick).into_iter().zip(micros(full)) {
        assert!(quick.abs_diff(full) < 60_000_000, "{context}: {quick} and {full}");
    }
}

/// Keys in an order that repeats each six times, most of them while the table grows.
fn keys() -> impl Iterator<Item = String> {
    (0..60_000_u64).map(|i| format!("user:{}", i.wrapping_mul(0x9E37_79B9) % 10_000))
}

#[test]
fn the_quick_way_answers_as_the_full_one() {
    for (name, limit) in limits() {
        let (quick, full) = (limiter(limit), limiter(limit));
        let mut denied = 0;
        for key in keys() {
            let verdict = quick.check(&key);
            denied += u64::from(verdict.is_denied());
            assert_alike(&verdict, &full.check_cost(&key, 1), &format!("{name}, {key}"));
        }
        assert_eq!(denied, 10_000, "{name}: each key once more than it may");
    }
}

#[test]
fn many_keys_at_once_are_answered_as_one_by_one() {
    for (name, limit) in limits() {
        let (batched, single) = (limiter(limit), limiter(limit));
        let keys: Vec<String> = keys().collect();
        let mut verdicts = Vec::new();
        batched.check_each(&keys, &mut verdicts);
        assert_eq!(verdicts.len(), keys.len(), "{name}");
        for (key, verdict) in keys.iter().zip(verdicts) {
            assert_alike(&verdict, &single.check_cost(key, 1), &format!("{name}, {key}"));
        }
    }
}

/// From every limit to every other and back: what was spent stays spent within a family.
#[test]
fn limits_that_change_lead_to_the_same_answers_either_way() {
    for (first_name, first) in limits() {
        for (second_name, second) in limits() {
            let (quick, full) = (limiter(first), limiter(first));
            for limit in [first, second, first, second] {
                quick.set_limit("default", limit).unwrap();
                full.set_limit("default", limit).unwrap();
                for key in (0..50).map(|i| format!("user:{i}")) {
                    let context = format!("{first_name} and {second_name}, {key}");
                    assert_alike(&quick.check(&key), &full.check_cost(&key, 1), &context);
                }
            }
        }
    }
}

/// Where nothing more fits, the quick way forgets and shares as the full one does.
#[test]
fn a_full_table_is_no_way_around_a_limit() {
    let limit = Limit::token_bucket(Rate::per_day(1)).burst(1).build().unwrap();
    let tiny = Limiter::builder().limit("default", limit).max_bytes(64 << 10).build().unwrap();
    let admitted = (0..100_000).filter(|i| tiny.check(format!("key:{i}")).is_allowed()).count();
    let stats = tiny.stats();
    assert!(stats.overflowed > 0, "{stats:?}");
    assert_eq!(stats.evicted, 0, "every key denies its next unit");
    // Each has a slot of its own or shares the one unit of the overflow state.
    assert!(admitted as u64 <= stats.keys + 1, "{admitted} admitted, {stats:?}");
}
