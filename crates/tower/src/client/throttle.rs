//! Adaptive client throttling.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tidegate::Clock;
use tidegate::client::Throttle;
use tower_layer::Layer;
use tower_service::Service;

use super::lock;
use super::reply::Reply;
use crate::answer::{Answers, Rejection};
use crate::body::ResponseBody;
use crate::source::Boxed;

/// Rejects requests in the client, with 503 or UNAVAILABLE, while the server rejects most of them,
/// because a rejection costs the server work too. All clones share the [counts](Throttle).
#[derive(Clone, Debug)]
pub struct ThrottleLayer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    throttle: Mutex<Throttle>,
    clock: Clock,
}

impl ThrottleLayer {
    /// A throttle for one server, or for a group that shares its load.
    pub fn new() -> Self {
        Self::with_clock(Clock::default())
    }

    /// With another clock, for tests.
    pub fn with_clock(clock: impl Into<Clock>) -> Self {
        let (throttle, clock) = (Mutex::new(Throttle::new()), clock.into());
        Self { shared: Arc::new(Shared { throttle, clock }) }
    }
}

impl Default for ThrottleLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = ClientThrottle<S>;

    fn layer(&self, inner: S) -> ClientThrottle<S> {
        ClientThrottle { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A client that throttles itself; made by [`ThrottleLayer`].
#[derive(Clone, Debug)]
pub struct ClientThrottle<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, B, R> Service<Request<B>> for ClientThrottle<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Body<Data = Bytes> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Boxed<Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let now = self.shared.clock.now();
        if !lock(&self.shared.throttle).admits(now, fastrand::u64(..)) {
            let (head, _) = request.into_parts();
            let rejection = Rejection::Throttled("the server rejects most requests");
            let rejected = Answers::default().reject(&head, &rejection);
            return Box::pin(std::future::ready(Ok(rejected)));
        }
        let (answer, shared) = (self.inner.call(request), Arc::clone(&self.shared));
        Box::pin(async move {
            let response = answer.await?;
            if Reply::of(&response).is_accepted() {
                lock(&shared.throttle).accepted(shared.clock.now());
            }
            Ok(response.map(ResponseBody::plain))
        })
    }
}
