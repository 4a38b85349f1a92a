//! Many keys in one call. Each is decided separately, as by `check`, but the memory of all is
//! prefetched together: with millions of keys, memory latency is most of the time of a decision.

use std::error::Error;

use tidegate::{Limit, Limiter, Rate, SystemClock};

fn main() -> Result<(), Box<dyn Error>> {
    const KEYS: usize = 100_000;
    let limit = Limit::token_bucket(Rate::per_hour(2)).build()?;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("user:{number}")).collect();

    // A batch of events, some of the same user: the second sees the units of the first as taken.
    let limiter = Limiter::new(limit);
    let mut verdicts = Vec::new();
    limiter.check_each(&["alice", "bob", "alice", "alice"], &mut verdicts);
    let allowed: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_allowed()).collect();
    println!("alice, bob, alice, alice: {allowed:?}");
    assert_eq!(allowed, [true, true, true, false]);

    // Verdicts are appended; clear and reuse the vector to allocate nothing.
    verdicts.clear();
    limiter.check_each(&keys, &mut verdicts);
    assert_eq!(verdicts.len(), KEYS);
    assert!(verdicts.iter().all(|verdict| verdict.is_allowed()));

    let clock = SystemClock::new();
    let start = clock.now();
    let one_by_one = keys.iter().filter(|key| limiter.check(key).is_allowed()).count();
    let middle = clock.now();
    verdicts.clear();
    limiter.check_each(&keys, &mut verdicts);
    let end = clock.now();
    assert_eq!(one_by_one, KEYS, "the second of two each");
    assert!(verdicts.iter().all(|verdict| verdict.is_denied()));
    println!("{KEYS} keys one by one: {}, together: {}", middle.since(start), end.since(middle));

    let stats = limiter.stats();
    println!("{} keys in {} KiB", stats.keys, stats.bytes / 1_024);
    assert_eq!(stats.evicted, 0);
    Ok(())
}
