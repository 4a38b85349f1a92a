//! How long permits are held.

use std::future::pending;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use tidegate::concurrency::{Class, ConcurrencyLimiter};
use tidegate::{InFlight, Limit};
use tidegate_tower::{Hold, Lease, OneKey, RateLimitLayer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tower::{Service, ServiceExt, service_fn};
use tower_layer::Layer;

use crate::setup::{Frames, bucket, comes_true, of, serve};

/// Every request may pass; one may be in progress.
fn layer() -> (RateLimitLayer, ConcurrencyLimiter) {
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let layer = RateLimitLayer::limit(bucket(1_000).0).identify(OneKey);
    (layer.concurrency(concurrency.clone()), concurrency)
}

/// A server whose only response is sent frame by frame.
async fn streaming(layer: RateLimitLayer) -> (String, mpsc::UnboundedSender<Bytes>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let body = std::sync::Arc::new(Mutex::new(Some(receiver)));
    let handler = move || {
        let body = std::sync::Arc::clone(&body);
        async move {
            body.lock().await.take().map(|frames| Body::new(Frames(frames))).ok_or(StatusCode::GONE)
        }
    };
    let address = serve(Router::new().route("/", get(handler)).layer(layer)).await;
    (format!("http://{address}/"), sender)
}

#[tokio::test]
async fn ov_09_a_permit_is_held_until_the_last_frame() {
    let (layer, concurrency) = layer();
    let (url, frames) = streaming(layer).await;
    let mut response = reqwest::get(&url).await.expect("a head");
    assert_eq!(concurrency.stats().in_flight, 1);
    for text in ["one", "two", "three"] {
        frames.send(Bytes::from_static(text.as_bytes())).expect("a reader");
        assert_eq!(response.chunk().await.expect("a frame").expect("a frame"), text);
        assert_eq!(concurrency.stats().in_flight, 1, "{text}");
        assert_eq!(reqwest::get(&url).await.expect("an answer").status(), 503);
    }
    drop(frames);
    assert!(response.chunk().await.expect("the end").is_none());
    comes_true(|| concurrency.stats().in_flight == 0).await;
}

#[tokio::test]
async fn ov_09_a_body_dropped_after_one_frame_releases_the_permit() {
    let (layer, concurrency) = layer();
    let (url, frames) = streaming(layer).await;
    let mut response = reqwest::get(&url).await.expect("a head");
    frames.send(Bytes::from_static(b"one")).expect("a reader");
    assert!(response.chunk().await.expect("a frame").is_some());
    assert_eq!(concurrency.stats().in_flight, 1);
    drop(response);
    comes_true(|| concurrency.stats().in_flight == 0).await;
    drop(frames);
}

#[tokio::test]
async fn a_permit_can_be_held_until_the_head_only() {
    let (layer, concurrency) = layer();
    let (url, frames) = streaming(layer.hold(Hold::Head)).await;
    let response = reqwest::get(&url).await.expect("a head");
    assert_eq!(concurrency.stats().in_flight, 0);
    drop((response, frames));
}

/// Responses without a body release the permit at the head, and their body is not wrapped.
#[tokio::test]
async fn ov_10_a_response_without_a_body_releases_the_permit_at_the_head() {
    let (layer, concurrency) = layer();
    let respond = |request: Request<Body>| async move {
        let mut response = match request.uri().path() {
            "/empty" => Response::new(Body::empty()),
            _ => Response::new(Body::from("text")),
        };
        if request.uri().path() == "/204" {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        Ok::<_, std::convert::Infallible>(response)
    };
    let mut service = layer.layer(service_fn(respond));
    for (method, path, is_held) in [
        (Method::GET, "/text", true),
        (Method::HEAD, "/text", false),
        (Method::GET, "/204", false),
        (Method::GET, "/empty", false),
    ] {
        let request = Request::builder().method(&method).uri(path).body(Body::empty());
        let ready = service.ready().await.expect("ready");
        let response = ready.call(request.expect("a request")).await.expect("a response");
        assert_eq!(concurrency.stats().in_flight, u32::from(is_held), "{method} {path}");
        let kind = format!("{:?}", response.body());
        assert_eq!(kind, format!("ResponseBody({:?})", if is_held { "Held" } else { "Plain" }));
    }
    assert_eq!(concurrency.stats().in_flight, 0);
}

#[tokio::test]
async fn ov_12_a_panic_releases_the_permit_and_is_ignored() {
    let concurrency = ConcurrencyLimiter::aimd().initial_limit(10).build();
    let (limiter, _) = of(Limit::in_flight(5, InFlight::NO_EXPIRY).expect("valid numbers"));
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    async fn fail() -> &'static str {
        panic!("planted by the test")
    }
    let routes = Router::new().route("/", get(fail)).layer(layer.concurrency(concurrency.clone()));
    let address = serve(routes).await;
    for _ in 0..20 {
        assert!(reqwest::get(format!("http://{address}/")).await.is_err(), "the server hangs up");
    }
    comes_true(|| concurrency.stats().in_flight == 0).await;
    assert_eq!(concurrency.stats().limit, 10);
    assert_eq!(limiter.peek("", 1).remaining(), 5);
}

#[tokio::test]
async fn a_dropped_request_releases_its_permit() {
    let (layer, concurrency) = layer();
    let app = Router::new().route("/", get(pending::<()>)).layer(layer);
    let address = serve(app).await;
    let client = tokio::spawn(reqwest::get(format!("http://{address}/")));
    comes_true(|| concurrency.stats().in_flight == 1).await;
    client.abort();
    comes_true(|| concurrency.stats().in_flight == 0).await;
}

/// A handler that moves the lease into the task of its WebSocket keeps the place of the client as long as the
/// socket is open.
#[tokio::test]
async fn ov_13_a_websocket_of_axum_keeps_the_lease_and_not_the_permit() {
    use axum::Extension;
    use axum::extract::ws::{WebSocket, WebSocketUpgrade};

    let (limiter, _) = of(Limit::in_flight(1, InFlight::NO_EXPIRY).expect("valid numbers"));
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let echo = async |Extension(lease): Extension<Lease>, upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(async move |mut socket: WebSocket| {
            let _lease = lease;
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    break;
                }
            }
        })
    };
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    let routes = Router::new().route("/", get(echo)).layer(layer.concurrency(concurrency.clone()));
    let address = serve(routes).await;

    let mut socket = TcpStream::connect(address).await.expect("a connection");
    let head = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(head.as_bytes()).await.expect("a server");
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(socket.read_u8().await.expect("a head"));
    }
    assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
    // A text of one letter, masked with zeros; the server does not mask its own.
    socket.write_all(b"\x81\x81\0\0\0\0x").await.expect("an open socket");
    let mut frame = [0; 3];
    socket.read_exact(&mut frame).await.expect("an echo");
    assert_eq!(&frame, b"\x81\x01x");
    assert_eq!(concurrency.stats().in_flight, 0);
    assert_eq!(reqwest::get(format!("http://{address}/")).await.expect("an answer").status(), 429);
    drop(socket);
    comes_true(|| limiter.peek("", 1).is_allowed()).await;
}

