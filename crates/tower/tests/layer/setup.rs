//! Servers and services for the tests.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use tidegate::{Limit, Limiter, ManualClock, Rate};
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tower::ServiceExt;

/// A limiter with a burst of `units` that refills one unit per second, by a clock that stands still.
pub(crate) fn bucket(units: u64) -> (Limiter, ManualClock) {
    of(Limit::token_bucket(Rate::per_second(1)).burst(units).build().expect("valid numbers"))
}

/// A limiter by a clock that stands still.
pub(crate) fn of(limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let builder = Limiter::builder().limit("per client", limit).clock(clock.clone());
    (builder.build().expect("memory for a limiter"), clock)
}

/// A route `/` behind a layer.
pub(crate) fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "served")).layer(layer)
}

/// Serves on the loopback until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

/// A request for `/`.
pub(crate) fn request() -> Request<Body> {
    Request::builder().uri("/").body(Body::empty()).expect("a request")
}

/// Asks an app in this process.
pub(crate) async fn ask(app: &Router, request: Request<Body>) -> Response<Body> {
    let Ok(response) = app.clone().oneshot(request).await;
    response
}

/// The text of a body.
pub(crate) async fn text(response: Response<Body>) -> String {
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body");
    String::from_utf8(bytes.to_vec()).expect("a text")
}

/// A body whose frames the test sends.
pub(crate) struct Frames(pub(crate) mpsc::UnboundedReceiver<Bytes>);

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Waits until something another task does has happened, at most ten seconds.
pub(crate) async fn comes_true(mut is_true: impl FnMut() -> bool) {
    let waiting = async {
        let mut pause = tokio::time::interval(Duration::from_millis(1));
        while !is_true() {
            pause.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it comes true");
}
