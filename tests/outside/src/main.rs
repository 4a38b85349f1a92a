//! The five jobs of a service author, each in at most eight lines of the public API.
//!
//! `outside redis://127.0.0.1:6379 policy.yaml` runs them all; `tests/outside.rs` starts it.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use http::HeaderMap;
use http::request::Parts;
use tidegate::policy::{PolicyLimiter, Watch};
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::{Clock, Limit, Limiter, Permit, Rate, Verdict};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Limits per key, with headers.
fn limits_per_key(limiter: &Limiter, key: &str) -> (u16, HeaderMap) {
    let verdict = limiter.report(key, 1);
    let status = if verdict.is_allowed() { 200 } else { 429 };
    (status, verdict.headers().into())
}

/// Routes from a file, read again when it changes.
fn routes_from_a_file(path: &str) -> Outcome<(PolicyLimiter<MemoryStore>, Watch)> {
    let limiter = PolicyLimiter::from_path(path)?;
    let watch = limiter.follow(path, |refusal| eprintln!("{refusal}"))?;
    Ok((limiter, watch))
}

/// Concurrency: at most two reports of one user at once.
fn concurrency(user: u64) -> Outcome<(Permit, Permit, Verdict)> {
    let limiter = Limiter::new(Limit::in_flight(2, Duration::from_secs(60))?);
    let first = limiter.acquire(user).permit().ok_or("a free place")?;
    let second = limiter.acquire(user).permit().ok_or("a free place")?;
    let third = limiter.acquire(user);
    Ok((first, second, third.verdict().clone()))
}

/// The same limit on every node, in Redis.
async fn redis(url: &str, address: IpAddr) -> Outcome<[bool; 2]> {
    let config = RedisConfig::new(url)?;
    let store = SharedStore::connect(config, SharedOptions::default(), Clock::default()).await?;
    let limit = Limit::sliding_window(Rate::new(1, Duration::from_secs(3_600))).build()?;
    let limiter = Limiter::builder().limit("per address", limit).shared(store)?;
    let route = (address, "/login");
    Ok([limiter.check(route).await?.is_allowed(), limiter.check(route).await?.is_allowed()])
}

/// Waiting instead of being denied.
async fn waiting() -> Outcome<u64> {
    let limiter = Limiter::new(Limit::gcra(Rate::per_second(200)).build()?);
    for _ in 0..3 {
        limiter.until_ready("mail server").await;
    }
    Ok(limiter.peek("mail server", 1).remaining())
}

fn request(path: &str) -> Outcome<Parts> {
    let (mut parts, ()) = http::Request::get(path).body(())?.into_parts();
    parts.extensions.insert(IpAddr::from([192, 0, 2, 1]));
    Ok(parts)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let (url, path) = arguments.next().zip(arguments.next()).ok_or("usage: outside URL FILE")?;

    let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(1)).build()?);
    let (status, headers) = limits_per_key(&limiter, "key-17");
    assert_eq!((status, headers["ratelimit"].to_str()?), (200, "\"default\";r=0;t=60"));
    let (status, headers) = limits_per_key(&limiter, "key-17");
    assert_eq!((status, headers["retry-after"].to_str()?), (429, "60"));

    let (limiter, _watch) = routes_from_a_file(&path)?;
    assert!(limiter.check_http_now("shop", &request("/search?q=tea")?)?.is_allowed());
    assert!(limiter.check_http_now("shop", &request("/search?q=tea")?)?.is_denied());
    std::fs::write(&path, std::fs::read_to_string(&path)?.replace("rate: 1/h", "rate: 1000/h"))?;
    while limiter.check_http_now("shop", &request("/search")?)?.limit() != 1_000 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let (_first, _second, third) = concurrency(17)?;
    assert!(third.is_denied());
    assert_eq!(redis(&url, IpAddr::from([192, 0, 2, 1])).await?, [true, false]);
    assert_eq!(waiting().await?, 0);
    println!("all five jobs are done");
    Ok(())
}
