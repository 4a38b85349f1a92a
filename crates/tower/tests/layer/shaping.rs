//! Delays of leaky buckets, queues, and the units of requests that do not start.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::concurrency::{Class, ConcurrencyLimiter};
use tidegate::{Limit, Limiter, Rate};
use tidegate_tower::{OneKey, RateLimitLayer, Timeout};

use crate::setup::{app, ask, bucket, of, request};

/// Five requests per second: one starts at once, five more are delayed by 200 ms each.
fn leaky() -> Limiter {
    let limit = Limit::leaky_bucket(Rate::per_second(5)).burst(1).queue(5).build();
    of(limit.expect("valid numbers")).0
}

/// Lets other tasks run until they wait, without passing time.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ov_41_a_delayed_request_holds_no_permit() {
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let in_handler = Arc::new(AtomicU32::new(0));
    let (seen, limiter) = (Arc::clone(&in_handler), concurrency.clone());
    let handler = move || async move { seen.store(limiter.stats().in_flight, Ordering::Relaxed) };
    let layer = RateLimitLayer::limit(leaky()).identify(OneKey).concurrency(concurrency.clone());
    let app = Router::new().route("/", get(handler)).layer(layer);
    assert_eq!(ask(&app, request()).await.status(), 200);
    in_handler.store(0, Ordering::Relaxed);
    let started = tokio::time::Instant::now();
    let delayed = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, request()).await.status() }
    });
    settle().await;
    assert_eq!(concurrency.stats().in_flight, 0, "asleep");
    assert_eq!(in_handler.load(Ordering::Relaxed), 0, "not started");
    tokio::time::advance(Duration::from_millis(199)).await;
    settle().await;
    assert_eq!(in_handler.load(Ordering::Relaxed), 0, "not started");
    assert_eq!(delayed.await.expect("an answer"), 200);
    assert_eq!(in_handler.load(Ordering::Relaxed), 1, "a permit while it is served");
    let waited = started.elapsed().as_millis();
    assert!((200..210).contains(&waited), "{waited} ms");
}

#[tokio::test(start_paused = true)]
async fn a_delay_past_the_deadline_is_denied_and_its_slot_returned() {
    let limiter = leaky();
    let app = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    assert_eq!(ask(&app, request()).await.status(), 200);
    let left = limiter.peek("", 1).remaining();
    for _ in 0..3 {
        let mut hurried = request();
        hurried.extensions_mut().insert(Timeout(Duration::from_millis(199)));
        let denied = ask(&app, hurried).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(denied.headers()["retry-after"], "1");
    }
    let mut call = request();
    call.headers_mut().insert("grpc-timeout", "199m".parse().expect("a value"));
    assert_eq!(ask(&app, call).await.status(), 429);
    assert_eq!(limiter.peek("", 1).remaining(), left);
    let mut patient = request();
    patient.extensions_mut().insert(Timeout(Duration::from_millis(200)));
    assert_eq!(ask(&app, patient).await.status(), 200);
}

/// Only the last slot is returned: later requests already have theirs.
#[tokio::test(start_paused = true)]
async fn a_cancelled_request_returns_its_slot_only_if_it_is_the_last() {
    let limiter = leaky();
    let app = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    assert_eq!(ask(&app, request()).await.status(), 200);
    let mut waiting = Vec::new();
    for _ in 0..3 {
        let app = app.clone();
        waiting.push(tokio::spawn(async move { ask(&app, request()).await.status() }));
        settle().await;
    }
    let left = || limiter.peek("", 1).remaining();
    assert_eq!(left(), 2);
    waiting.remove(0).abort();
    settle().await;
    assert_eq!(left(), 2, "two requests are behind it");
    waiting.remove(1).abort();
    settle().await;
    assert_eq!(left(), 3, "the last one");
    assert_eq!(waiting.remove(0).await.expect("an answer"), 200);
}

#[tokio::test(start_paused = true)]
async fn ov_11_a_request_cancelled_in_the_queue_returns_its_units() {
    let (limiter, _) = bucket(5);
    let concurrency = ConcurrencyLimiter::fixed(1).queue(200, Duration::from_secs(60)).build();
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    let app = app(layer.concurrency(concurrency.clone()));
    let held = concurrency.take(Class::CRITICAL);
    let queued = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, request()).await.status() }
    });
    settle().await;
    assert_eq!((concurrency.stats().queued, limiter.peek("", 1).remaining()), (1, 4));
    queued.abort();
    settle().await;
    assert_eq!((concurrency.stats().queued, limiter.peek("", 1).remaining()), (0, 5));
    drop(held);
    assert_eq!(ask(&app, request()).await.status(), 200);
}

/// A class that is more important takes the place of another in the queue.
#[tokio::test(start_paused = true)]
async fn the_class_of_a_request_is_read_from_its_head() {
    let concurrency = ConcurrencyLimiter::fixed(1).queue(100, Duration::from_secs(60)).build();
    let layer = RateLimitLayer::limit(bucket(9).0)
        .identify(OneKey)
        .concurrency(concurrency.clone())
        .class(|head| Class::new(u8::from(head.headers.contains_key("x-batch"))));
    let app = app(layer);
    let held = concurrency.take(Class::CRITICAL);
    let mut batch = request();
    batch.headers_mut().insert("x-batch", "1".parse().expect("a value"));
    let ask = |request| {
        let app = app.clone();
        tokio::spawn(async move { crate::setup::ask(&app, request).await.status() })
    };
    let batch = ask(batch);
    settle().await;
    let critical = ask(request());
    assert_eq!(batch.await.expect("an answer"), 503);
    drop(held);
    assert_eq!(critical.await.expect("an answer"), 200);
}
