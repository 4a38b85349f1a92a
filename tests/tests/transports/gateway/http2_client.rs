//! A client of HTTP/2.

use std::convert::Infallible;
use std::net::SocketAddr;

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

/// The body of a request.
pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Sends a body piece by piece.
pub(super) type Pieces = mpsc::UnboundedSender<Frame<Bytes>>;

/// A connection.
#[derive(Clone)]
pub(super) struct Http2Client(pub(super) SendRequest<Body>);

/// A response that has ended.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) trailers: Option<HeaderMap>,
}

impl Http2Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).await.expect("it listens");
        socket.set_nodelay(true).expect("an open socket");
        Self::over(socket).await
    }

    pub(super) async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let handshake = Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await.expect("HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    /// The response, once its head is there.
    pub(super) async fn begin(&self, request: Request<Body>) -> hyper::Result<Response<Incoming>> {
        let mut sender = self.0.clone();
        sender.ready().await?;
        sender.send_request(request).await
    }

    pub(super) async fn ask(&self, request: Request<Body>) -> hyper::Result<Whole> {
        let (head, body) = self.begin(request).await?.into_parts();
        let body = body.collect().await?;
        let trailers = body.trailers().cloned();
        let (status, headers) = (head.status.as_u16(), head.headers);
        Ok(Whole { status, headers, body: body.to_bytes(), trailers })
    }

    pub(super) async fn get(&self, path: &str, fields: &[(&str, &str)]) -> hyper::Result<Whole> {
        self.ask(request("GET", path, fields, whole(""))).await
    }
}

pub(super) fn request(
    method: &str,
    path: &str,
    fields: &[(&str, &str)],
    body: Body,
) -> Request<Body> {
    let mut request = Request::builder().method(method).uri(format!("http://a{path}"));
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(body).expect("a request")
}

pub(super) fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed_unsync()
}

/// A body whose pieces are sent one by one.
pub(super) fn pieces() -> (Pieces, Body) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |context| {
        receiver.poll_recv(context).map(|piece| piece.map(Ok))
    });
    (sender, StreamBody::new(stream).boxed_unsync())
}

/// Runs a client.
pub(super) fn run<T>(client: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let result = runtime.block_on(async {
        tokio::time::timeout(super::TIMEOUT, client).await.expect("no client hangs")
    });
    runtime.shutdown_background();
    result
}
