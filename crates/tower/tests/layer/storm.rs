//! Thousands of concurrent requests, many of which are cancelled or shed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::concurrency::ConcurrencyLimiter;
use tidegate::{InFlight, Limit, Limiter, ManualClock, Rate};
use tidegate_tower::{OneKey, RateLimitLayer};

use crate::setup::{ask, comes_true, request, serve};

const REQUESTS: u64 = 4_000;

/// Every unit is either spent by a request that was served, or back.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancelled_and_shed_requests_leave_nothing_behind() {
    let (limiter, concurrency, served) = limits(u64::from(u32::MAX));
    let app = app(&limiter, &concurrency, &served);
    let tasks: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move {
                let asking = ask(&app, request());
                match fastrand::u8(..4) {
                    0 => drop(tokio::time::timeout(fraction(), asking).await),
                    _ => drop(asking.await),
                }
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        match number % 7 {
            0 => task.abort(),
            _ => task.await.expect("a request that ends"),
        }
    }
    comes_true(|| concurrency.stats().in_flight == 0).await;
    assert_eq!(concurrency.stats().queued, 0);
    let spent = served.load(Ordering::Relaxed);
    assert!(spent > 0);
    comes_true(|| left(&limiter, "units") == u64::from(u32::MAX) - spent).await;
    comes_true(|| left(&limiter, "places") == 64).await;
}

/// Over real connections, exactly as many requests as units reach the handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_over_connections_admits_exactly_the_limit() {
    let (limiter, concurrency, served) = limits(500);
    let address = serve(app(&limiter, &concurrency, &served)).await;
    let client = reqwest::Client::new();
    let tasks: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let asking = client.get(format!("http://{address}/")).send();
            tokio::spawn(async move { asking.await.expect("an answer").status().as_u16() })
        })
        .collect();
    let mut counts = std::collections::BTreeMap::<u16, u64>::new();
    for task in tasks {
        *counts.entry(task.await.expect("a request that ends")).or_default() += 1;
    }
    let admitted = served.load(Ordering::Relaxed);
    assert_eq!(counts.get(&200), Some(&admitted));
    assert_eq!(counts.values().sum::<u64>(), REQUESTS);
    assert!(admitted <= 500, "{counts:?}");
    comes_true(|| left(&limiter, "units") == 500 - admitted).await;
}

fn limits(units: u64) -> (Limiter, ConcurrencyLimiter, Arc<AtomicU64>) {
    let window = Limit::fixed_window(Rate::per_day(units)).build();
    let limiter = Limiter::builder()
        .limit("units", window.expect("valid numbers"))
        .limit("places", Limit::in_flight(64, InFlight::NO_EXPIRY).expect("valid numbers"))
        .clock(ManualClock::new());
    let concurrency = ConcurrencyLimiter::fixed(16).queue(200, Duration::from_millis(20)).build();
    (limiter.build().expect("memory"), concurrency, Arc::default())
}

fn app(limiter: &Limiter, concurrency: &ConcurrencyLimiter, served: &Arc<AtomicU64>) -> Router {
    let served = Arc::clone(served);
    let handler = move || {
        served.fetch_add(1, Ordering::Relaxed);
        async move {
            tokio::task::yield_now().await;
            "served"
        }
    };
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    Router::new().route("/", get(handler)).layer(layer.concurrency(concurrency.clone()))
}

fn left(limiter: &Limiter, name: &str) -> u64 {
    let report = limiter.explain("");
    let part = report.parts().find(|part| part.name == name);
    part.and_then(|part| part.state).map_or(0, |state| state.remaining)
}

fn fraction() -> std::time::Duration {
    std::time::Duration::from_micros(fastrand::u64(..3_000))
}
