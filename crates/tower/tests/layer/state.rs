//! One state for all clones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::get;
use tidegate_tower::{OneKey, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Barrier;
use tower_layer::Layer;

use crate::setup::{app, bucket, serve};

/// axum clones the layer for each route and the service for each request.
#[tokio::test]
async fn ov_07_two_routes_behind_one_layer_share_one_count() {
    let layer = RateLimitLayer::limit(bucket(5).0).identify(OneKey);
    let routes = Router::new()
        .route("/a", get(async || "a").layer(layer.clone()))
        .route("/b", get(async || "b").layer(layer));
    let address = serve(routes).await;
    let client = reqwest::Client::new();
    let mut admitted = 0;
    for number in 0..12 {
        let path = ["a", "b"][number % 2];
        let answer =
            client.get(format!("http://{address}/{path}")).send().await.expect("an answer");
        admitted += usize::from(answer.status() == 200);
    }
    assert_eq!(admitted, 5);
}

/// A limit of 5 admits 5 of 1,500 clients that come at the same time, each on a connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ov_08_concurrent_connections_share_one_count() {
    const CLIENTS: usize = 1_500;
    let address = serve(app(RateLimitLayer::limit(bucket(5).0).identify(OneKey))).await;
    let (all_connected, admitted) =
        (Arc::new(Barrier::new(CLIENTS)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (all_connected, admitted) = (Arc::clone(&all_connected), Arc::clone(&admitted));
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(address).await.expect("a connection");
                all_connected.wait().await;
                let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
                stream.write_all(request).await.expect("a request");
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.expect("an answer");
                match answer.split(' ').nth(1) {
                    Some("200") => drop(admitted.fetch_add(1, Ordering::Relaxed)),
                    Some("429") => {}
                    _ => panic!("{answer}"),
                }
            })
        })
        .collect();
    for client in clients {
        client.await.expect("a client that ends");
    }
    assert_eq!(admitted.load(Ordering::Relaxed), 5);
}

/// A service that is not ready holds nothing, and its readiness is that of the inner service.
#[tokio::test]
async fn readiness_is_that_of_the_inner_service() {
    use std::task::{Context, Poll, Waker};
    use tower::Service;

    #[derive(Clone)]
    struct Busy;
    impl Service<http::Request<axum::body::Body>> for Busy {
        type Response = http::Response<axum::body::Body>;
        type Error = std::convert::Infallible;
        type Future = std::future::Ready<Result<Self::Response, Self::Error>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Pending
        }
        fn call(&mut self, _: http::Request<axum::body::Body>) -> Self::Future {
            std::future::ready(Ok(http::Response::default()))
        }
    }
    let (limiter, _) = bucket(1);
    let mut service = RateLimitLayer::limit(limiter.clone()).identify(OneKey).layer(Busy);
    let mut context = Context::from_waker(Waker::noop());
    assert!(service.poll_ready(&mut context).is_pending());
    assert_eq!(limiter.peek("", 1).remaining(), 1);
}
