//! The gateway: forwards HTTP requests that a policy admits to a service.
//!
//! ```text
//!   bytes ─┬─guard.rs──▶ hyper ─┬─head.rs──▶ RateLimitLayer ──▶ forward.rs ──upstream.rs, pool.rs──▶ a service
//!          └─streams.rs, h2 ────┘
//! ```
//!
//! # Order
//! The gateway refuses ambiguous requests, which servers would read in different ways, then applies
//! the `requests` rules of the policy, then forwards the request. [`RateLimitLayer`] decides,
//! delays and holds in-flight places until the body of the response ends, as in every tower
//! service.
//!
//! # Bounds
//! A head has at most [`MAX_HEAD`](framing::MAX_HEAD) bytes and [`MAX_FIELDS`](framing::MAX_FIELDS)
//! fields; `guard.rs` bounds the time in which a head has to arrive, `body.rs` how slowly bodies
//! may arrive, and `pool.rs` the number of connections of each worker to each address.

mod access;
mod address;
mod body;
mod class;
mod connect;
mod failure;
mod forward;
mod framing;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod guard;
mod head;
mod health;
mod http2;
mod interim;
mod names;
mod pool;
mod preface;
mod send;
mod streams;
mod tunnel;
mod upstream;

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http_body_util::Either;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_tower::{Event, RateLimit, RateLimitLayer, ResponseBody};
use tokio::sync::watch;
use tokio::time::timeout;
use tower_layer::Layer;
use tower_service::Service;

use self::access::{Access, LoggedBody};
use self::body::{BodyLimits, ForwardBody, WireBody};
use self::class::ClassField;
use self::failure::problem;
use self::forward::{Answer, Forward};
use self::guard::Guard;
use self::head::Description;
use self::interim::Current;
use self::tunnel::Tunnel;
use super::Stream;
use super::http::WriteTimeout;
use crate::runtime::worker::ConnContext;
use crate::service::RateLimitService;
use crate::settings::{Gateway, Settings, UnclearDomain};

pub(crate) use self::address::{Address, Outcome};
#[cfg(feature = "fuzzing")]
pub(crate) use self::fuzzing::{try_requests, try_responses};
pub(crate) use self::health::watch;
pub(crate) use self::upstream::{Pools, Upstream, Upstreams};

/// How long a connection may wait for its next request.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// The longest time that an idle connection stays open once the server is stopping.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// A connection, and the state that its requests share.
struct GatewayConnection<'a> {
    gateway: &'a Gateway,
    service: RateLimitService,
    peer: Option<IpAddr>,
    is_trusted: bool,
    access: Option<Access>,
    forward: Forward,
    /// The forwarder behind the limits of a domain, with the domain's name: after a reload, the
    /// policy may name another domain.
    limited: Mutex<Option<(Box<str>, RateLimit<Forward>)>>,
}

type LimitedBody = Either<ResponseBody<ForwardBody>, ForwardBody>;
type Limited = Response<LimitedBody>;

