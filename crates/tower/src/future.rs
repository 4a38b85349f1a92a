//! The response future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tidegate::concurrency::Permit;

use crate::answer::Fields;
use crate::body::{Held, ResponseBody};
use crate::layer::{Hold, Settings};
use crate::outcome;
use crate::request::{Lease, is_grpc};
use crate::settle::Settling;
use crate::source::{Answer, Boxed};

pin_project! {
    /// The response to a request, or the reason why it is not served.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = ProjectedState]
    enum State<F, R, E> {
        /// Served by the inner service.
        Inner { #[pin] future: F, pending: Option<Pending> },
        /// Waits before it is served.
        Waiting { future: Boxed<Result<Response<ResponseBody<R>>, E>> },
        /// Not served.
        Rejected { response: Option<Response<ResponseBody<R>>> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    /// Inlined, because the future of the service is large, and would be moved twice more.
    #[inline(always)]
    pub(crate) const fn inner(future: F, pending: Pending) -> Self {
        Self { state: State::Inner { future, pending: Some(pending) } }
    }

    pub(crate) const fn waiting(future: Boxed<Result<Response<ResponseBody<R>>, E>>) -> Self {
        Self { state: State::Waiting { future } }
    }

    pub(crate) const fn rejected(response: Response<ResponseBody<R>>) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data = Bytes>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            ProjectedState::Inner { future, pending } => {
                let response = ready!(future.poll(context));
                let pending = pending.take().unwrap_or_default();
                Poll::Ready(response.map(|response| pending.finish(response)))
            }
            ProjectedState::Waiting { future } => future.as_mut().poll(context),
            ProjectedState::Rejected { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => Poll::Pending,
            },
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}

/// A request that the inner service serves. Dropping it releases what it holds; the outcome is ignored.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    fields: Fields,
    held: Held,
    hold: Hold,
    is_grpc: bool,
    /// The response has no body, whatever the inner service sends.
    is_bodiless: bool,
}

impl Pending {
    /// What a request holds while it is served, part of which its handler finds in its extensions.
    #[inline]
    pub(crate) fn new(
        settings: &Settings,
        head: &mut Parts,
        mut admitted: Answer,
        permit: Option<Permit>,
    ) -> Self {
        let fields = settings.fields_of(&mut admitted);
        let hold = settings.hold_of(&admitted);
        let mut place = admitted.place;
        let settling = place.as_mut().and_then(|place| place.take_settlement()).map(Settling::new);
        if let Some(settling) = &settling {
            settling.offer(&mut head.extensions);
        }
        let lease = place.filter(|place| place.holds_places()).map(|place| Lease::new(*place));
        if let Some(lease) = &lease {
            head.extensions.insert(lease.clone());
        }
        Self {
            fields,
            is_grpc: permit.is_some() && is_grpc(head),
            is_bodiless: head.method == Method::HEAD,
            hold,
            held: Held { permit, lease, settling },
        }
    }

    /// Adds the fields, reports the outcome, and lets the body hold what is held.
    #[inline]
    pub(crate) fn finish<R: Body>(
        mut self,
        mut response: Response<R>,
    ) -> Response<ResponseBody<R>> {
        if let Some(settling) = &mut self.held.settling
            && !settling.at_head(&response)
        {
            self.held.settling = None;
        }
        self.fields.merge_into(response.headers_mut());
        if self.held.is_empty() {
            return response.map(ResponseBody::plain);
        }
        if let Some(permit) = &mut self.held.permit {
            match outcome::of_head(&response, self.is_grpc) {
                Some(outcome) => permit.report(outcome),
                None => permit.stop_clock(),
            }
        }
        let is_bodiless = self.is_bodiless
            || response.body().is_end_stream()
            || matches!(
                response.status(),
                StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
            );
        match is_bodiless || self.hold == Hold::Head {
            true => response.map(ResponseBody::plain),
            false => response.map(|body| ResponseBody::held(body, self.held)),
        }
    }
}
