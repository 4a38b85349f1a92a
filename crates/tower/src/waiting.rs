//! Requests that wait: for a shared store, for the delay of a leaky bucket, for a permit.
//!
//! A request that is dropped while it waits returns its units ([`Charged`]).

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
    /// Its delay, and then a permit.
    Delayed(Box<Charged>),
    /// A permit.
    Queued(Box<Charged>),
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
    let (charged, is_queued) = match start {
        Start::Queued(charged) => (*charged, true),
        Start::Delayed(charged) => (*charged, false),
        Start::Decision(awaited) => match awaited.judged().await {
            Ok(charged) => (charged, false),
            Err((head, rejection)) => return Ok(settings.reject(&head, &rejection)),
        },
    };
    let permit = match wait(&settings, &charged, is_queued).await {
        Ok(permit) => permit,
        Err(rejection) => return Ok(settings.reject(&charged.head, &rejection)),
    };
    let (mut head, mut admitted) = charged.start();
    let pending = Pending::new(&settings, &mut head, &mut admitted, permit);
    let response = service.call(Request::from_parts(head, body)).await?;
    Ok(pending.finish(response))
}

/// Waits for the delay, then for a permit, both within the time that the request has left. A request that
/// is `queued` waits for a permit only.
async fn wait(
    settings: &Settings,
    charged: &Charged,
    is_queued: bool,
) -> Result<Option<Permit>, Rejection> {
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
    let Some(gate) = settings.gate(head, admitted) else { return Ok(None) };
    if !is_queued {
        settings.shed_busy(&gate, head)?;
    }
    match gate.limiter.acquire_within(gate.class, left.unwrap_or(Duration::MAX)).await {
        Ok(permit) => Ok(Some(permit)),
        Err(shed) => Err(settings.shed(shed)),
    }
}
