//! Forwards admitted requests to their upstream.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use tidegate_tower::Lease;
use tokio::time::timeout;
use tower_service::Service;
use tracing::warn;

use super::access;
use super::address::{Address, Outcome};
use super::body::{BodyLimits, ClientFailure, ForwardBody, RequestBody, WireBody};
use super::class;
use super::failure::Failure;
use super::framing::MAX_RESPONSE_HEAD;
use super::head::{self, Description};
use super::http2::length;
use super::interim::Interim;
use super::pool::{NoConnection, WhenFull};
use super::send::{Leased, Unanswered};
use super::tunnel::Tunnel;
use super::upstream::{Pools, Tried, UpstreamPool};
use crate::observability::log::Log;
use crate::observability::throttle::{Admitted, Frequent};
use crate::settings::Scheme;

/// The most times that a request is sent: the reused connections of two addresses may have ended.
const MAX_SENDS: u8 = 3;

/// Forwards the requests of one connection.
#[derive(Clone, Debug)]
pub(super) struct Forward(Arc<Client>);

/// State that the requests of a connection share.
#[derive(Debug)]
struct Client {
    pools: Pools,
    description: Description,
    tunnel: Arc<Tunnel>,
    log: Log,
    /// The bounds of request bodies.
    limits: BodyLimits,
}

pub(super) type Answer = Response<ForwardBody>;

/// The parts of a request that a tunnel needs.
struct Asked {
    /// The protocol that the request asks to switch to.
    protocol: Option<HeaderValue>,
    client: Option<OnUpgrade>,
    /// Its places in the in-flight limits of its key.
    places: Option<Lease>,
}

impl Forward {
    pub(super) fn new(
        pools: Pools,
        description: Description,
        tunnel: Arc<Tunnel>,
        log: Log,
        limits: BodyLimits,
    ) -> Self {
        Self(Arc::new(Client { pools, description, tunnel, log, limits }))
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
        let asked = Asked {
            protocol: None,
            client: request.extensions_mut().remove::<OnUpgrade>(),
            places: request.extensions_mut().remove::<Lease>(),
        };
        let interim = request.extensions_mut().remove::<Interim>();
        let (mut head, body) = request.into_parts();
        if head::content_length(&head.headers).is_some_and(|length| length > self.limits.max_bytes)
        {
            return Err(Failure::Client(ClientFailure::TooLarge));
        }
        let to = self.pools.route(&head)?;
        let settings = &to.upstream.settings;
        let upgrade = head::upgrade(&head);
        head::drop_hop_by_hop(&mut head.headers);
        let is_grpc = is_call && settings.scheme != Scheme::Http;
        head::drop_aliases(&mut head.headers, is_grpc, &self.limits.own);
        class::replace_in(&mut head.headers);
        self.description.add_to(&mut head.headers);
        access::note(|notes| {
            notes.upstream = Some(settings.name.as_str().into());
            notes.request_id = head.headers.get(head::X_REQUEST_ID).cloned();
        });
        if let Some(protocol) = &upgrade {
            head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            head.headers.insert(UPGRADE, protocol.clone());
        }
        // The path is forwarded unchanged; an absolute target becomes a path.
        head.uri = head.uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        head.version = Version::HTTP_11;
        head.extensions.clear();
        let pause = is_call.then_some(settings.idle_timeout);
        let (body, mut sent) = RequestBody::new(body, BodyLimits { pause, ..self.limits.clone() });
        let mut exchange = Exchange { to, log: &self.log, interim, address: None };
        let (mut cut, mut is_late) = (None, false);
        let answered = {
            let mut answer = pin!(exchange.send(head, body));
            tokio::select! {
                biased;
                answered = answer.as_mut() => answered,
                // The service's time starts when it has the whole request.
                ended = &mut sent => {
                    cut = ended.ok();
                    timeout(settings.head_timeout, answer).await.unwrap_or_else(|_| {
                        is_late = true;
                        Err(Failure::Late)
                    })
                }
            }
        };
        let answered = answered.map_err(|failure| match failure {
            Failure::Client(why) => {
                Failure::Client(cut.or_else(|| sent.try_recv().ok()).unwrap_or(why))
            }
            failure => failure,
        });
        if let (true, Some(address)) = (is_late, &exchange.address) {
            address.record(Outcome::TimedOut);
        }
        let (response, connection) = answered?;
        let asked = Asked { protocol: upgrade, ..asked };
        self.answer(response, connection, settings.idle_timeout, asked)
    }

