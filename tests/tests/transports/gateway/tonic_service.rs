//! A real service of gRPC: health checks, and an echo of messages in both directions.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use futures_util::stream::{self, StreamExt};
use hyper::body::{Buf, Bytes};
use prost::bytes::BufMut;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

/// Messages without a format.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(message);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Sends every message back, and ends with an error after `fail`.
#[derive(Clone, Copy, Debug)]
struct Echo;

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;
type Future<T> = Pin<Box<dyn std::future::Future<Output = T> + Send>>;

impl StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = Future<Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let echo = request.into_inner().flat_map(|message| {
            stream::iter(match message {
                Ok(message) if message == "fail" => {
                    vec![Ok(message), Err(Status::data_loss("as asked"))]
                }
                message => vec![message],
            })
        });
        Box::pin(async move { Ok(Response::new(Box::pin(echo) as Messages)) })
    }
}

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl tower::Service<axum::http::Request<tonic::body::Body>> for Echo {
    type Response = axum::http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = Future<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: axum::http::Request<tonic::body::Body>) -> Self::Future {
        Box::pin(async move { Ok(Grpc::new(BytesCodec).streaming(Self, request).await) })
    }
}

/// A running service, ended when dropped.
pub(super) struct TonicService {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl TonicService {
    pub(super) fn start() -> Self {
        let (told, address) = std::sync::mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                told.send(listener.local_addr().expect("bound")).expect("a test");
                let (_reporter, health) = tonic_health::server::health_reporter();
                let server = Server::builder().add_service(health).add_service(Echo);
                let serving = server.serve_with_incoming(TcpIncoming::from(listener));
                tokio::select! {
                    served = serving => served.expect("it serves"),
                    _ = stopped => {}
                }
            });
        });
        Self { address: address.recv().expect("it starts"), _stop: stop }
    }

    pub(super) fn url(&self) -> String {
        format!("h2c://{}", self.address)
    }
}
