//! Several limits on one request: all are charged or none is.

use std::error::Error;

use tidegate::{Limit, Limiter, ManualClock, Rate, Span};

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let limiter = Limiter::builder()
        .limit("user per second", Limit::token_bucket(Rate::per_second(2)).build()?)
        .limit("user per hour", Limit::fixed_window(Rate::per_hour(5)).build()?)
        .limit("tenant per minute", Limit::token_bucket(Rate::per_minute(6)).build()?)
        .clock(clock.clone())
        .build()?;

    // One key for each limit, in the order above: two limits count the user, one the tenant.
    let request = |user: &str| {
        let verdict = limiter.check_together(&[user, user, "acme"]);
        let denied_by: Vec<String> = verdict
            .denied_by()
            .filter_map(|number| limiter.limit_name(number))
            .map(|name| name.to_string())
            .collect();
        match verdict.retry_after() {
            None => println!("{user:>5}: allowed, {} left", verdict.remaining()),
            Some(wait) => println!("{user:>5}: denied by {denied_by:?}, again in {wait:?}"),
        }
        denied_by
    };

    for _ in 0..2 {
        assert!(request("alice").is_empty());
    }
    assert_eq!(request("alice"), ["user per second"]);

    clock.advance(Span::from_secs(1));
    for _ in 0..2 {
        assert!(request("alice").is_empty());
    }
    clock.advance(Span::from_secs(1));
    assert!(request("alice").is_empty());
    assert_eq!(request("alice"), ["user per hour"], "five this hour");

    // Five of the tenant's six units are used: denied requests were not charged.
    assert!(request("bob").is_empty());
    assert_eq!(request("bob"), ["tenant per minute"]);

    // `check` uses the same key for all limits.
    assert!(limiter.check("carol").is_allowed());
    Ok(())
}
