//! Login protection that counts failures only: five wrong passwords in a quarter of an hour, whether they come
//! one by one or all at once. Right passwords cost nothing.
//!
//! `cargo run -p tidegate-examples --features tower --example failed_logins`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http::{HeaderMap, StatusCode};
use tidegate::policy::{Merging, Policy, PolicyLimiter};
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;

const POLICY: &str = "
domain: accounts
requests:
  rules:
    - path: /login
      methods: [POST]
      descriptors: [{entries: [{key: login, header: x-account}]}]
descriptors:
  - {key: login, rate: 5/15min, algorithm: sliding_log, count: [401]}
";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let loaded = Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse);
    let limiter = PolicyLimiter::in_memory(loaded.policy.ok_or(loaded.findings)?)?;
    let hashed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hashed);
    let login = async move |headers: HeaderMap| {
        count.fetch_add(1, Ordering::Relaxed);
        // A slow hash: the next guesses come in meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
        match headers.get("x-password").is_some_and(|it| it == "correct horse") {
            true => StatusCode::OK,
            false => StatusCode::UNAUTHORIZED,
        }
    };
    let app = Router::new()
        .route("/login", post(login))
        .layer(RateLimitLayer::policy(limiter, "accounts"));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/login", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = reqwest::Client::new();
    let attempt = |account: &str, password: &str| {
        let request = client.post(&url).header("x-account", account);
        request.header("x-password", password).send()
    };
    for _ in 0..20 {
        assert_eq!(attempt("bob", "correct horse").await?.status(), 200);
    }
    println!("20 right passwords in a row: all served");

    hashed.store(0, Ordering::Relaxed);
    let guesses: Vec<_> =
        (0..100).map(|number| tokio::spawn(attempt("ann", &format!("guess {number}")))).collect();
    let mut denied = 0;
    for guess in guesses {
        denied += usize::from(guess.await??.status() == 429);
    }
    println!("100 guesses at once: {} tried, {denied} denied", hashed.load(Ordering::Relaxed));
    assert_eq!((hashed.load(Ordering::Relaxed), denied), (5, 95));
    Ok(())
}
