//! Forwards admitted requests to the upstream.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::timeout;
use tower_service::Service;
use tracing::warn;

use super::body::{ForwardBody, RequestBody, WireBody};
use super::head::{self, Refused};
use super::upstream::{Leased, NoConnection, Pool};
use crate::observability::log::Log;
use crate::observability::throttle::{Admitted, Frequent};
use crate::settings::Upstream;

/// Forwards the requests of one connection.
#[derive(Clone, Debug)]
pub(super) struct Forward(Arc<Client>);

/// What the requests of a connection share.
#[derive(Debug)]
struct Client {
    pool: Pool,
    upstream: Upstream,
    peer: Option<IpAddr>,
    scheme: &'static str,
    /// Set once the connection is a tunnel.
    is_tunnel: Arc<AtomicBool>,
    log: Log,
}

pub(super) type Answer = Response<ForwardBody>;

impl Forward {
    pub(super) fn new(
        pool: Pool,
        upstream: Upstream,
        (peer, scheme): (Option<IpAddr>, &'static str),
        is_tunnel: Arc<AtomicBool>,
        log: Log,
    ) -> Self {
        Self(Arc::new(Client { pool, upstream, peer, scheme, is_tunnel, log }))
    }
}

impl Service<Request<WireBody>> for Forward {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<WireBody>) -> Self::Future {
        let client = Arc::clone(&self.0);
        Box::pin(async move { Ok(client.forward(request).await) })
    }
}

/// Why the upstream gives no response.
enum Failure {
    Busy,
    Unreachable,
    Late,
    Malformed,
}

