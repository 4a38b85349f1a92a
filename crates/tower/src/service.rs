//! The service: decides a request, and calls the inner service at once if it does not have to wait.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use crate::body::ResponseBody;
use crate::charge::{Awaited, Charged};
use crate::future::{Pending, ResponseFuture};
use crate::layer::Settings;
use crate::source::{Decided, now_or_later};
use crate::waiting::{Start, serve};

/// A service with limits; made by [`RateLimitLayer`](crate::RateLimitLayer).
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> RateLimit<S> {
    pub(crate) const fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Body<Data = Bytes> + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let settings = &self.settings;
        let (mut head, body) = request.into_parts();
        let cost = settings.cost_of(&head);
        let mut decided = settings.decide_now(&head, cost);
        // The path of most requests: admitted at once, without a delay and without a concurrency
        // limiter. The answer stays where it was written, because moving it costs as much as the
        // decision.
        if let Some(Ok(admitted)) = &mut decided
            && settings.starts_at_once(admitted)
        {
            let pending = Pending::new(settings, &mut head, admitted, None);
            let request = Request::from_parts(head, body);
            return ResponseFuture::inner(self.inner.call(request), pending);
        }
        self.call_with_care(decided, cost, head, body)
    }
}

impl<S> RateLimit<S> {
    /// Serves a request that is delayed or denied, meets a concurrency limiter, or is not decided yet.
    #[inline(never)]
    fn call_with_care<B, R>(
        &mut self,
        decided: Option<Decided>,
        cost: Option<u64>,
        mut head: Parts,
        body: B,
    ) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        B: Send + 'static,
        R: Body<Data = Bytes> + 'static,
    {
        let settings = &self.settings;
        let decided = match decided {
            Some(decided) => decided,
            None => {
                if let Err(rejection) = settings.shed_early(&head) {
                    return ResponseFuture::rejected(settings.reject(&head, &rejection));
                }
                let mut deciding = settings.source.decide(head, cost);
                match now_or_later(&mut deciding) {
                    Some((decided_head, decided)) => {
                        head = decided_head;
                        decided
                    }
                    None => {
                        let settings = Arc::clone(settings);
                        let awaited = Awaited::new(settings, cost, deciding);
                        return self.wait(Start::Decision(awaited), body);
                    }
                }
            }
        };
        let mut admitted = match settings.judge(decided) {
            Ok(admitted) => admitted,
            Err(rejection) => return ResponseFuture::rejected(settings.reject(&head, &rejection)),
        };
        let charged = |head, admitted| Charged::new(Arc::clone(settings), cost, head, admitted);
        if !settings.delay_of(&admitted).is_zero() {
            let charged = charged(head, admitted);
            return self.wait(Start::Delayed(Box::new(charged)), body);
        }
        let mut permit = None;
        if let Some(gate) = settings.gate(&head, &admitted) {
            if let Err(rejection) = settings.shed_busy(&gate, &head) {
                // Dropping `charged` returns the units.
                let charged = charged(head, admitted);
                return ResponseFuture::rejected(settings.reject(&charged.head, &rejection));
            }
            permit = gate.limiter.take(gate.class);
            if permit.is_none() {
                let charged = charged(head, admitted);
                return self.wait(Start::Queued(Box::new(charged)), body);
            }
        }
        let pending = Pending::new(settings, &mut head, &mut admitted, permit);
        ResponseFuture::inner(self.inner.call(Request::from_parts(head, body)), pending)
    }
}

impl<S> RateLimit<S> {
    /// Serves a request that has to wait first. The service that is ready serves it, and a clone
    /// replaces that service.
    fn wait<B, R>(&mut self, start: Start, body: B) -> ResponseFuture<S::Future, R, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
        S::Future: Send,
        B: Send + 'static,
        R: Body<Data = Bytes> + 'static,
    {
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::waiting(Box::pin(serve(ready, Arc::clone(&self.settings), start, body)))
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
