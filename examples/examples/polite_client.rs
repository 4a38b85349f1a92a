//! A reqwest client that paces itself, retries within a budget and never before it was told to.
//!
//! `cargo run -p tidegate-examples --features tower --example polite_client`

use std::error::Error;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tidegate::{Limit, Limiter, Rate};
use tidegate_tower::client::{PaceLayer, RetryLayer, ThrottleLayer};
use tidegate_tower::{OneKey, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{ServiceBuilder, ServiceExt, service_fn};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    // A server that serves two requests at once and then one per second.
    let limit = Limit::token_bucket(Rate::per_second(1)).burst(2).build()?;
    let layer = RateLimitLayer::limit(Limiter::new(limit)).identify(OneKey);
    let app = Router::new().route("/", get(async || "served")).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, app).await });

    // The client: reqwest, with its layers outermost first.
    let client = reqwest::Client::new();
    let send = service_fn(move |request: Request<_>| {
        let request = reqwest::Request::try_from(request.map(reqwest::Body::wrap));
        let client = client.clone();
        async move { client.execute(request?).await.map(Response::<reqwest::Body>::from) }
    });
    let own_pace = Limiter::new(Limit::token_bucket(Rate::per_second(50)).burst(5).build()?);
    let client = ServiceBuilder::new()
        .layer(RetryLayer::new())
        .layer(ThrottleLayer::new())
        .layer(PaceLayer::new(own_pace, OneKey))
        .service(send);

    for number in 1..=3 {
        let request = Request::get(&url).body(Full::<Bytes>::default())?;
        let response = client.clone().oneshot(request).await?;
        println!("request {number}: {}", response.status());
        // The third request was denied first, and sent again after `Retry-After`.
        assert_eq!(response.status(), 200);
    }
    Ok(())
}
