//! Waiting instead of a denial: in order of arrival, and cancellable.

use std::error::Error;
use std::time::Duration;

use tidegate::{Limit, Limiter, Rate, Span, SystemClock};
use tokio::time::timeout;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // One every 20 ms.
    let limiter = Limiter::new(Limit::gcra(Rate::per_second(50)).build()?);
    let clock = SystemClock::new();
    let start = clock.now();

    // Four jobs start at once. Each waits for its turn.
    let jobs: Vec<_> = (1..=4)
        .map(|job| {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            tokio::spawn(async move {
                limiter.until_ready("mail server").await;
                let at = clock.now().since(start);
                println!("job {job} went after {} ms", at.as_micros() / 1_000);
                at
            })
        })
        .collect();
    let mut times = Vec::new();
    for job in jobs {
        times.push(job.await?);
    }
    assert!(times.is_sorted(), "first come, first served");
    assert!(times[3] >= Span::from_millis(59), "three times 20 ms after the first");

    // A timeout drops the future, which leaves the queue and spends nothing.
    let slow = Limiter::new(Limit::token_bucket(Rate::per_hour(1)).burst(2).build()?);
    assert!(slow.until_ready("archive").await.is_allowed());
    let both = slow.until_ready_cost("archive", 2);
    let given_up = timeout(Duration::from_millis(1), both).await.is_err();
    println!("gave up: {given_up}, left: {}", slow.peek("archive", 1).remaining());
    assert!(given_up);
    assert!(slow.until_ready("archive").await.is_allowed());

    // A request that can never pass is denied at once instead of waiting for ever.
    let never = limiter.until_ready_cost("mail server", 2).await;
    assert!(never.is_never());
    println!("two at once: never, the limit is {}", never.limit());
    Ok(())
}