/// The permit of the server ends with the 101; the place of the client lasts as long as the tunnel.
#[tokio::test]
async fn ov_13_an_upgrade_keeps_the_lease_and_not_the_permit() {
    let (limiter, _) = of(Limit::in_flight(1, InFlight::NO_EXPIRY).expect("valid numbers"));
    let concurrency = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let upgrade = async |mut request: Request<Body>| {
        let lease = request.extensions_mut().remove::<Lease>();
        tokio::spawn(async move {
            let _lease = lease;
            let tunnel = hyper::upgrade::on(request).await.expect("an upgrade");
            let mut tunnel = TokioIo::new(tunnel);
            let mut byte = [0];
            // Echoes until the client closes.
            while tunnel.read(&mut byte).await.is_ok_and(|count| count > 0) {
                tunnel.write_all(&byte).await.expect("a client that reads");
            }
        });
        let head = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        head.header("connection", "upgrade")
            .header("upgrade", "echo")
            .body(Body::empty())
            .expect("a response")
    };
    let layer = RateLimitLayer::limit(limiter.clone()).identify(OneKey);
    let routes =
        Router::new().route("/", get(upgrade)).layer(layer.concurrency(concurrency.clone()));
    let address = serve(routes).await;

    let stream = TcpStream::connect(address).await.expect("a connection");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
    tokio::spawn(connection.with_upgrades());
    let request = Request::builder()
        .uri("/")
        .header("host", "localhost")
        .header("connection", "upgrade")
        .header("upgrade", "echo")
        .body(Empty::<Bytes>::new())
        .expect("a request");
    let response = sender.send_request(request).await.expect("a response");
    assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.expect("an upgrade"));
    let mut byte = [0];
    tunnel.write_all(b"x").await.expect("an open tunnel");
    tunnel.read_exact(&mut byte).await.expect("an echo");
    assert_eq!(concurrency.stats().in_flight, 0);
    assert!(concurrency.take(Class::CRITICAL).is_some());
    assert!(limiter.peek("", 1).is_denied(), "the tunnel holds its place");
    assert_eq!(reqwest::get(format!("http://{address}/")).await.expect("an answer").status(), 429);
    drop((tunnel, sender));
    comes_true(|| limiter.peek("", 1).is_allowed()).await;
}
