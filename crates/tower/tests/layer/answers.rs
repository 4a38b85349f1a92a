//! Responses by cause.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tidegate::concurrency::ConcurrencyLimiter;
use tidegate::{Limit, Rate, Span};
use tidegate_tower::{AnswerBody, Answers, Cost, Event, OneKey, RateLimitLayer};

use crate::setup::{app, ask, bucket, of, request, serve, text};

#[tokio::test]
async fn a_denial_is_429_with_fields_and_problem_details() {
    let address = serve(app(RateLimitLayer::limit(bucket(1).0).identify(OneKey))).await;
    let client = reqwest::Client::new();
    let url = format!("http://{address}/");
    let served = client.get(&url).send().await.expect("an answer");
    assert_eq!(served.status(), 200);
    assert_eq!(served.headers()["ratelimit"], "\"per client\";r=0;t=1");
    assert_eq!(served.headers()["ratelimit-policy"], "\"per client\";q=1;w=1");
    assert!(!served.headers().contains_key("retry-after"));
    assert_eq!(served.text().await.expect("a body"), "served");

    let denied = client.get(&url).send().await.expect("an answer");
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "1");
    assert_eq!(denied.headers()["ratelimit"], "\"per client\";r=0;t=1");
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert!(!denied.headers().contains_key("x-ratelimit-limit"));
    let problem: Value = serde_json::from_str(&denied.text().await.expect("a body")).expect("JSON");
    let kind = "https://iana.org/assignments/http-problem-types#quota-exceeded";
    assert_eq!(problem["type"], kind);
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["per client"]));
    assert_eq!(problem["retry_after_ms"], 1_000);
    assert_eq!(problem["limits"][0]["name"], "per client");
}

/// A denial without header fields on success still tells the limit that denied.
#[tokio::test]
async fn a_denial_is_complete_where_success_has_no_fields() {
    let layer = RateLimitLayer::limit(bucket(1).0)
        .identify(OneKey)
        .answers(Answers::problem_json().on_denials_only().with_x_rate_limit());
    let app = app(layer);
    let served = ask(&app, request()).await;
    assert_eq!(served.status(), 200);
    assert!(!served.headers().keys().any(|name| name.as_str().contains("ratelimit")));
    let denied = ask(&app, request()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["ratelimit"], "\"per client\";r=0;t=1");
    assert_eq!(denied.headers()["x-ratelimit-limit"], "1");
    assert_eq!(denied.headers()["x-ratelimit-remaining"], "0");
    assert!(text(denied).await.contains("\"violated-policies\":[\"per client\"]"));
}

#[tokio::test]
async fn bodies_are_as_configured() {
    for (body, kind, start) in [
        (
            AnswerBody::ProblemJson,
            Some("application/problem+json"),
            "{\"type\":\"https://iana.org/",
        ),
        (AnswerBody::Json, Some("application/json"), "{\"allowed\":false,\"limit\":1,"),
        (AnswerBody::Empty, None, ""),
    ] {
        let layer =
            RateLimitLayer::limit(bucket(1).0).identify(OneKey).answers(Answers::with(body));
        let app = app(layer);
        ask(&app, request()).await;
        let denied = ask(&app, request()).await;
        let found = denied.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        assert_eq!(found, kind);
        let text = text(denied).await;
        assert!(text.starts_with(start), "{text}");
        assert_eq!(text.is_empty(), body == AnswerBody::Empty);
    }
}

/// A cost that never fits has no `Retry-After`.
#[tokio::test]
async fn a_request_that_never_fits_is_not_told_to_retry() {
    let layer = RateLimitLayer::limit(bucket(2).0).identify(OneKey).cost(|_| 1);
    let app = app(layer);
    let mut expensive = request();
    expensive.extensions_mut().insert(Cost(3));
    let denied = ask(&app, expensive).await;
    assert_eq!(denied.status(), 429);
    assert!(!denied.headers().contains_key("retry-after"));
    assert!(text(denied).await.contains("\"never\":true"));
    let mut two = request();
    two.extensions_mut().insert(Cost(2));
    assert_eq!(ask(&app, two).await.status(), 200);
    assert_eq!(ask(&app, request()).await.status(), 429);
}