    /// Converts the upstream's response to the client's.
    fn answer(
        &self,
        mut response: Response<WireBody>,
        connection: Leased,
        pause: Duration,
        asked: Asked,
    ) -> Result<Answer, Failure> {
        let malformed = |connection: &Leased| {
            connection.record(Outcome::Malformed);
            Err(Failure::Malformed)
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let granted = response.headers().get(UPGRADE).map(HeaderValue::as_bytes);
            return match asked {
                Asked { protocol: Some(protocol), client: Some(client), places }
                    if connection.can_upgrade()
                        && granted
                            .is_some_and(|it| it.eq_ignore_ascii_case(protocol.as_bytes())) =>
                {
                    connection.record(Outcome::Answered);
                    Ok(self.tunnel.open(response, client, (connection, places)))
                }
                _ => malformed(&connection),
            };
        }
        let headers = response.headers_mut();
        if head::is_ambiguous(headers) || length(headers) > MAX_RESPONSE_HEAD {
            return malformed(&connection);
        }
        connection.record(Outcome::Answered);
        head::drop_hop_by_hop(headers);
        let (mut head, body) = response.into_parts();
        head.version = Version::HTTP_11;
        head.extensions.clear();
        Ok(Response::from_parts(head, ForwardBody::upstream(body, connection, pause)))
    }
}

/// One request on its way to an upstream.
struct Exchange<'a> {
    to: &'a UpstreamPool,
    log: &'a Log,
    /// Takes the interim responses.
    interim: Option<Interim>,
    /// The address of the latest attempt.
    address: Option<Arc<Address>>,
}

impl Exchange<'_> {
    /// Sends a request, at most [`MAX_SENDS`] times. It is repeated if the upstream has not
    /// processed any of it, or if it is safe to repeat and its connection ended before a response;
    /// then only within the upstream's retry budget, and more than once only if all its connections
    /// were reused, because a request that ends new connections may do so at every address.
    async fn send(
        &mut self,
        mut head: Parts,
        mut body: RequestBody,
    ) -> Result<(Response<WireBody>, Leased), Failure> {
        self.to.count_request();
        let mut tried = Tried::default();
        let leased = self.to.lease(&mut tried, WhenFull::Wait).await;
        let mut connection = leased.map_err(|why| self.failed(&why))?;
        let is_safe = matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS);
        let (mut left, mut is_stale) = (MAX_SENDS, true);
        loop {
            left -= 1;
            let is_first = left == MAX_SENDS - 1;
            is_stale &= connection.is_reused;
            let again = (is_safe && body.is_empty() && left > 0).then(|| head.clone());
            let unanswered = match self.send_over(&mut connection, head, body).await {
                Ok(response) => return Ok((response, connection)),
                Err(unanswered) => unanswered,
            };
            let Unanswered { outcome, unsent, is_gone } = unanswered;
            let is_unprocessed = unsent.is_some();
            let repeated = match (unsent, again) {
                (Some(unsent), _) if left > 0 => Some(unsent),
                (None, Some(head)) if is_gone && (is_first || is_stale) && self.to.take_retry() => {
                    Some((head, RequestBody::empty()))
                }
                _ => None,
            };
            // An upstream may close idle connections, which does not count as its failure.
            if !connection.is_reused || repeated.is_none() {
                connection.record(outcome);
            }
            let Some(repeated) = repeated else { return Err(Failure::of(outcome)) };
            (head, body) = repeated;
            connection.count_retry();
            let ended = (connection.number, connection.is_reused || is_unprocessed);
            // The new connection may need its slot.
            drop(connection);
            connection = match self.lease_other(ended, &mut tried).await {
                Ok(connection) => connection,
                Err(NoConnection::Busy) => return Err(Failure::of(outcome)),
                Err(why) => return Err(self.failed(&why)),
            };
        }
    }

    /// Replaces a connection that ended by one to another address, because the socket of a killed
    /// process accepts connections until the system has removed it. Without another address, a new
    /// connection to the same one is made if the ended one was reused, or if the request was not
    /// processed; otherwise the request itself may have ended it.
    async fn lease_other(
        &self,
        (number, may_stay): (usize, bool),
        tried: &mut Tried,
    ) -> Result<Leased, NoConnection> {
        if !may_stay {
            tried.fail(number);
            return self.to.lease(tried, WhenFull::Wait).await;
        }
        match self.to.lease(tried, WhenFull::GoOn).await {
            Err(_) => self.to.lease_again(number).await,
            leased => leased,
        }
    }

    async fn send_over(
        &mut self,
        connection: &mut Leased,
        head: Parts,
        body: RequestBody,
    ) -> Result<Response<WireBody>, Unanswered> {
        self.address = self.to.upstream.addresses.get(connection.number).map(Arc::clone);
        connection.send(&self.to.upstream.settings, head, body, self.interim.as_ref()).await
    }

    /// Logs a failure to connect.
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
