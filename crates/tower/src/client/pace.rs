//! Requests at the pace of a limit.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tidegate::Limiter;
use tower_layer::Layer;
use tower_service::Service;

use crate::answer::{Answers, Rejection};
use crate::body::ResponseBody;
use crate::identify::Identify;
use crate::request::time_left;
use crate::source::Boxed;

/// Delays each request until a limit of the client admits it, in the order of the requests. For a
/// server whose limit is known.
///
/// A request that cannot be sent before its deadline, or that the limit can never admit, gets 429
/// from the client (gRPC: RESOURCE_EXHAUSTED).
#[derive(Clone, Debug)]
pub struct PaceLayer<I> {
    limiter: Limiter,
    identify: Arc<I>,
}

impl<I: Identify> PaceLayer<I> {
    /// Paces requests by their key: [`OneKey`](crate::OneKey) for all together.
    pub fn new(limiter: Limiter, identify: I) -> Self {
        Self { limiter, identify: Arc::new(identify) }
    }
}

impl<S, I> Layer<S> for PaceLayer<I> {
    type Service = Pace<S, I>;

    fn layer(&self, inner: S) -> Pace<S, I> {
        Pace { inner, limiter: self.limiter.clone(), identify: Arc::clone(&self.identify) }
    }
}

/// A client that paces itself; made by [`PaceLayer`].
#[derive(Debug)]
pub struct Pace<S, I> {
    inner: S,
    limiter: Limiter,
    identify: Arc<I>,
}

impl<S: Clone, I> Clone for Pace<S, I> {
    fn clone(&self) -> Self {
        let (inner, identify) = (self.inner.clone(), Arc::clone(&self.identify));
        Self { inner, limiter: self.limiter.clone(), identify }
    }
}

impl<S, I, B, R> Service<Request<B>> for Pace<S, I>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    I: Identify,
    B: Send + 'static,
    R: Body<Data = Bytes> + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = Boxed<Result<Self::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let clone = self.inner.clone();
        let mut ready = std::mem::replace(&mut self.inner, clone);
        let (limiter, identify) = (self.limiter.clone(), Arc::clone(&self.identify));
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let key = identify.key(&head).unwrap_or_default().into_owned();
            let waiting = limiter.until_ready(key);
            let rejection = match time_left(&head) {
                None => Some(waiting.await),
                Some(left) => tokio::time::timeout(left, waiting).await.ok(),
            };
            let rejection = match rejection {
                Some(verdict) if verdict.is_allowed() => {
                    let response = ready.call(Request::from_parts(head, body)).await?;
                    return Ok(response.map(ResponseBody::plain));
                }
                Some(verdict) => Rejection::Denied(verdict),
                None => Rejection::Unpaced("the request cannot be sent before its deadline"),
            };
            Ok(Answers::default().reject(&head, &rejection))
        })
    }
}
