//! Forwards admitted requests to their upstream.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::timeout;
use tower_service::Service;
use tracing::warn;

use super::access;
use super::address::{Address, Outcome};
use super::body::{ForwardBody, RequestBody, WireBody};
use super::failure::Failure;
use super::head;
use super::pool::NoConnection;
use super::send::{Leased, Unanswered};
use super::upstream::{Pools, Tried, UpstreamPool};
use crate::observability::log::Log;
use crate::observability::throttle::{Admitted, Frequent};
use crate::runtime::worker::ConnectionSlot;

/// Forwards the requests of one connection.
#[derive(Clone, Debug)]
pub(super) struct Forward(Arc<Client>);

/// What the requests of a connection share.
#[derive(Debug)]
struct Client {
    pools: Pools,
    peer: Option<IpAddr>,
    scheme: &'static str,
    /// Set once the connection is a tunnel.
    is_tunnel: Arc<AtomicBool>,
    /// Held by a tunnel until it ends.
    slot: Option<Arc<ConnectionSlot>>,
    log: Log,
}

pub(super) type Answer = Response<ForwardBody>;

impl Forward {
    pub(super) fn new(
        pools: Pools,
        (peer, scheme): (Option<IpAddr>, &'static str),
        (is_tunnel, slot): (Arc<AtomicBool>, Option<Arc<ConnectionSlot>>),
        log: Log,
    ) -> Self {
        Self(Arc::new(Client { pools, peer, scheme, is_tunnel, slot, log }))
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

impl Client {
    async fn forward(&self, request: Request<WireBody>) -> Answer {
        let is_call = head::is_grpc(request.headers());
        let failure = match self.pass_on(request, is_call).await {
            Ok(answer) => return answer,
            Err(failure) => failure,
        };
        failure.note();
        if is_call { failure.grpc_answer() } else { failure.answer() }
    }

    async fn pass_on(
        &self,
        mut request: Request<WireBody>,
        is_call: bool,
    ) -> Result<Answer, Failure> {
        let client_upgrade = request.extensions_mut().remove::<OnUpgrade>();
        let (mut head, body) = request.into_parts();
        let to = self.pools.route(&head)?;
        let settings = &to.upstream.settings;
        let upgrade = head::upgrade(&head);
        head::drop_hop_by_hop(&mut head.headers);
        head::describe_client(&mut head, self.peer, self.scheme);
        access::note(|notes| {
            notes.upstream = Some(settings.name.as_str().into());
            notes.request_id = head.headers.get(head::X_REQUEST_ID).cloned();
        });
        if let Some(protocol) = &upgrade {
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol.clone());
        }
        // The path goes on byte for byte; an absolute target becomes a path.
        head.uri = head.uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        head.version = Version::HTTP_11;
        head.extensions.clear();
        let (body, sent) = RequestBody::new(body, is_call.then_some(settings.idle_timeout));
        let mut exchange = Exchange { to, log: &self.log, address: None };
        let answered = {
            let mut answer = pin!(exchange.send(head, body));
            tokio::select! {
                biased;
                answered = answer.as_mut() => answered,
                // The service has its time from when it has the whole request.
                _ = sent => match timeout(settings.head_timeout, answer).await {
                    Ok(answered) => answered,
                    Err(_) => Err(Failure::Late),
                },
            }
        };
        if let (Err(Failure::Late), Some(address)) = (&answered, &exchange.address) {
            address.record(Outcome::TimedOut);
        }
        let (response, connection) = answered?;
        self.answer(response, connection, settings.idle_timeout, (upgrade, client_upgrade))
    }

    /// The response as the client gets it.
    fn answer(
        &self,
        mut response: Response<WireBody>,
        connection: Leased,
        pause: Duration,
        (asked, client_upgrade): (Option<HeaderValue>, Option<OnUpgrade>),
    ) -> Result<Answer, Failure> {
        let malformed = |connection: &Leased| {
            connection.record(Outcome::Malformed);
            Err(Failure::Malformed)
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let granted = response.headers().get(UPGRADE).map(HeaderValue::as_bytes);
            return match (asked, client_upgrade) {
                (Some(asked), Some(client))
                    if connection.can_upgrade()
                        && granted.is_some_and(|it| it.eq_ignore_ascii_case(asked.as_bytes())) =>
                {
                    connection.record(Outcome::Answered);
                    Ok(self.tunnel(response, connection, client))
                }
                _ => malformed(&connection),
            };
        }
        let headers = response.headers_mut();
        if head::is_ambiguous(headers) {
            return malformed(&connection);
        }
        connection.record(Outcome::Answered);
        head::drop_hop_by_hop(headers);
        let (mut head, body) = response.into_parts();
        head.version = Version::HTTP_11;
        head.extensions.clear();
        Ok(Response::from_parts(head, ForwardBody::upstream(body, connection, pause)))
    }

    /// Copies bytes both ways once the client has been told.
    fn tunnel(
        &self,
        mut response: Response<WireBody>,
        connection: Leased,
        client: OnUpgrade,
    ) -> Answer {
        let upstream = hyper::upgrade::on(&mut response);
        let (is_tunnel, slot) = (Arc::clone(&self.is_tunnel), self.slot.clone());
        tokio::spawn(async move {
            let (Ok(client), Ok(upstream)) = tokio::join!(client, upstream) else { return };
            let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
            // An end on either side ends the other.
            let _ = copy_bidirectional(&mut client, &mut upstream).await;
            drop((connection, slot));
        });
        is_tunnel.store(true, Ordering::Release);
        let (mut head, _) = response.into_parts();
        head.extensions.clear();
        Response::from_parts(head, ForwardBody::Text(None))
    }
}

/// One request on its way to an upstream.
struct Exchange<'a> {
    to: &'a UpstreamPool,
    log: &'a Log,
    /// The address that the request was sent to last.
    address: Option<Arc<Address>>,
}

impl Exchange<'_> {
    /// Sends a request. It is sent once more if the upstream has processed none of it; and, if it is safe to repeat,
    /// if its connection ended before a response: on a new connection if it was used before, else at another address.
    async fn send(
        &mut self,
        head: Parts,
        body: RequestBody,
    ) -> Result<(Response<WireBody>, Leased), Failure> {
        let mut tried = Tried::default();
        let leased = self.to.lease(&mut tried).await;
        let mut connection = leased.map_err(|why| self.failed(&why))?;
        let is_safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let again = (is_safe && body.is_empty()).then(|| head.clone());
        let unanswered = match self.send_over(&mut connection, head, body).await {
            Ok(response) => return Ok((response, connection)),
            Err(unanswered) => unanswered,
        };
        let Unanswered { outcome, unsent, is_gone } = unanswered;
        let repeated = match (unsent, again) {
            (Some(unsent), _) => Some(unsent),
            (None, Some(head)) if is_gone => Some((head, RequestBody::empty())),
            _ => None,
        };
        // An upstream closes connections that are idle; that is no failure of it.
        if !connection.is_reused || repeated.is_none() {
            connection.record(outcome);
        }
        let Some((head, body)) = repeated else { return Err(Failure::of(outcome)) };
        connection.count_retry();
        let leased = match connection.is_reused {
            true => match self.to.lease_again(&connection).await {
                Err(NoConnection::Failed(_)) => self.to.lease(&mut tried).await,
                leased => leased,
            },
            false => self.to.lease(&mut tried).await,
        };
        drop(connection);
        let mut connection = match leased {
            Ok(connection) => connection,
            Err(NoConnection::Busy) => return Err(Failure::of(outcome)),
            Err(why) => return Err(self.failed(&why)),
        };
        match self.send_over(&mut connection, head, body).await {
            Ok(response) => Ok((response, connection)),
            Err(Unanswered { outcome, .. }) => {
                connection.record(outcome);
                Err(Failure::of(outcome))
            }
        }
    }

    async fn send_over(
        &mut self,
        connection: &mut Leased,
        head: Parts,
        body: RequestBody,
    ) -> Result<Response<WireBody>, Unanswered> {
        self.address = self.to.upstream.addresses.get(connection.number).map(Arc::clone);
        connection.send(&self.to.upstream.settings, head, body).await
    }

    /// Logs why there is no connection.
    fn failed(&self, failed: &NoConnection) -> Failure {
        let (failure, why) = match failed {
            NoConnection::Busy => (Failure::Busy, "all connections are in use".to_owned()),
            NoConnection::Failed(error) => (Failure::Unreachable, error.to_string()),
        };
        if let Some(Admitted { suppressed }) = self.log.admit(Frequent::UpstreamFailed) {
            let (event, upstream) = ("upstream_failed", &self.to.upstream.settings.name);
            warn!(event, upstream, suppressed, "cannot connect to the service: {why}");
        }
        failure
    }
}
