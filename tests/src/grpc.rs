//! A gRPC client for one call at a time, over HTTP/2 without a framework.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{Iter, iter};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::rls::{RateLimitRequest, RateLimitResponse};

/// The path of the rate limit service.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Longer than any step takes on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to a gRPC server.
#[derive(Debug)]
pub struct GrpcClient {
    runtime: Runtime,
    sender: SendRequest<Pieces>,
}

/// A body that is sent in pieces.
type Pieces = StreamBody<Iter<std::vec::IntoIter<Result<Frame<Bytes>, std::convert::Infallible>>>>;

fn pieces(body: &[u8], size: usize) -> Pieces {
    let pieces = body.chunks(size).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
    StreamBody::new(iter(pieces.collect::<Vec<_>>()))
}

/// The status of a call without a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The number of the status.
    pub code: u16,
    /// The server's message.
    pub text: String,
}

impl GrpcClient {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        Self::over(async move {
            let socket = TcpStream::connect(address).await.expect("it listens");
            // Head and message are two pieces, and the second must not wait for an acknowledgement
            // of the first.
            socket.set_nodelay(true).expect("an open socket");
            socket
        })
    }

    /// A client on the connection that `connect` opens.
    pub fn over<S>(connect: impl Future<Output = S>) -> Self
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let sender = runtime.block_on(async {
            let stream = TokioIo::new(connect.await);
            let shaken = handshake(TokioExecutor::new(), stream);
            let (sender, connection) = shaken.await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        });
        Self { runtime, sender }
    }

    /// Calls the rate limit service.
    pub fn should_rate_limit(
        &mut self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Failed> {
        let message = self.call(SHOULD_RATE_LIMIT, &request.encode_to_vec())?;
        Ok(decoded(&message))
    }

    /// Calls a method with one message, and returns the one answer.
    pub fn call(&mut self, method: &str, message: &[u8]) -> Result<Vec<u8>, Failed> {
        only(self.exchange(method, &framed(message), &[]))
    }

    /// Sends this body with these headers, and returns all messages and the status.
    pub fn exchange(
        &mut self,
        method: &str,
        body: &[u8],
        headers: &[(&str, &str)],
    ) -> (Vec<Vec<u8>>, Failed) {
        let response = self.send(method, body, headers);
        self.read(response)
    }

    /// Like [`GrpcClient::exchange`], but in pieces of this many bytes.
    pub fn exchange_in_pieces(
        &mut self,
        method: &str,
        body: &[u8],
        size: usize,
    ) -> (Vec<Vec<u8>>, Failed) {
        let response = self.send_pieces(method, pieces(body, size), &[]);
        self.read(response)
    }

    fn read(&self, response: Response<Incoming>) -> (Vec<Vec<u8>>, Failed) {
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let head = response.headers().clone();
        let collected = wait(&self.runtime, response.into_body().collect());
        let collected = collected.expect("a whole answer");
        let trailers = collected.trailers().cloned();
        let messages = messages(&collected.to_bytes());
        (messages, status(&trailers.unwrap_or(head)))
    }

    /// Sends a request, and returns the head of the answer.
    pub fn send(
        &mut self,
        method: &str,
        body: &[u8],
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        self.send_pieces(method, pieces(body, body.len().max(1)), headers)
    }

    fn send_pieces(
        &mut self,
        method: &str,
        body: Pieces,
        headers: &[(&str, &str)],
    ) -> Response<Incoming> {
        self.try_pieces(method, body, headers).expect("an answer")
    }

    fn try_pieces(
        &mut self,
        method: &str,
        body: Pieces,
        headers: &[(&str, &str)],
    ) -> Result<Response<Incoming>, hyper::Error> {
        let request = Request::post(format!("http://grpc{method}"));
        let has_kind = headers.iter().any(|(name, _)| *name == "content-type");
        let kind = [("content-type", "application/grpc"), ("te", "trailers")];
        let kind = kind.iter().filter(|(name, _)| *name != "content-type" || !has_kind);
        let request =
            kind.chain(headers).fold(request, |it, (name, value)| it.header(*name, *value));
        let request = request.body(body).expect("a request");
        wait(&self.runtime, self.sender.send_request(request))
    }

    /// The next piece of an answer; `None` at its end. Trailers become their status.
    pub fn next(&self, response: &mut Response<Incoming>) -> Option<Result<Vec<u8>, Failed>> {
        let frame = wait(&self.runtime, response.body_mut().frame())?.expect("a whole answer");
        Some(match frame.into_data() {
            Ok(data) => Ok(messages(&data).remove(0)),
            Err(frame) => Err(status(&frame.into_trailers().expect("data or trailers"))),
        })
    }

    /// Whether the server has not sent GOAWAY.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Like [`GrpcClient::should_rate_limit`]; `None` if the connection ended before the request
    /// was sent.
    pub fn ask_if_open(
        &mut self,
        request: &RateLimitRequest,
    ) -> Option<Result<RateLimitResponse, Failed>> {
        wait(&self.runtime, self.sender.ready()).ok()?;
        let body = framed(&request.encode_to_vec());
        match self.try_pieces(SHOULD_RATE_LIMIT, pieces(&body, body.len()), &[]) {
            // The request was never sent.
            Err(error) if error.is_canceled() => None,
            answer => {
                let answer = self.read(answer.expect("an answer"));
                Some(only(answer).map(|message| decoded(&message)))
            }
        }
    }

    /// Sends this many requests, and waits for no answer.
    pub fn ask_and_leave(
        &mut self,
        request: &RateLimitRequest,
        times: usize,
    ) -> Result<(), hyper::Error> {
        let body = framed(&request.encode_to_vec());
        self.runtime.block_on(async {
            for _ in 0..times {
                self.sender.ready().await?;
                let request = Request::post(format!("http://grpc{SHOULD_RATE_LIMIT}"));
                let request = request.header("content-type", "application/grpc");
                let request = request.body(pieces(&body, body.len()));
                let sent = self.sender.send_request(request.expect("a request"));
                // Long enough to be sent, too short to be answered.
                let _ = timeout(Duration::ZERO, sent).await;
                tokio::task::yield_now().await;
            }
            Ok(())
        })
    }

    /// Waits until the server has closed the connection.
    pub fn closed(&mut self) {
        let closed = async {
            while !self.sender.is_closed() {
                tokio::task::yield_now().await;
            }
        };
        wait(&self.runtime, closed);
    }
}

