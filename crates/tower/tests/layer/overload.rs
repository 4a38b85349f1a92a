//! Concurrency limiters and classes of a policy.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use http::{Request, Response};
use tidegate::concurrency::{Class, ConcurrencyLimiter, ConcurrencyStats, ShedReason};
use tidegate::policy::{Merging, Policy, PolicyLimiter};
use tidegate::store::memory::MemoryStore;
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate::{Decision, Explanation, Hashing, ManualClock, Timestamp};
use tidegate_tower::RateLimitLayer;
use tokio::sync::Semaphore;

use crate::setup::{ask, comes_true};

const FILE: &str = "
domain: api
classes:
  - {name: critical, plans: [gold]}
  - {name: read, max_share: 80%, default: true}
  - {name: test, max_share: 60%}
class_header: {name: x-class, trusted: [10.0.0.0/8]}
plans: {key: user, members: {gold: [acme]}}
protect:
  - {name: api, estimator: fixed, limit: 5, queue: 0%}
  - {name: reports, estimator: fixed, limit: 1, queue: 0%}
requests:
  rules:
    - {path: /health, protect: none, descriptors: []}
    - {path: /charges, class: critical, descriptors: []}
    - {path: /reports, protect: reports, descriptors: []}
    - descriptors: [{entries: [{key: user, header: x-user}]}]
descriptors:
  - {key: user, rate: 100/min}
";

fn load(text: &str) -> Policy {
    let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

/// A server whose requests end when the test allows it.
struct Server {
    limiter: PolicyLimiter<MemoryStore>,
    app: Router,
    ends: Arc<Semaphore>,
}

impl Server {
    fn new(text: &str) -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).expect("memory");
        let store = store.with_clock(clock.clone().into());
        let limiter = PolicyLimiter::new(load(text), store, clock.into());
        let ends = Arc::new(Semaphore::new(0));
        let handler = {
            let ends = Arc::clone(&ends);
            move |request: Request<Body>| async move {
                if request.headers().contains_key("x-hold") {
                    ends.acquire().await.expect("an open semaphore").forget();
                }
                "served"
            }
        };
        let layer = RateLimitLayer::policy(limiter.clone(), "api");
        let app = Router::new().fallback(any(handler)).layer(layer);
        Self { limiter, app, ends }
    }

    /// Starts requests that hold their permits.
    async fn hold(&self, path: &'static str, count: u32) {
        let before = self.stats(name_of(path)).map_or(0, |stats| stats.in_flight);
        for _ in 0..count {
            let app = self.app.clone();
            tokio::spawn(async move { ask(&app, held(path)).await });
        }
        let all = before + count;
        comes_true(|| self.stats(name_of(path)).is_some_and(|it| it.in_flight == all)).await;
    }

    async fn status(&self, request: Request<Body>) -> u16 {
        self.response(request).await.status().as_u16()
    }

    /// The response to a request that is shed or served at once.
    async fn response(&self, request: Request<Body>) -> Response<Body> {
        ask(&self.app, request).await
    }

    fn stats(&self, name: &str) -> Option<ConcurrencyStats> {
        let policy = self.limiter.policy();
        let domain = policy.domain("api").expect("the domain");
        domain.protections().iter().find(|it| it.name() == name).and_then(|it| it.stats())
    }
}

/// A concurrency limiter without limits.
#[tokio::test]
async fn a_layer_can_protect_a_service_without_limits() {
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let ends = Arc::new(Semaphore::new(0));
    let handler = {
        let ends = Arc::clone(&ends);
        async move || {
            ends.acquire().await.expect("an open semaphore").forget();
            "served"
        }
    };
    let layer = RateLimitLayer::protect(concurrency.clone());
    let app = Router::new().fallback(any(handler)).layer(layer);
    let first = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, get("/")).await }
    });
    comes_true(|| concurrency.stats().in_flight == 1).await;
    let shed = ask(&app, get("/")).await;
    assert_eq!(shed.status(), 503);
    assert!(shed.headers().contains_key("retry-after"));
    ends.add_permits(1);
    let served = first.await.expect("no panic");
    assert_eq!(served.status(), 200);
    assert!(!served.headers().contains_key("ratelimit"));
    drop(served);
    assert_eq!(concurrency.stats().in_flight, 0);
}

fn name_of(path: &str) -> &'static str {
    if path == "/reports" { "reports" } else { "api" }
}

fn get(path: &str) -> Request<Body> {
    Request::builder().uri(path).body(Body::empty()).expect("a request")
}

/// A request that runs until the test ends it.
fn held(path: &str) -> Request<Body> {
    let mut request = get(path);
    request.headers_mut().insert("x-hold", "1".parse().expect("a value"));
    request
}

