//! What an answer consists of behind its head.

use std::convert::Infallible;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame};
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;

use super::status::{GRPC, Status, success};
use super::{Reply, Visit};

/// Messages, and how the call went.
#[derive(Debug, Default)]
pub(super) enum Body {
    /// The head has said it all.
    #[default]
    Empty,
    /// One message, and that all went well.
    One(Bytes),
    /// That all went well.
    Success,
    /// Messages as they are made, perhaps why there will be no more.
    Many(mpsc::Receiver<Result<Bytes, Status>>),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        let frame = match body {
            Self::Empty => return Poll::Ready(None),
            Self::One(message) => {
                let message = mem::take(message);
                *body = Self::Success;
                Frame::data(message)
            }
            Self::Success => {
                *body = Self::Empty;
                Frame::trailers(success())
            }
            Self::Many(messages) => match ready!(messages.poll_recv(context)) {
                Some(Ok(message)) => Frame::data(message),
                Some(Err(status)) => {
                    *body = Self::Empty;
                    Frame::trailers(status.trailers())
                }
                None => {
                    *body = Self::Empty;
                    Frame::trailers(success())
                }
            },
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Empty)
    }
}

/// The answer to a call that brings forth one message, or none.
pub(super) fn unary(answer: Result<Bytes, Status>) -> Reply {
    match answer {
        Ok(message) => with_body(Body::One(message)),
        Err(status) => status.reply(),
    }
}

/// The answer to a call that brings forth as many as the task sends that is started for it.
pub(super) fn streaming<F>(visit: &Arc<Visit>, task: impl FnOnce(Arc<Visit>, Sender) -> F) -> Reply
where
    F: Future<Output = ()> + Send + 'static,
{
    // One that waits to be taken: nothing is made ahead of who reads it.
    let (sender, messages) = mpsc::channel(1);
    tokio::spawn(task(Arc::clone(visit), sender));
    with_body(Body::Many(messages))
}

/// Takes the messages of an answer. Once the peer is gone it is closed.
pub(super) type Sender = mpsc::Sender<Result<Bytes, Status>>;

fn with_body(body: Body) -> Reply {
    let mut reply = Response::new(body);
    reply.headers_mut().insert(CONTENT_TYPE, GRPC);
    reply
}