/// The only message of an answer.
fn only((messages, status): (Vec<Vec<u8>>, Failed)) -> Result<Vec<u8>, Failed> {
    match (status.code, &*messages) {
        (0, [message]) => Ok(message.clone()),
        (0, _) => panic!("{} messages", messages.len()),
        _ => Err(status),
    }
}

fn decoded(message: &[u8]) -> RateLimitResponse {
    RateLimitResponse::decode(message).expect("what the protocol says")
}

fn wait<T>(runtime: &Runtime, future: impl Future<Output = T>) -> T {
    runtime.block_on(async { timeout(TIMEOUT, future).await.expect("in time") })
}

/// A message with its frame header.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a message that fits");
    [&[0][..], &length.to_be_bytes(), message].concat()
}

fn messages(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while let Some((prefix, rest)) = bytes.split_first_chunk::<5>() {
        let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
        let (message, rest) = rest.split_at(length as usize);
        messages.push(message.to_vec());
        bytes = rest;
    }
    assert!(bytes.is_empty(), "a message breaks off");
    messages
}

fn status(fields: &HeaderMap) -> Failed {
    let text = |name: &str| fields.get(name).map(|value| value.to_str().expect("ASCII"));
    let code = text("grpc-status").and_then(|code| code.parse().ok()).expect("a status");
    let escaped = text("grpc-message").unwrap_or_default();
    let mut parts = escaped.split('%');
    let mut bytes: Vec<u8> = parts.next().unwrap_or_default().into();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
        bytes.extend_from_slice(rest.as_bytes());
    }
    Failed { code, text: String::from_utf8(bytes).expect("UTF-8") }
}
