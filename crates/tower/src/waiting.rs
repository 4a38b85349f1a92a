//! Requests that wait: for a shared store, for the delay of a leaky bucket, for a permit.
//!
//! A request that is dropped meanwhile returns its units ([`Charged`]).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tidegate::concurrency::Permit;
use tower_service::Service;

use crate::answer::Rejection;
use crate::body::ResponseBody;
use crate::charge::{Awaited, Charged};
use crate::future::Pending;
use crate::layer::Settings;
use crate::request::time_left;

/// What a request waits for first.
pub(crate) enum Start {
    /// The decision.
    Decision(Awaited),
    /// Its delay, or a permit.
    Charged(Box<Charged>),
}

/// Serves a request after its waits.
pub(crate) async fn serve<S, B, R>(
    mut service: S,
    settings: Arc<Settings>,
    start: Start,
    body: B,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body<Data = Bytes>,
{
    let charged = match start {
        Start::Charged(charged) => *charged,
        Start::Decision(awaited) => match awaited.judged().await {
            Ok(charged) => charged,
            Err((head, rejection)) => return Ok(settings.reject(&head, &rejection)),
        },
    };
    let permit = match wait(&settings, &charged).await {
        Ok(permit) => permit,
        Err(rejection) => return Ok(settings.reject(&charged.head, &rejection)),
    };
    let (head, admitted) = charged.start();
    let (pending, request) = Pending::new(&settings, head, admitted, permit, body);
    let response = service.call(request).await?;
    Ok(pending.finish(response))
}

/// Waits for the delay, then for a permit, both within the time that the request has left.
async fn wait(settings: &Settings, charged: &Charged) -> Result<Option<Permit>, Rejection> {
    let Charged { head, admitted, .. } = charged;
    let mut left = time_left(head);
    let delay = settings.delay_of(admitted);
    if !delay.is_zero() {
        if left.is_some_and(|left| left < delay)
            && let Some(verdict) = &admitted.verdict
        {
            return Err(settings.too_late(verdict.clone()));
        }
        tokio::time::sleep(delay).await;
        left = left.map(|left| left.saturating_sub(delay));
    }
    let Some(limiter) = &settings.concurrency else { return Ok(None) };
    let (class, left) = (settings.class_of(head), left.unwrap_or(Duration::MAX));
    match limiter.acquire_within(class, left.into()).await {
        Ok(permit) => Ok(Some(permit)),
        Err(shed) => Err(settings.shed(shed)),
    }
}
