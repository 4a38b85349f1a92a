//! Limits from a policy.

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get, post};
use http::Request;
use tidegate::concurrency::{Class, ConcurrencyLimiter};
use tidegate::policy::{self, Descriptor, Entry, Merging, Policy, PolicyLimiter};
use tidegate::store::memory::MemoryStore;
use tidegate::{Hashing, ManualClock};
use tidegate_tower::{Cost, RateLimitLayer};

use crate::setup::{ask, serve, text};

const FILE: &str = "
domain: api
requests:
  trusted_proxies: 1
  rules:
    - path: /login
      methods: [POST]
      descriptors: [{entries: [{key: login_from, client_ip: true}]}]
    - path: '/users/{id}'
      descriptors: [{entries: [{key: user, path_parameter: id}]}]
descriptors:
  - {key: login_from, rate: 1/min}
  - {key: user, rate: 2/min}
";

fn load(text: &str) -> Policy {
    let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

fn limiter(text: &str) -> PolicyLimiter<MemoryStore> {
    let clock = ManualClock::new();
    let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).expect("memory");
    PolicyLimiter::new(load(text), store.with_clock(clock.clone().into()), clock.into())
}

fn routes(layer: RateLimitLayer) -> Router {
    Router::new()
        .route("/login", post(async || "in"))
        .route("/users/{id}", get(async || "user"))
        .route("/free", get(async || "free"))
        .layer(layer)
}

