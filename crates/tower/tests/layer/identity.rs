//! The key that a request is charged to.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::routing::get;
use http::Request;
use http::request::Parts;
use tidegate::Limiter;
use tidegate_tower::{
    ApiKey, ClientIp, FromExtension, Header, Identify, Key, MatchedRoute, OneKey, RateLimitLayer,
};

use crate::setup::{app, ask, bucket, serve};

/// With one proxy, the address that the proxy saw counts, not the one that the client wrote.
#[tokio::test]
async fn ov_40_the_client_is_read_from_the_right() {
    let (limiter, _) = bucket(3);
    let layer = RateLimitLayer::limit(limiter.clone()).identify(ClientIp::behind(1));
    let url = format!("http://{}/", serve(app(layer)).await);
    let client = reqwest::Client::new();
    for number in 0..4 {
        let forwarded = format!("10.0.0.{number}, 1.2.3.4");
        let answer = client.get(&url).header("x-forwarded-for", forwarded).send().await;
        let expected = if number < 3 { 200 } else { 429 };
        assert_eq!(answer.expect("an answer").status(), expected);
    }
    assert_eq!(limiter.peek("1.2.3.4", 1).remaining(), 0);
    // Without the header, the peer counts.
    assert_eq!(client.get(&url).send().await.expect("an answer").status(), 200);
    assert_eq!(limiter.peek("127.0.0.1", 1).remaining(), 2);
}

/// Whether each of these requests is charged to this key.
async fn is_charged(identify: impl Identify, head: Request<()>, key: &str) {
    let (limiter, _) = bucket(9);
    let layer = RateLimitLayer::limit(limiter.clone()).identify(identify);
    let routes = Router::new().route("/users/{id}", get(async || ())).layer(layer);
    let (head, ()) = head.into_parts();
    let description = format!("{head:?}");
    ask(&routes, Request::from_parts(head, Body::empty())).await;
    assert_eq!(limiter.peek(key, 1).remaining(), 8, "{key}: {description}");
}

fn head(headers: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::builder().uri("/users/17");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request")
}

#[tokio::test]
async fn extractors_find_the_key() {
    is_charged(OneKey, head(&[]), "").await;
    is_charged(MatchedRoute, head(&[]), "/users/{id}").await;
    is_charged(Header::named("x-user"), head(&[("x-user", "ann")]), "ann").await;
    is_charged(ApiKey, head(&[("x-api-key", "k1")]), "k1").await;
    is_charged(ApiKey, head(&[("authorization", "Bearer k2")]), "k2").await;
    let host = |head: &Parts| head.headers.get("host").map(|host| host.as_bytes().to_vec());
    is_charged(host, head(&[("host", "example.org")]), "example.org").await;
    let mut request = head(&[]);
    request.extensions_mut().insert(17_u64);
    is_charged(FromExtension::<u64>::new(), request, "17").await;
    let mut request = head(&[]);
    let peer = SocketAddr::from(([192, 0, 2, 1], 443));
    request.extensions_mut().insert(ConnectInfo(peer));
    is_charged(ClientIp::peer(), request.map(drop), "192.0.2.1").await;
    let mut request = head(&[]);
    request.extensions_mut().insert(peer.ip());
    is_charged(ClientIp::peer(), request, "192.0.2.1").await;
}

/// A second value gives no client a new budget: ambiguous requests share one, with those without a key.
#[tokio::test]
async fn a_key_in_the_extensions_takes_precedence() {
    let mut request = head(&[("x-user", "ann")]);
    request.extensions_mut().insert(Key::of("bob"));
    is_charged(Header::named("x-user"), request, "bob").await;
}

#[tokio::test]
async fn requests_without_a_clear_key_share_one_budget() {
    is_charged(Header::named("x-user"), head(&[]), "").await;
    is_charged(Header::named("x-user"), head(&[("x-user", " ")]), "").await;
    let two = head(&[("x-user", "ann"), ("x-user", "bob")]);
    is_charged(Header::named("x-user"), two, "").await;
    is_charged(ApiKey, head(&[("x-api-key", "k1"), ("authorization", "Bearer k2")]), "").await;
    is_charged(ClientIp::behind(1), head(&[("x-forwarded-for", "nonsense")]), "").await;
    is_charged(FromExtension::<u64>::new(), head(&[]), "").await;
}

/// Paths that no route matches share one key, because there is no end of them.
#[tokio::test]
async fn unmatched_paths_share_one_key() {
    let (limiter, _) = bucket(9);
    let layer = RateLimitLayer::limit(Limiter::clone(&limiter)).identify(MatchedRoute);
    let routes = Router::new().fallback(async || ()).layer(layer);
    for path in ["/a", "/b"] {
        let request = Request::builder().uri(path).body(Body::empty());
        ask(&routes, request.expect("a request")).await;
    }
    assert_eq!(limiter.peek("unmatched", 1).remaining(), 7);
}
