//! The body of an answer.

use std::sync::Arc;

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;

use super::status::{Code, GRPC, Status};
use super::{GrpcConnection, Reply};

/// Messages and the final status.
#[derive(Debug)]
pub(super) enum Body {
    /// No message; the head contains the status.
    Empty,
    /// One message, and success.
    One(Bytes),
    /// Messages as they are produced, and an error if there is one.
    Many(mpsc::Receiver<Result<Bytes, Status>>),
}

/// The answer to a call with one message or an error.
pub(super) fn unary(answer: Result<Bytes, Status>) -> Reply {
    match answer {
        Ok(message) => with_body(Body::One(message)),
        Err(status) => status.reply(),
    }
}

/// The answer to a call with any number of messages, produced by a task.
pub(super) fn streaming<F>(
    connection: &Arc<GrpcConnection>,
    task: impl FnOnce(Arc<GrpcConnection>, Sender) -> F,
) -> Reply
where
    F: Future<Output = ()> + Send + 'static,
{
    let Some(charge) = connection.account.call() else {
        return Status::new(Code::ResourceExhausted, "too many open streams").reply();
    };
    // Capacity 1, so that messages are produced only as fast as they are read.
    let (sender, messages) = mpsc::channel(1);
    let task = task(Arc::clone(connection), sender);
    tokio::spawn(async move {
        task.await;
        drop(charge);
    });
    with_body(Body::Many(messages))
}

/// Sends the messages of an answer. The channel is closed once the peer is gone.
pub(super) type Sender = mpsc::Sender<Result<Bytes, Status>>;

fn with_body(body: Body) -> Reply {
    let mut reply = Response::new(body);
    reply.headers_mut().insert(CONTENT_TYPE, GRPC);
    reply
}
