//! The tower layer over a real Redis that nodes share.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode};
use tidegate::concurrency::Class;
use tidegate::policy::{self, Descriptor, Entry, Granted, Merging, Policy, PolicyLimiter};
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::{Clock, Limit, Limiter, Rate, SharedLimiter, Span};
use tidegate_tests::servers::RedisServer;
use tidegate_tower::{Header, OneKey, RateLimitLayer};
use tower::ServiceExt;

fn config(server: &RedisServer) -> RedisConfig {
    RedisConfig::new(&server.url()).expect("a URL").deadline(Duration::from_secs(10))
}

async fn limiter(server: &RedisServer, limit: Limit) -> SharedLimiter<RedisStore> {
    let store = RedisStore::connect(config(server)).await.expect("a server");
    Limiter::builder().limit("per client", limit).shared(store).expect("a valid limit")
}

fn bucket(units: u64) -> Limit {
    Limit::token_bucket(Rate::per_hour(1)).burst(units).build().expect("valid numbers")
}

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "served")).layer(layer)
}

async fn ask(app: &Router) -> Response<Body> {
    let request = Request::builder().uri("/").header("x-user", "17").body(Body::empty());
    let Ok(response) = app.clone().oneshot(request.expect("a request")).await;
    response
}

/// Waits until a condition on the shared state holds, at most ten seconds.
async fn comes_true(mut is_true: impl AsyncFnMut() -> bool) {
    let waiting = async {
        let mut pause = tokio::time::interval(Duration::from_millis(5));
        while !is_true().await {
            pause.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it comes true");
}

#[tokio::test]
async fn two_nodes_share_one_limit() {
    let server = RedisServer::start();
    let mut nodes = Vec::new();
    for _ in 0..2 {
        let layer = RateLimitLayer::limit(limiter(&server, bucket(10)).await);
        nodes.push(app(layer.identify(Header::named("x-user"))));
    }
    let mut admitted = 0;
    for number in 0..30 {
        let response = ask(&nodes[number % 2]).await;
        assert!(response.headers().contains_key("ratelimit"));
        admitted += usize::from(response.status() == 200);
    }
    assert_eq!(admitted, 10);
}

/// A client that leaves while Redis decides gets no units, although Redis took them.
#[tokio::test]
async fn a_request_cancelled_while_redis_decides_returns_its_units() {
    let server = RedisServer::start();
    let limiter = limiter(&server, bucket(10)).await;
    let app = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    assert_eq!(ask(&app).await.status(), 200);
    server.pause();
    let waiting = tokio::spawn({
        let app = app.clone();
        async move { ask(&app).await.status() }
    });
    let mut pause = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..3 {
        pause.tick().await;
    }
    assert!(!waiting.is_finished());
    waiting.abort();
    assert!(waiting.await.is_err());
    server.resume();
    comes_true(async || limiter.peek("", 1).await.expect("a verdict").remaining() == 9).await;
}

/// The slot of a leaky bucket in Redis is returned if it is the last one.
#[tokio::test]
async fn a_cancelled_delay_returns_the_last_slot() {
    let server = RedisServer::start();
    let limit = Limit::leaky_bucket(Rate::per_minute(1)).burst(1).queue(3).build();
    let limiter = limiter(&server, limit.expect("valid numbers")).await;
    let app = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    assert_eq!(ask(&app).await.status(), 200);
    let left = async || limiter.peek("", 1).await.expect("a verdict").remaining();
    let mut waiting = Vec::new();
    for expected in [2, 1] {
        let app = app.clone();
        waiting.push(tokio::spawn(async move { ask(&app).await.status() }));
        comes_true(async || left().await == expected).await;
    }
    let (first, last) = (waiting.remove(0), waiting.remove(0));
    last.abort();
    comes_true(async || left().await == 2).await;
    // Now the first one is the last.
    first.abort();
    comes_true(async || left().await == 3).await;
}

/// A place in flight is held until the body ends.
#[tokio::test]
async fn places_in_redis_are_held_until_the_body_ends() {
    let server = RedisServer::start();
    let limit = Limit::in_flight(1, Span::from_secs(60)).expect("valid numbers");
    let limiter = limiter(&server, limit).await;
    let app = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    let served = ask(&app).await;
    assert_eq!(served.status(), 200);
    let denied = ask(&app).await;
    assert_eq!(
        (denied.status().as_u16(), &denied.headers()["retry-after"]),
        (429, &"1".parse().expect("a value"))
    );
    drop(served);
    comes_true(async || limiter.peek("", 1).await.expect("a verdict").is_allowed()).await;
    assert_eq!(ask(&app).await.status(), 200);
}

#[tokio::test]
async fn a_store_that_is_unavailable_is_503_without_ratelimit() {
    let server = RedisServer::start();
    let limiter = limiter(&server, bucket(10)).await;
    let strict = app(RateLimitLayer::limit(limiter.clone()).identify(OneKey));
    let lenient = app(RateLimitLayer::limit(limiter).identify(OneKey).admit_on_store_failure());
    assert_eq!(ask(&strict).await.status(), 200);
    server.kill();
    let failed = ask(&strict).await;
    assert_eq!(failed.status(), 503);
    assert_eq!(failed.headers()["retry-after"], "1");
    assert!(!failed.headers().contains_key("ratelimit"));
    assert_eq!(ask(&lenient).await.status(), 200);
}

/// A policy over the production stack; `on_store_failure: deny` is 503.
#[tokio::test]
async fn a_policy_denies_while_redis_is_unavailable() {
    let file = "
domain: api
requests:
  rules:
    - {path: /, descriptors: [{entries: [{key: user, header: x-user}]}]}
descriptors:
  - {key: user, rate: 2/h, on_store_failure: deny}
";
    let server = RedisServer::start();
    let clock = Clock::default();
    let store = SharedStore::connect(config(&server), SharedOptions::default(), clock.clone());
    let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
    let policy = loaded.policy.expect("no mistakes");
    let limiter = PolicyLimiter::new(policy, store.await.expect("a server"), clock);
    let app = app(RateLimitLayer::policy(limiter, "api"));
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(ask(&app).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
    server.kill();
    comes_true(async || ask(&app).await.status() == 503).await;
    let failed = ask(&app).await;
    assert!(failed.headers().contains_key("retry-after"));
    assert!(!failed.headers().contains_key("ratelimit"));
}

/// A body that ends with the number of tokens in a trailer.
async fn failed_with_tokens() -> Response<Body> {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-tokens", HeaderValue::from_static("300"));
    let frames = [Frame::data(Bytes::from("it broke")), Frame::trailers(trailers)];
    let body = StreamBody::new(stream::iter(frames.map(Ok::<_, Infallible>)));
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response
}

/// Settled by the head; of a limit that the trailers settle too, the head counts, which was there first.
#[tokio::test]
async fn ov_38_a_response_that_is_refunded_costs_nothing_in_redis() {
    let file = "
domain: api
requests:
  rules:
    - {path: '/{page}', descriptors: [{entries: [{key: page, path_parameter: page}]}]}
descriptors:
  - {key: page, value: cached, rate: 10/day, refund: [304]}
  - {key: page, value: failed, rate: 2000/day, cost: 800, refund: [5xx], actual: {trailer: x-tokens}}
";
    let server = RedisServer::start();
    let clock = Clock::default();
    let store = SharedStore::connect(config(&server), SharedOptions::default(), clock.clone());
    let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
    let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
    let limiter = PolicyLimiter::new(policy, store.await.expect("a server"), clock);
    let app = Router::new()
        .route("/cached", get(async || StatusCode::NOT_MODIFIED))
        .route("/failed", get(failed_with_tokens))
        .layer(RateLimitLayer::policy(limiter.clone(), "api"));
    for (page, status, units) in [("cached", 304, 10), ("failed", 500, 2_000)] {
        for _ in 0..5 {
            let request = Request::builder().uri(format!("/{page}")).body(Body::empty());
            let Ok(response) = app.clone().oneshot(request.expect("a request")).await;
            assert_eq!(response.status(), status);
            response.into_body().collect().await.expect("a whole body");
            let entries = [Entry { key: "page", value: page }];
            let descriptors = [Descriptor::new(&entries)];
            let request =
                policy::Request { domain: "api", descriptors: &descriptors, hits: Some(1) };
            comes_true(async || {
                limiter.peek(&request).await.expect("a server").remaining() == units
            })
            .await;
        }
    }
    assert_eq!(limiter.settle_stats().sums.settled, 10);
}

/// Three nodes share 100 places, 20 of which are kept for critical requests. What a killed node holds is
/// free again after the time to live.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn ov_05_three_nodes_keep_a_reserve_and_survive_the_death_of_one() {
    let file = "
domain: api
classes: [{name: critical}, {name: other}]
descriptors:
  - {key: fleet, in_flight: 100, reserve: 20%, ttl: 2s}
";
    let server = RedisServer::start();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let clock = Clock::default();
        let store = SharedStore::connect(config(&server), SharedOptions::default(), clock.clone());
        let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
        let policy = loaded.policy.expect("no mistakes");
        nodes.push(PolicyLimiter::new(policy, store.await.expect("a server"), clock));
    }
    let ask = async |node: &PolicyLimiter<SharedStore<RedisStore>>, class: u8| {
        let entries = [Entry { key: "fleet", value: "all" }];
        let class = Some(Class::new(class));
        let descriptors = [Descriptor { class, ..Descriptor::new(&entries) }];
        let request = policy::Request { domain: "api", descriptors: &descriptors, hits: None };
        let Granted { verdict, leases, .. } =
            node.acquire_leases(&request).await.expect("a verdict");
        assert_eq!(verdict.is_allowed(), !leases.is_empty());
        assert_eq!(verdict.is_denied(), verdict.is_unavailable(), "503, never 429");
        Some(leases).filter(|leases| !leases.is_empty())
    };
    let storm = async |class: u8, requests: usize| {
        let tasks: Vec<_> = (0..requests)
            .map(|number| {
                let (node, ask) = (nodes[number % 3].clone(), ask);
                tokio::spawn(async move { (number % 3, ask(&node, class).await) })
            })
            .collect();
        let mut held = Vec::new();
        for task in tasks {
            let (node, leases) = task.await.expect("an answer");
            held.extend(leases.map(|leases| (node, leases)));
        }
        held
    };
    // One place is certainly of the third node, however the storm is decided.
    let mut held = vec![(2, ask(&nodes[2], 1).await.expect("the first place"))];
    held.extend(storm(1, 150).await);
    assert_eq!(held.len(), 80, "the other classes together");
    held.extend(storm(0, 60).await);
    assert_eq!(held.len(), 100);
    // The third node is killed: it neither releases nor renews. The others keep what they hold.
    held.retain(|(node, _)| *node < 2);
    assert!(held.len() < 100);
    let missing = 100 - held.len();
    let mut regained = Vec::new();
    comes_true(async || {
        for (node, leases) in &held {
            assert!(nodes[*node].renew(leases).await.expect("a verdict"), "held by a live node");
        }
        while let Some(leases) = ask(&nodes[0], 0).await {
            regained.push((0, leases));
        }
        regained.len() == missing
    })
    .await;
    for (node, leases) in held.iter().chain(&regained) {
        nodes[*node].release(leases).await.expect("a release");
    }
    assert_eq!(storm(1, 90).await.len(), 80);
}
