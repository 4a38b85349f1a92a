//! The production stack in one call: a hot key is decided from leased units, and a Redis that stops is no
//! error.
//!
//! Needs a Redis: `cargo run -p tidegate-examples --features redis --example leased_limits -- redis://127.0.0.1:6379`.

use std::error::Error;

use tidegate::Clock;
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::{SharedOptions, SharedStore};

const POLICY: &str = "
domain: shop
descriptors:
  - {key: tenant, rate: 20000/s, tier: leased, on_store_failure: local}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let (config, clock) = (RedisConfig::new(&url)?, Clock::default());
    let store = SharedStore::connect(config, SharedOptions::default(), clock.clone()).await?;
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    let policy = loaded.policy.ok_or_else(|| loaded.findings.to_string())?;
    let limiter = PolicyLimiter::new(policy, store, clock);

    let entries = [Entry { key: "tenant", value: "acme" }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: "shop", descriptors: &descriptors, hits: None };
    let mut admitted = 0;
    for _ in 0..10_000 {
        admitted += u32::from(limiter.check(&request).await?.is_allowed());
    }
    let leases = limiter.store().stats().leases;
    println!("admitted {admitted} of 10,000 requests, {} from leased units", leases.spent);
    assert_eq!(admitted, 10_000);
    assert!(leases.spent > 0, "a hot key is decided without asking Redis");

    // On shutdown, unspent units are returned to Redis.
    limiter.store().return_leases().await;
    assert_eq!(limiter.store().stats().leases.outstanding, 0);
    Ok(())
}
