//! Rejections of gRPC calls, as a tonic client reads them.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::concurrency::{Class, ConcurrencyLimiter};
use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::{Limit, Rate, Span};
use tidegate_tower::{OneKey, RateLimitLayer};
use tokio::net::TcpListener;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower_layer::Layer;

use crate::setup::{bucket, comes_true, of};

/// A health service behind a layer of its own.
async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let (_, health) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    // The limited service keeps its name.
    let server = Server::builder().add_service(layer.layer(health));
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

async fn check(address: SocketAddr) -> Result<(), Status> {
    ask(address, "").await
}

/// Asks for the health of a service; all of the server if it has no name.
async fn ask(address: SocketAddr, service: &str) -> Result<(), Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = endpoint.connect().await.expect("a connection");
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.map(drop)
}

/// A call of an unknown service ends with NOT_FOUND in its head, any other with OK in its trailers.
#[tokio::test]
async fn only_calls_with_a_counted_code_count() {
    let file = "
domain: api
requests:
  rules: [{descriptors: [{entries: [{key: method, path: true}]}]}]
descriptors:
  - {key: method, rate: 3/h, algorithm: fixed_window, count: [NOT_FOUND]}
";
    let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
    let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
    let limiter = PolicyLimiter::in_memory(policy).expect("memory");
    let address = serve(RateLimitLayer::policy(limiter.clone(), "api")).await;
    let left = || {
        let entries = [Entry { key: "method", value: "/grpc.health.v1.Health/Check" }];
        let descriptors = [Descriptor::new(&entries)];
        let request = Request { domain: "api", descriptors: &descriptors, hits: Some(0) };
        limiter.check_now(&request).expect("memory").remaining()
    };
    for _ in 0..10 {
        check(address).await.expect("calls that succeed do not count");
        comes_true(|| left() == 3).await;
    }
    for remaining in [2, 1, 0] {
        let status = ask(address, "unheard of").await.expect_err("an unknown service");
        assert_eq!(status.code(), Code::NotFound);
        comes_true(|| left() == remaining).await;
    }
    let status = ask(address, "unheard of").await.expect_err("the call is denied");
    assert_eq!(status.code(), Code::ResourceExhausted);
}

fn pushback(status: &Status) -> Option<&str> {
    status.metadata().get("grpc-retry-pushback-ms")?.to_str().ok()
}

#[tokio::test]
async fn ov_35_a_denied_call_is_resource_exhausted_with_details() {
    // A unit every 1,500.001 ms.
    let rate = Rate::new(1, Span::from_micros(1_500_001));
    let (limiter, _) = of(Limit::token_bucket(rate).burst(1).build().expect("valid numbers"));
    let address = serve(RateLimitLayer::limit(limiter).identify(OneKey)).await;
    check(address).await.expect("the first call is served");
    let status = check(address).await.expect_err("the second call is denied");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(pushback(&status), Some("1501"));
    let details = status.get_error_details();
    let retry = details.retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry, Some(Duration::from_micros(1_500_001)));
    let violations = &details.quota_failure().expect("a quota failure").violations;
    let [violation] = &violations[..] else { panic!("{violations:?}") };
    assert_eq!(violation.subject, "per client");
    assert_eq!(violation.description, "limit of 1 exceeded");
    assert_eq!(
        status.metadata().get("ratelimit-policy").expect("a field"),
        "\"per client\";q=1;w=2"
    );
}

/// The head has the status, and the response no body.
#[tokio::test]
async fn ov_35_a_denied_call_is_http_200_and_trailers_only() {
    let (limiter, _) = bucket(1);
    assert!(limiter.check("").is_allowed());
    let app = crate::setup::app(RateLimitLayer::limit(limiter).identify(OneKey));
    let mut request = crate::setup::request();
    let kind = http::HeaderValue::from_static("application/grpc+proto");
    request.headers_mut().insert("content-type", kind.clone());
    let denied = crate::setup::ask(&app, request).await;
    assert_eq!(denied.status(), 200);
    assert_eq!(denied.headers()["grpc-status"], "8");
    assert_eq!(denied.headers()["content-type"], kind);
    assert!(http_body::Body::is_end_stream(denied.body()));
}

#[tokio::test]
async fn ov_36_a_shed_call_is_unavailable() {
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let layer = RateLimitLayer::limit(bucket(9).0).identify(OneKey);
    let address = serve(layer.concurrency(concurrency.clone())).await;
    let held = concurrency.take(Class::CRITICAL).expect("a permit");
    let status = check(address).await.expect_err("the call is shed");
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(pushback(&status), Some("1000"));
    let details = status.get_error_details();
    let retry = details.retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry, Some(Duration::from_secs(1)));
    assert!(details.quota_failure().is_none());
    drop(held);
    check(address).await.expect("the next call is served");
    comes_true(|| concurrency.stats().in_flight == 0).await;
}

#[tokio::test]
async fn ov_36_a_call_that_never_fits_is_not_retried() {
    let layer = RateLimitLayer::limit(bucket(2).0).identify(OneKey).cost(|_| 3);
    let status = check(serve(layer).await).await.expect_err("the call is denied");
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(pushback(&status), Some("-1"));
    let details = status.get_error_details();
    assert!(details.retry_info().is_none());
    assert!(details.quota_failure().is_some());
}
