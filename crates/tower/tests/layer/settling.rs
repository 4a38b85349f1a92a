//! Limits that are settled by the response.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use http_body::Frame;
use tidegate::policy::{
    Descriptor, Entry, Merging, Policy, PolicyLimiter, Request, RequestOutcome, Settlement,
};
use tidegate::store::memory::MemoryStore;
use tidegate::{Hashing, ManualClock};
use tidegate_tower::{ActualCost, Hold, RateLimitLayer};

use crate::setup::serve;

const FILE: &str = "
domain: api
requests:
  rules:
    - {path: '/{key}/{any...}', descriptors: [{entries: [{key: rule, path_parameter: key}]}]}
descriptors:
  - {key: rule, value: login, rate: 5/15min, algorithm: sliding_log, count: [401]}
  - {key: rule, value: cached, rate: 10/min, refund: [304]}
  - {key: rule, value: header, rate: 2000/min, cost: 800, actual: {header: x-tokens}}
  - {key: rule, value: trailer, rate: 2000/min, cost: 800, actual: {trailer: x-tokens}}
  - {key: rule, value: call, rate: 5/min, count: [UNAUTHENTICATED, PERMISSION_DENIED, 401]}
  - {key: rule, value: application, rate: 2000/min, cost: 800, actual: {application: true}}
";

fn limiter() -> PolicyLimiter<MemoryStore> {
    let loaded = Policy::load(&[("policy.yaml", FILE)], Merging::Refuse);
    let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
    let clock = ManualClock::new();
    let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).expect("memory");
    PolicyLimiter::new(policy, store.with_clock(clock.clone().into()), clock.into())
}

/// A service behind the layer, with its limiter.
struct Bench {
    limiter: PolicyLimiter<MemoryStore>,
    address: SocketAddr,
    client: reqwest::Client,
}

impl Bench {
    async fn serve(routes: Router) -> Self {
        Self::behind(routes, |layer| layer).await
    }

    async fn behind(routes: Router, change: impl FnOnce(RateLimitLayer) -> RateLimitLayer) -> Self {
        let limiter = limiter();
        let layer = change(RateLimitLayer::policy(limiter.clone(), "api"));
        let address = serve(routes.layer(layer)).await;
        Self { limiter, address, client: reqwest::Client::new() }
    }

    async fn get(&self, path: &str) -> u16 {
        let response = self.client.get(format!("http://{}{path}", self.address)).send().await;
        let response = response.expect("an answer");
        let status = response.status().as_u16();
        // A body that breaks off is a case.
        let _ = response.bytes().await;
        status
    }

    /// Units of a rule that are left.
    async fn left(&self, rule: &str) -> u64 {
        let entries = [Entry { key: "rule", value: rule }];
        let descriptors = [Descriptor::new(&entries)];
        let request = Request { domain: "api", descriptors: &descriptors, hits: Some(1) };
        self.limiter.peek(&request).await.expect("memory").remaining()
    }

    /// Settlement follows the response, so it is waited for.
    async fn has_left(&self, rule: &str, units: u64) {
        let mut pause = tokio::time::interval(Duration::from_millis(1));
        for _ in 0..1_000 {
            if self.left(rule).await == units {
                return;
            }
            pause.tick().await;
        }
        assert_eq!(self.left(rule).await, units, "{rule}");
    }
}

/// A login with a right or a wrong password, and how many requests reached it.
fn login(reached: &Arc<AtomicUsize>) -> Router {
    let reached = Arc::clone(reached);
    Router::new().route(
        "/login/{word}",
        get(async move |Path(word): Path<String>| {
            reached.fetch_add(1, Ordering::SeqCst);
            // Others come in while the password is hashed.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            if word == "right" { StatusCode::OK } else { StatusCode::UNAUTHORIZED }
        }),
    )
}

/// Of a hundred wrong guesses at once, five reach the handler.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ov_37_parallel_wrong_guesses_get_no_further_than_the_limit() {
    let reached = Arc::new(AtomicUsize::new(0));
    let bench = Arc::new(Bench::serve(login(&reached)).await);
    let guesses = (0..100).map(|_| {
        let bench = Arc::clone(&bench);
        tokio::spawn(async move { bench.get("/login/wrong").await })
    });
    let mut statuses = Vec::new();
    for guess in guesses.collect::<Vec<_>>() {
        statuses.push(guess.await.expect("an answer"));
    }
    let count = |status| statuses.iter().filter(|it| **it == status).count();
    assert_eq!((count(401), count(429)), (5, 95));
    assert_eq!(reached.load(Ordering::SeqCst), 5);
    assert_eq!(bench.get("/login/right").await, 429, "the key has no unit left");
}

#[tokio::test]
async fn ov_37_right_passwords_in_a_row_all_pass() {
    let reached = Arc::new(AtomicUsize::new(0));
    let bench = Bench::serve(login(&reached)).await;
    for _ in 0..100 {
        assert_eq!(bench.get("/login/right").await, 200);
        bench.has_left("login", 5).await;
    }
    assert_eq!(bench.get("/login/wrong").await, 401);
    bench.has_left("login", 4).await;
}

/// A 304 does not change the remaining units.
#[tokio::test]
async fn ov_38_a_response_that_is_refunded_costs_nothing() {
    let routes = Router::new()
        .route("/cached/old", get(async || StatusCode::NOT_MODIFIED))
        .route("/cached/new", get(async || "fresh"));
    let bench = Bench::serve(routes).await;
    assert_eq!(bench.get("/cached/new").await, 200);
    bench.has_left("cached", 9).await;
    for _ in 0..30 {
        assert_eq!(bench.get("/cached/old").await, 304);
        bench.has_left("cached", 9).await;
    }
}

