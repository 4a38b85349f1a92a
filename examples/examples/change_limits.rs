//! Limits changed at run time. Every key keeps its state.

use std::error::Error;
use std::time::Duration;

use tidegate::{Limit, Limiter, ManualClock, Rate, Span};

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let limiter = Limiter::builder()
        .limit("requests", Limit::token_bucket(Rate::per_second(1)).burst(10).build()?)
        .clock(clock.clone())
        .build()?;
    let left = || limiter.peek("alice", 1).remaining();

    let _ = limiter.check_cost("alice", 8);
    println!("1/s, burst 10: alice took 8, {} left", left());
    assert_eq!(left(), 2);

    // The debt is kept as the time until it is refilled: 8 s.
    limiter.set_limit("requests", Limit::token_bucket(Rate::per_second(1)).burst(20).build()?)?;
    println!("1/s, burst 20: {} left", left());
    assert_eq!(left(), 12);

    // Lowered: 8 s of debt is impossible under these numbers, because a full refill takes 1 s. So no
    // key waits longer than 1 s because of the old limit.
    limiter.set_limit("requests", Limit::token_bucket(Rate::per_second(5)).burst(5).build()?)?;
    println!("5/s, burst  5: {} left", left());
    let denied = limiter.check("alice");
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(200)));
    clock.advance(Span::from_secs(1));
    assert_eq!(left(), 5);

    // Another handle, say in another thread, sees the change.
    let handle = limiter.clone();
    limiter.set_limit("requests", Limit::token_bucket(Rate::per_second(7)).build()?)?;
    assert_eq!(handle.peek("alice", 1).limit(), 7);

    // Another algorithm has another state, so every key starts afresh.
    limiter.set_limit("requests", Limit::sliding_window(Rate::per_minute(100)).build()?)?;
    assert_eq!(left(), 100);

    let wrong = limiter.set_limit("request", Limit::gcra(Rate::per_second(1)).build()?);
    println!("a wrong name: {}", wrong.err().ok_or("there is no such limit")?);
    Ok(())
}
