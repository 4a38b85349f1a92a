//! What an answer consists of behind its head.

use std::sync::Arc;

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use tokio::sync::mpsc;

use super::status::{Code, GRPC, Status};
use super::{GrpcConnection, Reply};

/// Messages, and how the call went.
#[derive(Debug)]
pub(super) enum Body {
    /// The head has said it all.
    Empty,
    /// One message, and that all went well.
    One(Bytes),
    /// Messages as they are made, perhaps why there will be no more.
    Many(mpsc::Receiver<Result<Bytes, Status>>),
}

/// The answer to a call that brings forth one message, or none.
pub(super) fn unary(answer: Result<Bytes, Status>) -> Reply {
    match answer {
        Ok(message) => with_body(Body::One(message)),
        Err(status) => status.reply(),
    }
}

/// The answer to a call that brings forth as many as the task sends that is started for it.
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
    // One that waits to be taken: nothing is made ahead of who reads it.
    let (sender, messages) = mpsc::channel(1);
    let task = task(Arc::clone(connection), sender);
    tokio::spawn(async move {
        task.await;
        drop(charge);
    });
    with_body(Body::Many(messages))
}

/// Takes the messages of an answer. Once the peer is gone it is closed.
pub(super) type Sender = mpsc::Sender<Result<Bytes, Status>>;

fn with_body(body: Body) -> Reply {
    let mut reply = Response::new(body);
    reply.headers_mut().insert(CONTENT_TYPE, GRPC);
    reply
}
