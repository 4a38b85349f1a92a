//! Retries within a budget.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use tidegate::client::{Backoff, RetryBudget};
use tidegate::{Clock, Span};
use tower_layer::Layer;
use tower_service::Service;

use super::lock;
use super::replay::ReplayBody;
use super::reply::Reply;
use crate::request::time_left;
use crate::source::Boxed;

/// Retries requests that failed: at most three attempts, within a [budget](RetryBudget) that all clones
/// share, never before `Retry-After` or gRPC's pushback, and never past the deadline of the request
/// (`grpc-timeout`, or [`Timeout`](crate::Timeout) in its extensions).
///
/// A request is retried if it failed to be sent or got 429 with a wait, 502, 503 or 504; only if its method is
/// idempotent or it has an `Idempotency-Key`, and only if its body is at most
/// [`MAX_REPLAYED`](super::MAX_REPLAYED) bytes. A gRPC call is retried if the server refused it with a
/// pushback, before it began.
#[derive(Clone, Debug)]
pub struct RetryLayer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    backoff: Backoff,
    budget: Mutex<RetryBudget>,
    clock: Clock,
}

impl RetryLayer {
    /// At most three attempts.
    pub fn new() -> Self {
        Self::with(Backoff::default())
    }

    /// With another number of attempts.
    pub fn with(backoff: Backoff) -> Self {
        let (budget, clock) = (Mutex::new(RetryBudget::new()), Clock::default());
        Self { shared: Arc::new(Shared { backoff, budget, clock }) }
    }
}

impl Default for RetryLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for RetryLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Retry<S> {
        Retry { inner, shared: Arc::clone(&self.shared) }
    }
}

/// A client that retries; made by [`RetryLayer`].
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S, B, R> Service<Request<B>> for Retry<S>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Body<Data = Bytes> + Send + 'static,
    R: Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Boxed<Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        Box::pin(send(ready, Arc::clone(&self.shared), request))
    }
}

async fn send<S, B, R>(
    mut service: S,
    shared: Arc<Shared>,
    request: Request<B>,
) -> Result<Response<R>, S::Error>
where
    S: Service<Request<ReplayBody<B>>, Response = Response<R>>,
    B: Body<Data = Bytes>,
{
    let started = shared.clock.now();
    lock(&shared.budget).requested(started);
    let (head, body) = request.into_parts();
    let (body, deadline) = (ReplayBody::new(body), time_left(&head));
    let (is_idempotent, mut attempt) = (is_idempotent(&head), 0);
    loop {
        attempt += 1;
        let result = service.call(Request::from_parts(head.clone(), body.again())).await;
        let (wait, is_refused) = match result.as_ref().map(Reply::of) {
            Ok(Reply::Failed { wait, is_refused }) => (wait, is_refused),
            Ok(Reply::Handled | Reply::Rejected) => return result,
            Err(_) => (None, false),
        };
        let now = shared.clock.now();
        let left = deadline.map(|deadline| (started + Span::from(deadline)).since(now));
        let wait = shared.backoff.wait(attempt, wait, left, fastrand::u64(..));
        let may_retry = (is_idempotent || is_refused) && body.is_replayable();
        let Some(wait) = wait.filter(|_| may_retry && lock(&shared.budget).take(now)) else {
            return result;
        };
        drop(result);
        tokio::time::sleep(wait.into()).await;
        std::future::poll_fn(|context| service.poll_ready(context)).await?;
    }
}

/// Whether a request may be sent twice.
fn is_idempotent(head: &Parts) -> bool {
    head.method.is_idempotent() && head.method != Method::CONNECT
        || head.headers.contains_key("idempotency-key")
}