fn get_request(path: &str) -> Request<Body> {
    let peer = std::net::IpAddr::from([192, 0, 2, 9]);
    Request::builder().uri(path).extension(peer).body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn a_policy_limits_routes_and_is_replaced_while_it_runs() {
    let limiter = limiter(FILE);
    let address = serve(routes(RateLimitLayer::policy(limiter.clone(), "api"))).await;
    let client = reqwest::Client::new();
    let login = async |client_ip: &str| {
        let request = client.post(format!("http://{address}/login"));
        request.header("x-forwarded-for", client_ip).send().await.expect("an answer")
    };
    let served = login("192.0.2.1").await;
    assert_eq!(served.status(), 200);
    assert_eq!(served.headers()["ratelimit"], "\"login_from\";r=0;t=60");
    let denied = login("spoofed, 192.0.2.1").await;
    assert_eq!(
        (denied.status().as_u16(), &denied.headers()["retry-after"]),
        (429, &"60".parse().expect("a value"))
    );
    assert_eq!(login("192.0.2.2").await.status(), 200);
    for _ in 0..3 {
        let free = client.get(format!("http://{address}/free")).send().await.expect("an answer");
        assert_eq!(free.status(), 200);
        assert!(!free.headers().contains_key("ratelimit"), "no limit counted it");
    }
    limiter.replace(load(&FILE.replace("login_from, rate: 1/min", "login_from, rate: 2/min")));
    let retried = login("192.0.2.1").await;
    assert_eq!(retried.headers()["ratelimit-policy"], "\"login_from\";q=2;w=60");
}

#[tokio::test]
async fn a_cost_and_an_ambiguous_request() {
    let app = routes(RateLimitLayer::policy(limiter(FILE), "api"));
    let mut expensive = get_request("/users/17");
    expensive.extensions_mut().insert(Cost(2));
    assert_eq!(ask(&app, expensive).await.status(), 200);
    assert_eq!(ask(&app, get_request("/users/17")).await.status(), 429);
    let ambiguous = ask(&app, get_request("/users/17%2fx")).await;
    assert_eq!(ambiguous.status(), 400);
    assert!(text(ambiguous).await.contains("\"detail\":\"rate limits: "));
}

/// Rules that read the client's address need the peer, and say so.
#[tokio::test]
async fn a_missing_peer_is_an_error() {
    let app = routes(RateLimitLayer::policy(limiter(FILE), "api"));
    let mut request = get_request("/free");
    request.extensions_mut().clear();
    let failed = ask(&app, request).await;
    assert_eq!(failed.status(), 500);
    assert!(text(failed).await.contains("the request has no peer"));
}

/// A typing error in the domain must not go unnoticed.
#[tokio::test]
async fn an_unknown_domain_is_an_error() {
    let app = routes(RateLimitLayer::policy(limiter(FILE), "apy"));
    let failed = ask(&app, get_request("/free")).await;
    assert_eq!(failed.status(), 500);
    assert!(text(failed).await.contains("the policy has no such domain"));
}

/// A shed request returns what the policy charged; a leaky bucket's slot too, if it is the last.
#[tokio::test]
async fn ov_32_a_shed_request_returns_the_units_of_a_policy() {
    let file = FILE.replace(
        "{key: user, rate: 2/min}",
        "{key: user, limits: [{name: a, rate: 9/min}, {name: b, rate: 8/min, algorithm: fixed_window}, \
         {name: c, rate: 7/s, algorithm: leaky_bucket, queue: 5, burst: 2}]}",
    );
    let limiter = limiter(&file);
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let layer = RateLimitLayer::policy(limiter.clone(), "api").concurrency(concurrency.clone());
    let app = routes(layer);
    let _held = concurrency.take(Class::CRITICAL);
    for _ in 0..5 {
        assert_eq!(ask(&app, get_request("/users/17")).await.status(), 503);
    }
    let entries = [Entry { key: "user", value: "17" }];
    let descriptors = [Descriptor::new(&entries)];
    let request = policy::Request { domain: "api", descriptors: &descriptors, hits: Some(0) };
    let verdict = limiter.check_now(&request).expect("a verdict");
    let left: Vec<u64> =
        verdict.parts().filter_map(|part| part.decision).map(|it| it.remaining).collect();
    assert_eq!(left, [9, 8, 7]);
}

/// Also of limits behind one that keeps a reserve, which has two records for a request of a lower class.
#[tokio::test]
async fn a_shed_request_returns_the_units_of_limits_behind_a_reserve() {
    let file = FILE.replace(
        "{key: user, rate: 2/min}",
        "{key: user, limits: [{name: fleet, in_flight: 10, reserve: 20%}, {name: a, rate: 9/min}, \
         {name: b, rate: 8/min, algorithm: fixed_window}]}",
    );
    let limiter = limiter(&format!("{file}classes: [{{name: critical}}, {{name: other}}]\n"));
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let layer = RateLimitLayer::policy(limiter.clone(), "api").concurrency(concurrency.clone());
    let app = routes(layer);
    let _held = concurrency.take(Class::CRITICAL);
    for _ in 0..5 {
        assert_eq!(ask(&app, get_request("/users/17")).await.status(), 503);
    }
    let entries = [Entry { key: "user", value: "17" }];
    let descriptors = [Descriptor::new(&entries)];
    let request = policy::Request { domain: "api", descriptors: &descriptors, hits: Some(0) };
    let verdict = limiter.explain_now(&request).expect("a verdict");
    let left: Vec<(&str, u64)> =
        verdict.parts().filter_map(|part| Some((part.name, part.state?.remaining))).collect();
    assert_eq!(left, [("fleet", 10), ("fleet~other", 8), ("a", 9), ("b", 8)]);
}

/// One request of each user at a time, until its response body ends.
#[tokio::test]
async fn an_in_flight_limit_of_a_policy_is_held_until_the_body_ends() {
    let file = "
domain: api
requests:
  rules:
    - path: '/users/{id}'
      descriptors: [{entries: [{key: user, path_parameter: id}]}]
descriptors:
  - {key: user, limits: [{name: running, in_flight: 1, ttl: 60s}, {name: rate, rate: 100/min}]}
";
    let app = routes(RateLimitLayer::policy(limiter(file), "api"));
    let first = ask(&app, get_request("/users/17")).await;
    assert_eq!(first.status(), 200);
    let second = ask(&app, get_request("/users/17")).await;
    assert_eq!(
        (second.status().as_u16(), &second.headers()["retry-after"]),
        (429, &"1".parse().expect("text"))
    );
    assert_eq!(ask(&app, get_request("/users/18")).await.status(), 200, "another user");
    assert_eq!(text(first).await, "user");
    assert_eq!(ask(&app, get_request("/users/17")).await.status(), 200);
}
