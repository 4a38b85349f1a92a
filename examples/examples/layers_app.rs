//! The application of `examples/layers`: axum with limits for each user, shared through Redis.
//!
//! Needs a Redis: `cargo run -p tidegate-examples --features redis,tower --example layers_app -- \
//! redis://127.0.0.1:6379 127.0.0.1:8001`. Without the second address it answers a request of its own and ends.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::Clock;
use tidegate::policy::{Merging, Policy, PolicyLimiter};
use tidegate::store::redis::RedisConfig;
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;

const POLICY: &str = include_str!("../layers/application.yaml");

/// How long a report takes.
const SLOW: Duration = Duration::from_secs(1);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let address = arguments.next();

    let (config, clock) = (RedisConfig::new(&url)?, Clock::default());
    let store = SharedStore::connect(config, SharedOptions::default(), clock.clone()).await?;
    let loaded = Policy::load(&[("application.yaml", POLICY)], Merging::Refuse);
    let policy = loaded.policy.ok_or_else(|| loaded.findings.to_string())?;
    let limiter = PolicyLimiter::new(policy, store, clock);
    let report = async || {
        tokio::time::sleep(SLOW).await;
        "a report\n"
    };
    let app = Router::new()
        .route("/", get(async || "a page\n"))
        .route("/reports/{name}", get(report))
        .layer(RateLimitLayer::policy(limiter, "application"));

    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:0")).await?;
    let own = format!("http://{}/", listener.local_addr()?);
    println!("listening on {own}");
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    if address.is_some() {
        serving.await??;
    } else {
        let response = reqwest::Client::new().get(own).header("x-user", "ann").send().await?;
        println!(
            "{}, ratelimit-policy: {:?}",
            response.status(),
            response.headers()["ratelimit-policy"]
        );
        assert_eq!(response.status(), 200);
    }
    Ok(())
}
