//! The layers for clients, around reqwest, hyper and tonic.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tidegate::{Limit, Limiter, ManualClock, Rate, Span};
use tidegate_tower::client::{PaceLayer, RetryLayer, ThrottleLayer};
use tidegate_tower::{Event, OneKey, RateLimitLayer, Timeout};
use tonic::transport::{Endpoint, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::setup::{bucket, of, serve};

/// A service that fails a number of times and then echoes the body. It counts its requests.
#[derive(Clone)]
struct Flaky {
    failures: u32,
    status: u16,
    retry_after: Option<&'static str>,
    asked: Arc<AtomicU32>,
}

impl Flaky {
    fn new(failures: u32, status: u16, retry_after: Option<&'static str>) -> Self {
        Self { failures, status, retry_after, asked: Arc::default() }
    }

    fn asked(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }

    fn router(&self) -> Router {
        let flaky = self.clone();
        Router::new().route("/", any(move |body: Bytes| async move { flaky.answer(body) }))
    }

    fn answer(&self, body: Bytes) -> Response<Body> {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= self.failures {
            return Response::new(Body::from(body));
        }
        let mut headers = HeaderMap::new();
        if let Some(value) = self.retry_after {
            headers.insert("retry-after", value.parse().expect("a value"));
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::from_u16(self.status).expect("a status");
        *response.headers_mut() = headers;
        response
    }
}

fn post(body: &'static str) -> Request<Full<Bytes>> {
    let body = Full::new(Bytes::from_static(body.as_bytes()));
    Request::builder().method(Method::POST).uri("/").body(body).expect("a request")
}

fn put(body: &'static str) -> Request<Full<Bytes>> {
    let mut request = post(body);
    *request.method_mut() = Method::PUT;
    request
}

async fn retry(flaky: &Flaky, request: Request<Full<Bytes>>) -> (u16, Bytes) {
    let client = ServiceBuilder::new().layer(RetryLayer::new()).service(flaky.router());
    let Ok(response) = client.oneshot(request).await;
    let status = response.status().as_u16();
    (status, response.into_body().collect().await.expect("a body").to_bytes())
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_is_sent_again_with_its_body() {
    let started = tokio::time::Instant::now();
    let flaky = Flaky::new(2, 503, Some("3"));
    assert_eq!(retry(&flaky, put("body")).await, (200, Bytes::from_static(b"body")));
    assert_eq!(flaky.asked(), 3);
    let waited = started.elapsed().as_secs_f64();
    assert!((6.0..6.7).contains(&waited), "{waited} s: never earlier than told, a tenth later");

    let flaky = Flaky::new(3, 503, Some("1"));
    assert_eq!(retry(&flaky, put("body")).await.0, 503, "three attempts");
    assert_eq!(flaky.asked(), 3);
}

/// A request that is not idempotent is sent once, unless it has a key that makes it so.
#[tokio::test(start_paused = true)]
async fn only_replayable_requests_are_retried() {
    let flaky = Flaky::new(1, 503, Some("1"));
    assert_eq!(retry(&flaky, post("body")).await.0, 503);
    assert_eq!(flaky.asked(), 1);
    let mut keyed = post("body");
    keyed.headers_mut().insert("idempotency-key", "k".parse().expect("a value"));
    let flaky = Flaky::new(1, 503, Some("1"));
    assert_eq!(retry(&flaky, keyed).await, (200, Bytes::from_static(b"body")));
    static LONG: [u8; 65_537] = [b'x'; 65_537];
    let long = put("").map(|_| Full::new(Bytes::from_static(&LONG)));
    let flaky = Flaky::new(1, 503, Some("1"));
    assert_eq!(retry(&flaky, long).await.0, 503, "too long to keep");
    // A quota that no wait refills.
    let flaky = Flaky::new(1, 429, None);
    assert_eq!(retry(&flaky, put("body")).await.0, 429);
    assert_eq!(flaky.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn ov_48_a_wait_past_the_deadline_ends_the_request_at_once() {
    let started = tokio::time::Instant::now();
    let flaky = Flaky::new(1, 503, Some("7"));
    let mut request = put("body");
    request.extensions_mut().insert(Timeout(Duration::from_secs(5)));
    assert_eq!(retry(&flaky, request).await.0, 503);
    assert_eq!((flaky.asked(), started.elapsed()), (1, Duration::ZERO));
}

/// All requests of a client share its budget.
#[tokio::test(start_paused = true)]
async fn ov_47_retries_stay_within_the_budget() {
    let flaky = Flaky::new(u32::MAX, 503, Some("0"));
    let client = ServiceBuilder::new().layer(RetryLayer::new()).service(flaky.router());
    for _ in 0..1_000 {
        let Ok(response) = client.clone().oneshot(put("body")).await;
        assert_eq!(response.status(), 503);
    }
    let retries = flaky.asked() - 1_000;
    assert!((100..=200).contains(&retries), "{retries}");
}

/// With a server that rejects everything, the client rejects most requests itself.
#[tokio::test]
async fn ov_46_a_client_stops_asking_a_server_that_rejects() {
    let clock = ManualClock::new();
    let flaky = Flaky::new(1_000, 503, None);
    let layer = ThrottleLayer::with_clock(clock.clone());
    let client = ServiceBuilder::new().layer(layer).service(flaky.router());
    for _ in 0..1_000 {
        let Ok(response) = client.clone().oneshot(put("")).await;
        assert_eq!(response.status(), 503);
    }
    assert!(flaky.asked() < 100, "{} of 1,000 requests were sent", flaky.asked());
    // One trial per second finds out that the server has recovered.
    let sent = flaky.asked();
    clock.advance(Span::from_secs(1));
    let Ok(_) = client.clone().oneshot(put("")).await;
    assert_eq!(flaky.asked(), sent + 1);
}

#[tokio::test(start_paused = true)]
async fn requests_are_sent_at_the_pace_of_a_limit() {
    let started = tokio::time::Instant::now();
    let limit = Limit::leaky_bucket(Rate::per_second(10)).burst(1).queue(9).build();
    let (limiter, clock) = of(limit.expect("valid numbers"));
    let flaky = Flaky::new(0, 200, None);
    let client = ServiceBuilder::new()
        .layer(PaceLayer::new(limiter.clone(), OneKey))
        .service(flaky.router());
    let first = client.clone().oneshot(put("")).await;
    assert_eq!(first.map(|response| response.status()), Ok(StatusCode::OK));
    let second = tokio::spawn(client.clone().oneshot(put("")));
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(flaky.asked(), 1, "a tenth of a second too early");
    clock.advance(Span::from_millis(100));
    let Ok(response) = second.await.expect("a response");
    assert_eq!(response.status(), 200);
    // The client rejects a request that cannot wait.
    let mut hurried = put("");
    hurried.extensions_mut().insert(Timeout(Duration::from_millis(50)));
    let Ok(rejected) = client.clone().oneshot(hurried).await;
    assert_eq!((rejected.status().as_u16(), flaky.asked()), (429, 2));
    assert!(started.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn reqwest_retries_what_the_layer_denied() {
    let ((limiter, _), denied) = (bucket(1), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&denied);
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey).observe(move |event| {
        count.fetch_add(u32::from(matches!(event, Event::Denied(_))), Ordering::Relaxed);
    });
    let url = format!("http://{}/", serve(crate::setup::app(layer)).await);
    let client = reqwest::Client::new();
    let send = service_fn(move |request: Request<_>| {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::wrap));
        let client = client.clone();
        async move { client.execute(request?).await.map(Response::<reqwest::Body>::from) }
    });
    let client =
        ServiceBuilder::new().layer(RetryLayer::new()).layer(ThrottleLayer::new()).service(send);
    assert!(limiter.check("").is_allowed());
    // The first attempt is denied and waits for a second, by the clock of this machine.
    let refilled = tokio::spawn(async move {
        crate::setup::comes_true(|| denied.load(Ordering::Relaxed) == 1).await;
        limiter.reset("");
    });
    let request = Request::get(&url).body(Full::<Bytes>::default()).expect("a request");
    let response = client.oneshot(request).await.expect("a response");
    assert_eq!(response.status(), 200);
    refilled.await.expect("a refill");
}

/// A tonic client sends a call again that the server refused with a pushback.
#[tokio::test]
async fn tonic_retries_a_refused_call() {
    let limit = Limit::token_bucket(Rate::per_second(100)).burst(1).build();
    let limiter = Limiter::new(limit.expect("valid numbers"));
    let (_, health) = tonic_health::server::health_reporter();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let layer = RateLimitLayer::limit(limiter).identify(OneKey);
    let server = Server::builder().layer(layer).add_service(health);
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = ServiceBuilder::new()
        .layer(RetryLayer::with(tidegate::client::Backoff::attempts(20)))
        .map_request(|request: Request<_>| request.map(tonic::body::Body::new))
        .service(endpoint.connect().await.expect("a connection"));
    let mut client = HealthClient::new(channel);
    for _ in 0..5 {
        client.check(HealthCheckRequest { service: String::new() }).await.expect("a served call");
    }
}

/// hyper's client, with a body that is replayed.
#[tokio::test]
async fn hyper_sends_a_body_again() {
    let flaky = Flaky::new(1, 503, None);
    let address = serve(flaky.router()).await;
    let send = service_fn(
        move |request: Request<tidegate_tower::client::ReplayBody<Full<Bytes>>>| async move {
            let stream = tokio::net::TcpStream::connect(address).await?;
            let stream = hyper_util::rt::TokioIo::new(stream);
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream)
                .await
                .map_err(std::io::Error::other)?;
            tokio::spawn(connection);
            sender.send_request(request).await.map_err(std::io::Error::other)
        },
    );
    let client = ServiceBuilder::new().layer(RetryLayer::new()).service(send);
    let mut request = put("twice");
    request.headers_mut().insert("host", "localhost".parse().expect("a value"));
    let response = client.oneshot(request).await.expect("a response");
    assert_eq!(response.status(), 200);
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    assert_eq!((&*body, flaky.asked()), (&b"twice"[..], 2));
}
