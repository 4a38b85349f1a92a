//! The body of a response, which holds the request's permits until it ends.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate::concurrency::{Outcome, Permit};

use crate::outcome;
use crate::request::Lease;
use crate::settle::Settling;

pin_project! {
    /// The body of a response: that of the inner service, or the reason of a rejection.
    ///
    /// A body that holds permits releases them when it ends, fails or is dropped.
    #[project = Projected]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = ProjectedKind]
    enum Kind<B> {
        Plain { #[pin] body: B },
        // Boxed, because few responses hold a permit and every response is moved a few times.
        Held { #[pin] body: B, held: Option<Box<Held>> },
        Text { text: Option<Box<Bytes>> },
    }
}

/// What a response in progress holds.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) permit: Option<Permit>,
    pub(crate) lease: Option<Lease>,
    /// `None` once the head of the response was enough to settle all limits.
    pub(crate) settling: Option<Settling>,
}

impl Held {
    pub(crate) const fn is_empty(&self) -> bool {
        self.permit.is_none() && self.lease.is_none() && self.settling.is_none()
    }

    /// Reports the outcome and the costs that the trailers contain.
    fn see_trailers(&mut self, trailers: &HeaderMap) {
        if let Some(permit) = &mut self.permit {
            // Without effect if the head contained the outcome.
            permit.report(outcome::of_grpc(trailers).unwrap_or(Outcome::Ignored));
        }
        if let Some(settling) = &mut self.settling {
            settling.at_end(trailers);
        }
    }
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(crate) const fn plain(body: B) -> Self {
        Self { kind: Kind::Plain { body } }
    }

    pub(crate) const fn held(body: B, held: Box<Held>) -> Self {
        Self { kind: Kind::Held { body, held: Some(held) } }
    }

    pub(crate) fn text(text: Bytes) -> Self {
        Self { kind: Kind::Text { text: (!text.is_empty()).then(|| Box::new(text)) } }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            ProjectedKind::Plain { body } => body.poll_frame(context),
            ProjectedKind::Held { mut body, held } => {
                let frame = ready!(body.as_mut().poll_frame(context));
                if let (Some(Ok(frame)), Some(held)) = (&frame, held.as_mut())
                    && let Some(trailers) = frame.trailers_ref()
                {
                    held.see_trailers(trailers);
                }
                let is_last = match &frame {
                    Some(Ok(frame)) => frame.is_trailers() || body.is_end_stream(),
                    Some(Err(_)) | None => true,
                };
                if is_last {
                    *held = None;
                }
                Poll::Ready(frame)
            }
            ProjectedKind::Text { text } => Poll::Ready(text.take().map(|it| Ok(Frame::data(*it)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Plain { body } | Kind::Held { body, .. } => body.is_end_stream(),
            Kind::Text { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Plain { body } | Kind::Held { body, .. } => body.size_hint(),
            Kind::Text { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

impl<B> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            Kind::Plain { .. } => "Plain",
            Kind::Held { .. } => "Held",
            Kind::Text { .. } => "Text",
        };
        f.debug_tuple("ResponseBody").field(&kind).finish()
    }
}

impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::plain(B::default())
    }
}