/// Serves a connection until the peer closes it or the server is stopping.
pub(crate) async fn converse(stream: Stream, context: ConnContext) {
    let ConnContext { service, settings, mut stopped, budget, pools, client: peer } = context;
    let (Some(gateway), Some(pools)) = (&settings.gateway, pools) else { return };
    let Some((stream, is_http2)) = begin(stream, &settings, &mut stopped).await else { return };
    let scheme = if stream.is_tls() { "https" } else { "http" };
    let tunnel = Arc::new(Tunnel::new(settings.idle_after));
    let log = service.status().log().clone();
    let own = gateway.drop_headers.clone();
    let limits = BodyLimits { max_bytes: gateway.max_body.unwrap_or(u64::MAX), pause: None, own };
    let connection = GatewayConnection {
        gateway,
        access: Access::new(gateway, peer, &service),
        service,
        peer,
        is_trusted: gateway.is_trusted(peer, stream.is_unix()),
        forward: Forward::new(
            pools,
            Description::new(peer, scheme),
            Arc::clone(&tunnel),
            log,
            limits,
        ),
        limited: Mutex::default(),
    };
    if is_http2 {
        return streams::serve(stream, &connection, &settings, &budget, &mut stopped).await;
    }
    let is_stopping = stopped.clone();
    let current = Arc::new(Current::default());
    let answer = service_fn(|mut request: Request<_>| {
        if let Some(interim) = current.begin(request.version()) {
            request.extensions_mut().insert(interim);
        }
        let answer = connection.log(request.map(WireBody::Http1));
        async {
            let mut answer = answer.await;
            current.end();
            if *is_stopping.borrow() && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let stream = WriteTimeout::new(stream, settings.idle_after);
    let stream = Guard::new(stream, Arc::clone(tunnel.is_open()), Arc::clone(&current));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIME.min(settings.idle_after))
        .max_buf_size(framing::MAX_HEAD)
        .max_headers(framing::MAX_FIELDS);
    let serving = builder.serve_connection(TokioIo::new(stream), answer).with_upgrades();
    let mut serving = pin!(serving);
    let is_stopping = tokio::select! {
        biased;
        // The peer caused an error of the connection, and knows about it.
        ended = serving.as_mut() => {
            if let (Err(error), Some(access)) = (ended, &connection.access) {
                access.log_malformed(&error);
            }
            false
        }
        _ = stopped.wait_for(|stopped| *stopped) => true,
    };
    if is_stopping && timeout(grace(&settings), serving.as_mut()).await.is_err() {
        // Answers the request in progress and accepts no further one.
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
    // The connection counts as open until its tunnel ends, also when the server stops.
    tunnel.ended().await;
}

/// Determines the protocol of a connection; `None` if the connection ends before that.
async fn begin(
    stream: Stream,
    settings: &Settings,
    stopped: &mut watch::Receiver<bool>,
) -> Option<(Stream, bool)> {
    let mut begun = pin!(preface::read(stream));
    let waiting = timeout(IDLE_TIME.min(settings.idle_after), begun.as_mut());
    let known = tokio::select! {
        biased;
        known = waiting => Some(known),
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    let known = match known {
        Some(known) => known,
        // Requests may be in transit, because the peer could connect while the listener was open.
        None => timeout(grace(settings), begun).await,
    };
    known.ok()?.ok()
}

/// How long an idle connection stays open once the server is stopping.
fn grace(settings: &Settings) -> Duration {
    STOP_GRACE.min(settings.drain / 2)
}

/// The forwarder behind limits, and the class header if the policy has one.
type LimitedForward = (RateLimit<Forward>, Option<ClassField>);

impl GatewayConnection<'_> {
    /// Answers a request, and logs it if there is an access log.
    async fn log(
        &self,
        request: Request<WireBody>,
    ) -> Response<Either<LoggedBody<LimitedBody>, LimitedBody>> {
        match &self.access {
            Some(access) => {
                let answer = access.observe(request, |request| self.answer(request)).await;
                answer.map(Either::Left)
            }
            None => self.answer(request).await.map(Either::Right),
        }
    }

    async fn answer(&self, request: Request<WireBody>) -> Limited {
        let (mut head, body) = request.into_parts();
        if let Err(refused) = head::check(&head, &self.gateway.drop_headers) {
            access::note(|notes| notes.reason = Some("refused"));
            return own(refused.into());
        }
        if !self.is_trusted {
            head::drop_claims(&mut head.headers, &self.gateway.drop_headers);
        }
        if let Some(peer) = self.peer {
            head.extensions.insert(peer);
        }
        let request = Request::from_parts(head, body);
        match self.limited() {
            Ok(Some((mut limited, class))) => {
                let answer = match class {
                    Some(class) => class.scope(async { limited.call(request).await }).await,
                    None => limited.call(request).await,
                };
                match answer {
                    Ok(answer) => answer.map(Either::Left),
                    Err(never) => match never {},
                }
            }
            Ok(None) => match self.forward.clone().call(request).await {
                Ok(answer) => own(answer),
                Err(never) => match never {},
            },
            // The daemon refuses such a policy before it comes into force.
            Err(_) => own(problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the policy does not tell which domain applies",
            )),
        }
    }

    /// The forwarder behind the limits of the policy, and the class header of the policy; `None` if the policy
    /// has no limits.
    fn limited(&self) -> Result<Option<LimitedForward>, UnclearDomain> {
        let policy = self.service.policy();
        let Some(domain) = self.gateway.domain_in(&policy)? else { return Ok(None) };
        let class = policy.domains().find(|it| it.name() == domain).and_then(ClassField::of);
        let mut limited = self.limited.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, limited)) = &*limited
            && **name == *domain
        {
            return Ok(Some((limited.clone(), class)));
        }
        let made = self.layer(domain).layer(self.forward.clone());
        *limited = Some((domain.into(), made.clone()));
        Ok(Some((made, class)))
    }

    fn layer(&self, domain: &str) -> RateLimitLayer {
        let service = self.service.clone();
        RateLimitLayer::policy(service.limiter().clone(), domain).observe(move |event| {
            service.count_event(event);
            access::note_event(event);
            if let Event::Class(class) = event {
                class::note(*class);
            }
        })
    }
}

fn own(answer: Answer) -> Limited {
    answer.map(Either::Right)
}

#[cfg(test)]
#[path = "gateway/slow_tests.rs"]
mod slow_tests;