fn tokens(tokens: u64) -> Response {
    let mut response = Response::new(Body::from("a completion"));
    response.headers_mut().insert("x-tokens", HeaderValue::from(tokens));
    response
}

/// A body that ends with trailers.
struct Streamed(std::vec::IntoIter<Frame<Bytes>>);

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}

fn streamed(tokens: &'static str) -> Response {
    ending_with("x-tokens", HeaderValue::from_static(tokens))
}

fn ending_with(trailer: &'static str, value: HeaderValue) -> Response {
    let mut trailers = HeaderMap::new();
    trailers.insert(trailer, value);
    let frames = vec![Frame::data(Bytes::from("a stream")), Frame::trailers(trailers)];
    Response::new(Body::new(Streamed(frames.into_iter())))
}

/// A gRPC call that ends with this code after its body.
fn call(code: u16) -> Response {
    let mut response = ending_with("grpc-status", HeaderValue::from(code));
    let kind = HeaderValue::from_static("application/grpc+proto");
    response.headers_mut().insert("content-type", kind);
    response
}

/// The code of a call follows its body; until then its units stay taken.
#[tokio::test]
async fn calls_are_counted_by_the_code_in_their_trailers() {
    let without_code = || {
        let mut response = call(0);
        *response.body_mut() = Body::from("no trailers");
        response
    };
    let routes = Router::new()
        .route("/call/{code}", get(async |Path(code): Path<u16>| call(code)))
        .route(
            "/call/http/{status}",
            get(async |Path(status): Path<u16>| StatusCode::from_u16(status).expect("a status")),
        )
        .route("/call/cut/off", get(async move || without_code()));
    let bench = Bench::serve(routes).await;
    for (path, left) in [
        ("/call/0", 5),
        ("/call/16", 4),
        ("/call/5", 4),
        ("/call/http/401", 3),
        ("/call/http/403", 3),
        ("/call/7", 2),
        ("/call/cut/off", 1),
        ("/call/0", 1),
    ] {
        bench.get(path).await;
        bench.has_left("call", left).await;
    }
}

/// 800 are reserved; 300 return 500, 1,200 book 400 more.
#[tokio::test]
async fn ov_39_the_actual_cost_is_read_from_a_header() {
    let routes = Router::new()
        .route("/header/{tokens}", get(async |Path(units): Path<u64>| tokens(units)))
        .route("/header/none/x", get(async || "no header"));
    let bench = Bench::serve(routes).await;
    assert_eq!(bench.get("/header/300").await, 200);
    bench.has_left("header", 1_700).await;
    assert_eq!(bench.get("/header/1200").await, 200);
    bench.has_left("header", 500).await;
    assert_eq!(bench.get("/header/1").await, 429, "a request reserves 800");
}

/// Settled when the body has ended.
#[tokio::test]
async fn ov_39_the_actual_cost_is_read_from_a_trailer() {
    let routes = Router::new()
        .route("/trailer/few", get(async || streamed("300")))
        .route("/trailer/odd", get(async || streamed("many")));
    let bench = Bench::serve(routes).await;
    assert_eq!(bench.get("/trailer/few").await, 200);
    bench.has_left("trailer", 1_700).await;
    // What is no number leaves the reservation.
    assert_eq!(bench.get("/trailer/odd").await, 200);
    assert_eq!(bench.get("/trailer/few").await, 200);
    bench.has_left("trailer", 600).await;
}

/// The permits end with the head, and the trailers are read all the same.
#[tokio::test]
async fn the_actual_cost_is_read_from_a_trailer_if_permits_are_held_until_the_head() {
    let routes = Router::new().route("/trailer/few", get(async || streamed("300")));
    let bench = Bench::behind(routes, |layer| layer.hold(Hold::Head)).await;
    assert_eq!(bench.get("/trailer/few").await, 200);
    bench.has_left("trailer", 1_700).await;
}

#[tokio::test]
async fn a_handler_tells_the_actual_cost() {
    let routes = Router::new()
        .route("/application/said", get(async || (axum::Extension(ActualCost::units(300)), "a")))
        .route("/application/silent", get(async || "b"))
        .route(
            "/application/settled",
            post(async |axum::Extension(it): axum::Extension<Arc<Settlement>>| {
                let settled = it.settle(RequestOutcome::default().cost(100)).await;
                assert_eq!(settled.expect("memory").returned, 700);
            }),
        );
    let bench = Bench::serve(routes).await;
    assert_eq!(bench.get("/application/said").await, 200);
    bench.has_left("application", 1_700).await;
    let post = bench.client.post(format!("http://{}/application/settled", bench.address));
    assert_eq!(post.send().await.expect("an answer").status(), 200);
    bench.has_left("application", 1_600).await;
    assert_eq!(bench.get("/application/silent").await, 200);
    // Its reservation stands.
    assert_eq!(bench.get("/application/said").await, 200);
    bench.has_left("application", 500).await;
}

#[tokio::test]
async fn ov_39_a_request_that_is_cancelled_before_its_head_gets_all_units_back() {
    let started = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&started);
    let routes = Router::new().route(
        "/header/slow",
        get(async move || {
            notify.notify_one();
            std::future::pending::<()>().await;
        }),
    );
    let bench = Bench::serve(routes).await;
    let url = format!("http://{}/header/slow", bench.address);
    let asked = tokio::spawn(bench.client.get(url).send());
    started.notified().await;
    assert_eq!(bench.left("header").await, 1_200);
    asked.abort();
    bench.has_left("header", 2_000).await;
}
