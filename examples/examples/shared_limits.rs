//! Two nodes, one limit: state in Redis.
//!
//! Needs a Redis:
//! `cargo run -p tidegate-examples --features redis --example shared_limits -- redis://127.0.0.1:6379`.

use std::error::Error;
use std::time::Duration;

use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::{Limit, Limiter, Rate, SharedLimiter};

/// What each node does at start, with the same limits on all nodes.
async fn node(url: &str) -> Result<SharedLimiter<RedisStore>, Box<dyn Error>> {
    let config = RedisConfig::new(url)?.deadline(Duration::from_millis(250));
    let store = RedisStore::connect(config).await?;
    store.findings().iter().for_each(|finding| eprintln!("{finding}"));
    let limiter = Limiter::builder()
        .limit("per minute", Limit::token_bucket(Rate::per_minute(10)).build()?)
        .limit("per day", Limit::fixed_window(Rate::per_day(1_000)).build()?)
        .shared(store)?;
    Ok(limiter)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let (here, there) = (node(&url).await?, node(&url).await?);
    here.reset("user:17").await?;

    let mut admitted = 0;
    for _ in 0..10 {
        for limiter in [&here, &there] {
            admitted += u32::from(limiter.check("user:17").await?.is_allowed());
        }
    }
    println!("two nodes were asked 20 times and admitted {admitted}");
    assert_eq!(admitted, 10);

    let verdict = there.check("user:17").await?;
    let wait = verdict.retry_after().ok_or("a denial says when to come back")?;
    println!("the next one is free in {wait:?}");
    for part in here.explain("user:17").await?.parts() {
        println!("{}: {}", part.name, part.state.ok_or("every limit has a state")?);
    }
    Ok(())
}
