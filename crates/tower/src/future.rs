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
use tidegate::Permit as Place;
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

/// A request that the inner service serves. Dropping it releases its permits and places, and
/// ignores the outcome.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    fields: Fields,
    /// `None` if the request holds nothing.
    held: Option<Box<Held>>,
    hold: Hold,
    is_grpc: bool,
    /// The response has no body, whatever the inner service sends.
    is_bodiless: bool,
}

impl Pending {
    /// Collects what a request holds while it is served. The handler finds its lease and its
    /// settlement in the extensions.
    #[inline]
    pub(crate) fn new(
        settings: &Settings,
        head: &mut Parts,
        admitted: &mut Answer,
        permit: Option<Permit>,
    ) -> Self {
        let fields = settings.fields_of(admitted);
        if permit.is_none() && admitted.place.is_none() {
            return Self { fields, ..Self::default() };
        }
        Self {
            fields,
            hold: settings.hold_of(admitted),
            is_grpc: permit.is_some() && is_grpc(&head.headers),
            is_bodiless: head.method == Method::HEAD,
            held: Held::new(head, admitted.place.take(), permit),
        }
    }

    /// Adds the header fields, reports the outcome, and passes the permits and places on to the
    /// body.
    #[inline]
    pub(crate) fn finish<R: Body>(
        mut self,
        mut response: Response<R>,
    ) -> Response<ResponseBody<R>> {
        if let Some(held) = &mut self.held
            && let Some(settling) = &mut held.settling
            && !settling.at_head(&response)
        {
            held.settling = None;
        }
        self.fields.merge_into(response.headers_mut());
        match self.held {
            None => response.map(ResponseBody::plain),
            Some(held) => {
                let has_body = !self.is_bodiless && has_body(&response);
                held.pass_on(response, self.is_grpc, has_body, self.hold)
            }
        }
    }
}

impl Held {
    /// Puts the lease and the settlement into the extensions of the request, for the handler.
    fn new(
        head: &mut Parts,
        place: Option<Box<Place>>,
        permit: Option<Permit>,
    ) -> Option<Box<Self>> {
        let mut place = place;
        let settling = place.as_mut().and_then(|place| place.take_settlement()).map(Settling::new);
        if let Some(settling) = &settling {
            settling.offer(&mut head.extensions);
        }
        let lease = place.filter(|place| place.holds_places()).map(|place| Lease::new(*place));
        if let Some(lease) = &lease {
            head.extensions.insert(lease.clone());
        }
        let held = Self { permit, lease, settling };
        (!held.is_empty()).then(|| Box::new(held))
    }

    /// Reports the outcome if the head contains it, and moves into the body if permits are held or
    /// limits settled until its end.
    fn pass_on<R: Body>(
        mut self: Box<Self>,
        response: Response<R>,
        is_grpc: bool,
        has_body: bool,
        hold: Hold,
    ) -> Response<ResponseBody<R>> {
        if let Some(permit) = &mut self.permit {
            match outcome::of_head(&response, is_grpc) {
                Some(outcome) => permit.report(outcome),
                None => permit.stop_clock(),
            }
        }
        if hold == Hold::Head {
            (self.permit, self.lease) = (None, None);
        }
        match has_body && !self.is_empty() {
            true => response.map(|body| ResponseBody::held(body, self)),
            false => response.map(ResponseBody::plain),
        }
    }
}

/// Whether anything follows the head of a response.
fn has_body<R: Body>(response: &Response<R>) -> bool {
    let status = response.status();
    let is_bodiless = matches!(
        status,
        StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
    );
    !is_bodiless && !response.body().is_end_stream()
}
