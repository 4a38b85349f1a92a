//! A leaky bucket: a burst is admitted with delays, so that the service behind gets one request per
//! interval.

use std::error::Error;
use std::time::Duration;

use tidegate::{Limit, Limiter, ManualClock, Rate, Span, SystemClock};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // One every 100 ms; four may queue, the next is denied.
    let limit = Limit::leaky_bucket(Rate::per_second(10)).queue(4).build()?;
    let limiter = Limiter::builder().limit("default", limit).clock(ManualClock::new()).build()?;
    for number in 0..6 {
        let verdict = limiter.check("printer");
        match verdict.retry_after() {
            None => println!("{number}: start after {:?}", verdict.delay()),
            Some(wait) => println!("{number}: the queue is full, ask again in {wait:?}"),
        }
        assert_eq!(verdict.is_allowed(), number < 5);
        assert!(verdict.is_denied() || verdict.delay() == Duration::from_millis(100 * number));
    }

    // On the real clock, `until_ready` waits for the delay.
    let limiter = Limiter::new(Limit::leaky_bucket(Rate::per_second(100)).queue(4).build()?);
    let clock = SystemClock::new();
    let start = clock.now();
    for number in 0..4 {
        limiter.until_ready("printer").await;
        let at = clock.now().since(start);
        println!("{number} started after {} ms", at.as_micros() / 1_000);
    }
    assert!(clock.now().since(start) >= Span::from_millis(29), "three intervals of 10 ms");
    Ok(())
}