/// Too many requests of one key in progress is 429 with a hint, because leases expire much later.
#[tokio::test]
async fn too_many_in_flight_is_429_with_a_hint() {
    let (limiter, _) = of(Limit::in_flight(1, Span::from_secs(3_600)).expect("valid numbers"));
    let app = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    let held = limiter.acquire("");
    let denied = ask(&app, request()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "1");
    drop(held);
    assert_eq!(ask(&app, request()).await.status(), 200);
    assert_eq!(limiter.peek("", 1).remaining(), 1, "released with the body");
}

#[tokio::test]
async fn ov_32_a_shed_request_is_503_without_ratelimit_and_returns_its_units() {
    let (limiter, _) = bucket(5);
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    let app = app(layer.concurrency(concurrency.clone()));
    let held = concurrency.take(tidegate::concurrency::Class::CRITICAL);
    let shed = ask(&app, request()).await;
    assert_eq!(shed.status(), 503);
    assert_eq!(shed.headers()["retry-after"], "1");
    assert!(
        !shed.headers().contains_key("ratelimit")
            && !shed.headers().contains_key("ratelimit-policy")
    );
    assert!(text(shed).await.contains("#temporary-reduced-capacity"));
    assert_eq!(limiter.peek("", 1).remaining(), 5);
    drop(held);
    let served = ask(&app, request()).await;
    assert_eq!(served.status(), 200);
    assert!(served.headers().contains_key("ratelimit"));
}

/// A request over its rate is never counted as overload.
#[tokio::test]
async fn ov_31_over_the_rate_is_429_even_if_the_server_is_full() {
    let (limiter, _) = bucket(1);
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    let app = app(layer.concurrency(concurrency.clone()));
    let _held = concurrency.take(tidegate::concurrency::Class::CRITICAL);
    assert!(limiter.check("").is_allowed());
    assert_eq!(ask(&app, request()).await.status(), 429);
    let sheds = concurrency.stats();
    let class = tidegate::concurrency::Class::CRITICAL;
    assert_eq!(sheds.sheds(class, tidegate::concurrency::ShedReason::Limit), 0);
}

#[tokio::test]
async fn shadow_mode_serves_and_counts() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&seen);
    let layer =
        RateLimitLayer::limit(bucket(1).0).identify(OneKey).shadow().observe(move |event| {
            let name = match event {
                Event::Admitted(_) => "admitted",
                Event::WouldDeny(_) => "would deny",
                _ => "other",
            };
            events.lock().expect("no panic").push(name);
        });
    let app = app(layer);
    for _ in 0..2 {
        let served = ask(&app, request()).await;
        assert_eq!(served.status(), StatusCode::OK);
        assert!(!served.headers().contains_key("ratelimit"));
    }
    assert_eq!(*seen.lock().expect("no panic"), ["admitted", "would deny"]);
}

/// Fields of the inner service are kept, and those of two layers are members of one list.
#[tokio::test]
async fn fields_of_two_layers_are_members_of_one_list() {
    let per_minute = Limit::token_bucket(Rate::per_minute(60)).build().expect("valid numbers");
    let (inner, outer) = (bucket(5).0, of(per_minute).0);
    let app = app(RateLimitLayer::limit(inner).identify(OneKey))
        .layer(RateLimitLayer::limit(outer).identify(OneKey));
    let served = ask(&app, request()).await;
    let fields: Vec<_> = served.headers().get_all("ratelimit").iter().collect();
    assert_eq!(fields, ["\"per client\";r=4;t=1", "\"per client\";r=59;t=1"]);
}