fn of_class(path: &str, class: &str, peer: [u8; 4]) -> Request<Body> {
    let mut request = get(path);
    request.headers_mut().insert("x-class", class.parse().expect("a value"));
    request.extensions_mut().insert(IpAddr::from(peer));
    request
}

/// The last permit is for critical requests; `x-class` from the internet lowers a class and does not raise
/// it.
#[tokio::test]
async fn ov_30_a_client_lowers_its_class_and_only_a_trusted_peer_raises_it() {
    let server = Server::new(FILE);
    let (internet, gateway) = ([192, 0, 2, 1], [10, 0, 0, 1]);
    server.hold("/charges", 3).await;
    assert_eq!(server.status(of_class("/", "test", internet)).await, 503, "60 % are taken");
    assert_eq!(server.status(get("/")).await, 200, "80 % are not");
    server.hold("/charges", 1).await;
    assert_eq!(server.status(get("/")).await, 503);
    assert_eq!(server.status(of_class("/", "critical", internet)).await, 503);
    assert_eq!(server.status(of_class("/", "critical", gateway)).await, 200);
    assert_eq!(server.status(of_class("/", "unheard-of", gateway)).await, 503);
    assert_eq!(server.status(of_class("/charges", "test", internet)).await, 503);
    assert_eq!(server.status(get("/charges")).await, 200);
    let sheds = server.stats("api").expect("a limiter");
    let of = |rank| sheds.sheds(Class::new(rank), ShedReason::Limit);
    assert_eq!([0, 1, 2].map(of), [0, 3, 2]);
    server.ends.add_permits(100);
}

/// An urgency lowers a class by as much as it is above 3, and raises none, whichever peer sends it.
#[tokio::test]
async fn the_header_priority_only_lowers_a_class() {
    let header = "class_header: {name: x-class, trusted: [10.0.0.0/8]}";
    let server = Server::new(&FILE.replace(header, "class_header: {name: Priority}"));
    let urgent = |path, priority: &'static str| {
        let mut request = of_class(path, "", [10, 0, 0, 1]);
        let value = http::HeaderValue::from_static(priority);
        request.headers_mut().append("priority", value);
        request
    };
    server.hold("/charges", 3).await;
    for lower in ["u=4", "i, u=7", "u=5;x=1, i", "u=1, u=4"] {
        assert_eq!(server.status(urgent("/", lower)).await, 503, "{lower}: 60 % are taken");
    }
    for same in ["", "i", "u=3", "u=0", "u=8", "u=+4", "u=44", "u=4, u=3", "x=4"] {
        assert_eq!(server.status(urgent("/", same)).await, 200, "{same}: 80 % are not");
    }
    assert_eq!(server.status(urgent("/charges", "u=4")).await, 200, "one class lower");
    assert_eq!(server.status(urgent("/charges", "u=5")).await, 503, "two classes lower");
    server.hold("/charges", 1).await;
    assert_eq!(server.status(urgent("/", "u=0")).await, 503, "nothing raises a class");
    server.ends.add_permits(100);
}

/// A store that never answers.
struct Unavailable;