impl Client {
    async fn forward(&self, mut request: Request<WireBody>) -> Answer {
        let client_upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let (mut head, body) = request.into_parts();
        let upgrade = head::upgrade(&head);
        head::drop_hop_by_hop(&mut head.headers);
        head::describe_client(&mut head, self.peer, self.scheme);
        if let Some(protocol) = &upgrade {
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol.clone());
        }
        // The path goes on byte for byte; an absolute target becomes a path.
        head.uri = head.uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        head.version = Version::HTTP_11;
        head.extensions.clear();
        let (body, sent) = RequestBody::new(body);
        let mut answer = pin!(self.send(head, body));
        let answered = tokio::select! {
            biased;
            answered = answer.as_mut() => answered,
            // The service has its time from when it has the whole request.
            _ = sent => match timeout(self.upstream.head_timeout, answer).await {
                Ok(answered) => answered,
                Err(_) => Err(Failure::Late),
            },
        };
        match answered {
            Ok((response, connection)) => {
                self.answer(response, connection, (upgrade, client_upgrade))
            }
            Err(failure) => failure.answer(),
        }
    }

    /// Sends a request. If a connection that was used before turns out to be closed, a request that the
    /// upstream cannot have acted on is sent once more over a new one.
    async fn send(
        &self,
        head: Parts,
        body: RequestBody,
    ) -> Result<(Response<Incoming>, Leased), Failure> {
        let mut connection = self.pool.lease().await.map_err(|failed| self.failed(failed))?;
        let is_safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let again = (connection.is_reused && is_safe && body.is_end_stream()).then(|| head.clone());
        let request = Request::from_parts(head, body);
        let mut error = match connection.sender.try_send_request(request).await {
            Ok(response) => return Ok((response, connection)),
            Err(error) => error,
        };
        if !connection.is_reused {
            return Err(Failure::of_error(error.error()));
        }
        drop(connection);
        // Either it was never sent, or it is safe to repeat and the connection ended before a response.
        let unsent = error.take_message();
        let is_gone = error.error().is_incomplete_message() || error.error().is_canceled();
        let request = match (unsent, again) {
            (Some(request), _) => request,
            (None, Some(head)) if is_gone || is_reset(error.error()) => {
                Request::from_parts(head, RequestBody::empty())
            }
            _ => return Err(Failure::of_error(error.error())),
        };
        let mut connection = self.pool.lease_new().await.map_err(|failed| self.failed(failed))?;
        match connection.sender.send_request(request).await {
            Ok(response) => Ok((response, connection)),
            Err(error) => Err(Failure::of_error(&error)),
        }
    }

    /// Logs why there is no connection.
    fn failed(&self, failed: NoConnection) -> Failure {
        let (failure, why) = match failed {
            NoConnection::Busy => (Failure::Busy, "all connections are in use".to_owned()),
            NoConnection::Failed(error) => (Failure::Unreachable, error.to_string()),
        };
        if let Some(Admitted { suppressed }) = self.log.admit(Frequent::UpstreamFailed) {
            let upstream = format!("{}:{}", self.upstream.host, self.upstream.port);
            let event = "upstream_failed";
            warn!(event, upstream, suppressed, "cannot connect to the service: {why}");
        }
        failure
    }

    /// The response as the client gets it.
    fn answer(
        &self,
        mut response: Response<Incoming>,
        connection: Leased,
        (asked, client_upgrade): (Option<HeaderValue>, Option<OnUpgrade>),
    ) -> Answer {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let granted = response.headers().get(UPGRADE).map(HeaderValue::as_bytes);
            return match (asked, client_upgrade) {
                (Some(asked), Some(client))
                    if granted.is_some_and(|it| it.eq_ignore_ascii_case(asked.as_bytes())) =>
                {
                    self.tunnel(response, connection, client)
                }
                _ => Failure::Malformed.answer(),
            };
        }
        let headers = response.headers_mut();
        let has_both =
            headers.contains_key(CONTENT_LENGTH) && headers.contains_key(TRANSFER_ENCODING);
        if has_both || headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
            return Failure::Malformed.answer();
        }
        head::drop_hop_by_hop(headers);
        let (mut head, body) = response.into_parts();
        head.version = Version::HTTP_11;
        head.extensions.clear();
        Response::from_parts(head, ForwardBody::upstream(WireBody::Http1(body), connection))
    }

    /// Copies bytes both ways once the client has been told.
    fn tunnel(
        &self,
        mut response: Response<Incoming>,
        connection: Leased,
        client: OnUpgrade,
    ) -> Answer {
        let upstream = hyper::upgrade::on(&mut response);
        let is_tunnel = Arc::clone(&self.is_tunnel);
        tokio::spawn(async move {
            let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            // An end on either side ends the other.
            let _ = copy_bidirectional(&mut client, &mut upstream).await;
            drop(connection);
        });
        is_tunnel.store(true, Ordering::Release);
        let (mut head, _) = response.into_parts();
        head.extensions.clear();
        Response::from_parts(head, ForwardBody::Text(None))
    }
}

/// Whether the connection was reset.
fn is_reset(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe)
    })
}

impl Failure {
    fn of_error(error: &hyper::Error) -> Self {
        if error.is_parse() { Self::Malformed } else { Self::Unreachable }
    }

    /// The response; details of the upstream are not the client's business.
    fn answer(&self) -> Answer {
        let (status, why) = match self {
            Self::Busy => (StatusCode::SERVICE_UNAVAILABLE, "all connections are in use"),
            Self::Unreachable => (StatusCode::BAD_GATEWAY, "the service gives no response"),
            Self::Late => (StatusCode::GATEWAY_TIMEOUT, "the service does not answer in time"),
            Self::Malformed => {
                (StatusCode::BAD_GATEWAY, "the response of the service is malformed")
            }
        };
        let mut answer = problem(status, why);
        if status == StatusCode::SERVICE_UNAVAILABLE {
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        answer
    }
}

impl From<Refused> for Answer {
    /// Nothing is read behind a request that servers read in different ways.
    fn from(refused: Refused) -> Self {
        let mut answer = problem(refused.status, refused.why);
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        answer
    }
}

/// Problem details of the gateway's own.
pub(super) fn problem(status: StatusCode, why: &str) -> Answer {
    let title = status.canonical_reason().unwrap_or_default();
    let text = format!(
        "{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{},\"detail\":\"{why}\"}}",
        status.as_u16()
    );
    let mut answer = Response::new(ForwardBody::Text(Some(Bytes::from(text))));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}