impl Store for Unavailable {
    async fn decide(
        &self,
        _: Timestamp,
        _: Batch<'_>,
        _: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn explain(&self, _: Timestamp, _: &Charge<'_>) -> Result<Explanation, StoreError> {
        Err(StoreError::Timeout)
    }
}

/// Requests that are admitted without a decision still meet the limiter that protects their route.
#[tokio::test]
async fn a_route_is_protected_while_the_store_is_unavailable() {
    let limiter = PolicyLimiter::new(load(FILE), Unavailable, ManualClock::new().into());
    let layer = RateLimitLayer::policy(limiter, "api").admit_on_store_failure();
    let (ends, started) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let handler = {
        let (ends, started) = (Arc::clone(&ends), Arc::clone(&started));
        async move || {
            started.add_permits(1);
            ends.acquire().await.expect("it is never closed").forget();
        }
    };
    let app = Router::new().fallback(any(handler)).layer(layer);
    let limited = || {
        let mut request = get("/reports");
        request.headers_mut().insert("x-user", http::HeaderValue::from_static("bob"));
        request
    };
    let first = tokio::spawn({
        let (app, request) = (app.clone(), limited());
        async move { ask(&app, request).await.status() }
    });
    started.acquire().await.expect("it is never closed").forget();
    assert_eq!(ask(&app, limited()).await.status(), 503, "the limiter of `reports` is full");
    ends.add_permits(1);
    assert_eq!(first.await.expect("a response"), 200);
}

/// The class of a plan holds where no rule names one.
#[tokio::test]
async fn a_plan_has_a_class() {
    let server = Server::new(FILE);
    server.hold("/charges", 4).await;
    let user = |name: &str| {
        let mut request = get("/");
        request.headers_mut().insert("x-user", name.parse().expect("a value"));
        request
    };
    assert_eq!(server.status(user("bob")).await, 503);
    assert_eq!(server.status(user("acme")).await, 200);
    server.ends.add_permits(100);
}

/// Each group of routes has a limiter of its own, and health checks have none.
#[tokio::test]
async fn a_rule_names_the_limiter_of_its_routes() {
    let server = Server::new(FILE);
    server.hold("/charges", 5).await;
    assert_eq!(server.status(get("/charges")).await, 503);
    server.hold("/reports", 1).await;
    assert_eq!(server.status(get("/reports")).await, 503);
    assert_eq!(server.status(get("/health")).await, 200);
    server.ends.add_permits(100);
}

/// A shed request returns its units, and its response has no `RateLimit`, which a served one has.
#[tokio::test]
async fn ov_34_a_503_has_no_ratelimit_and_returns_its_units() {
    let server = Server::new(FILE);
    server.hold("/charges", 4).await;
    let user = || {
        let mut request = get("/");
        request.headers_mut().insert("x-user", "bob".parse().expect("a value"));
        request
    };
    let shed = server.response(user()).await;
    assert_eq!(shed.status(), 503);
    assert!(shed.headers().contains_key("retry-after"));
    assert!(!shed.headers().contains_key("ratelimit"));
    assert!(!shed.headers().contains_key("ratelimit-policy"));
    server.ends.add_permits(4);
    comes_true(|| server.stats("api").is_some_and(|it| it.in_flight == 0)).await;
    let served = server.response(user()).await;
    assert_eq!(served.headers()["ratelimit-policy"], "\"user\";q=100;w=60");
    assert_eq!(served.headers()["ratelimit"], "\"user\";r=99;t=1");
}

/// A policy is replaced while requests are in progress: with the same numbers the limiter stays, with
/// others the requests in progress still count, and every permit comes back.
#[tokio::test]
async fn ov_50_permits_survive_a_policy_that_is_replaced() {
    let server = Server::new(FILE);
    server.hold("/charges", 3).await;
    server.limiter.replace(load(&FILE.replace("100/min", "90/min")));
    assert_eq!(server.stats("api").map(|it| it.in_flight), Some(3), "the same limiter");
    server.limiter.replace(load(&FILE.replace("limit: 5", "limit: 4")));
    assert_eq!(server.status(get("/charges")).await, 200, "the fourth");
    server.hold("/charges", 1).await;
    assert_eq!(server.status(get("/charges")).await, 503, "three of before and one of now");
    server.ends.add_permits(4);
    comes_true(|| server.stats("api").is_some_and(|it| it.in_flight == 0)).await;
    server.hold("/charges", 4).await;
    assert_eq!(server.status(get("/charges")).await, 503);
    server.ends.add_permits(100);
}

/// A limiter in shadow mode counts what it would shed, and holds no request back.
#[tokio::test]
async fn ov_49_a_limiter_in_shadow_mode_only_counts() {
    let server = Server::new(&FILE.replace("limit: 5,", "limit: 5, mode: shadow,"));
    server.hold("/charges", 5).await;
    assert_eq!(server.status(get("/charges")).await, 200);
    let stats = server.stats("api").expect("a limiter");
    assert_eq!(stats.sheds(Class::CRITICAL, ShedReason::Limit), 1);
    let off = Server::new(&FILE.replace("limit: 5,", "limit: 5, mode: off,"));
    assert_eq!(off.status(get("/charges")).await, 200);
    assert_eq!(off.stats("api"), None, "not even counted");
    server.ends.add_permits(100);
}

/// An in-flight limit with a reserve is denied with 503, and another limit with 429.
#[tokio::test]
async fn a_limit_with_status_503_sheds() {
    let file = "
domain: api
classes: [{name: critical}, {name: other}]
requests:
  rules:
    - {path: /charges, class: critical, descriptors: []}
    - descriptors: [{entries: [{key: fleet, value: all}]}]
descriptors:
  - {key: fleet, in_flight: 5, reserve: 20%}
";
    let server = Server::new(file);
    for _ in 0..4 {
        let app = server.app.clone();
        tokio::spawn(async move { ask(&app, held("/")).await });
        tokio::task::yield_now().await;
    }
    let shed = server.response(get("/")).await;
    assert_eq!(shed.status(), 503);
    assert_eq!(shed.headers()["retry-after"], "1");
    assert!(!shed.headers().contains_key("ratelimit"));
    assert_eq!(server.status(get("/charges")).await, 200, "the reserve");
    server.ends.add_permits(100);
}
