//! For those who run the daemon: what it has counted, whether it is well, and changes in a hurry.
//!
//! ```text
//!   reading: status.rs, metrics.rs      changing: change.rs      which calls are answered: access.rs
//! ```
//!
//! # Bounds
//! A body has at most [`MAX_BODY`] bytes, a head at most [`MAX_HEAD`]; both have to come in time.

mod audit;
mod change;
mod status;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::Stream;
use super::access::{Caller, Denied};
use super::http::{self, Bounds};
use crate::observability::metrics;
use crate::runtime::worker::ConnContext;
use crate::service::RateLimitService;
use crate::settings::Settings;

pub(crate) use self::status::reason;

/// The most bytes of a body.
const MAX_BODY: usize = 16 << 10;

/// The most bytes of a head, give or take what is read at once.
const MAX_HEAD: usize = 16 << 10;

/// How long a head or a body may take to come.
const TIME: Duration = Duration::from_secs(30);

/// How long to wait before a call that failed because of the store is made again, in seconds.
const STORE_RETRY: u64 = 1;

/// Everything here is built in one piece.
type Reply = Response<Full<Bytes>>;

/// What may be asked on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everything.
    WholeNumber,
    /// `/metrics` and nothing else.
    Metrics,
}

/// What an answer is made from.
struct Office {
    service: RateLimitService,
    settings: Arc<Settings>,
    access: Access,
    /// The address of the client, for the audit log.
    client: String,
}

/// Answers until the peer has had enough or the server stops.
pub(crate) async fn converse(stream: Stream, context: ConnContext, access: Access) {
    let ConnContext { service, settings, mut stopped, .. } = context;
    let client = stream.peer().map_or_else(|| "unix socket".into(), |peer| peer.to_string());
    let office = Office { service, settings, access, client };
    let service = service_fn(|request| {
        let office = &office;
        async move { Ok::<_, Infallible>(office.answer(request).await) }
    });
    let head_time = TIME.min(office.settings.idle_after);
    let bounds = Bounds { head: MAX_HEAD, head_time, taking: TIME, stop_grace: Duration::ZERO };
    http::serve(stream, &bounds, service, &mut stopped).await;
}

/// What can be asked, and what for.
const PATHS: [(&str, &str); 15] = [
    ("/metrics", "what was counted, for Prometheus"),
    ("/stats", "what was counted, as envoyproxy/ratelimit tells it"),
    ("/rlconfig", "every limit of the policy, as envoyproxy/ratelimit tells it"),
    ("/healthz", "whether the process lives"),
    (
        "/readyz",
        "whether it is ready: a policy, a store that does not refuse, and not about to end",
    ),
    ("/v1/status", "how it is, whether its store answers, and what is owed there"),
    (
        "/v1/nodes",
        "the live nodes that share the store, with their policy revisions, and the count in use",
    ),
    ("/v1/policy", "which policy is in force, and what overrules it"),
    ("/v1/hot-keys", "which keys come most, and which are denied most"),
    ("/v1/reset", "POST: lets a key, or whoever descriptors are about, start afresh"),
    ("/v1/overrides", "PUT, DELETE: other numbers for a limit, for a while"),
    ("/v1/kill-switch", "PUT, DELETE: limits that are decided and hold nobody back"),
    ("/v1/demotions", "PUT, DELETE: a key that this node decides by itself, by its share"),
    ("/v1/log-level", "PUT: how much is logged"),
    ("/debug/pprof/", "not here: this is no Go program; use perf or a debugger"),
];

/// Paths for probes and scrapers, which use any name: no key and no address of a client is shown there.
const PUBLIC: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// Paths that name keys when they are read.
const NAME_KEYS: [&str; 2] = ["/v1/hot-keys", "/v1/demotions"];

impl Office {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if self.access == Access::Metrics && path != "/metrics" {
            return refusal(StatusCode::NOT_FOUND, "there is nothing but /metrics here");
        }
        let is_read = head.method == Method::GET || head.method == Method::HEAD;
        let caller = Caller { head: &head, settings: &self.settings };
        let checked = match PUBLIC.contains(&path) {
            true => Ok(()),
            false => caller.may_use_admin(),
        };
        let names_keys = is_read && NAME_KEYS.contains(&path);
        let checked =
            checked.and_then(|()| if names_keys { caller.may_use_keys() } else { Ok(()) });
        match checked {
            Err(denied) => denial(denied),
            Ok(()) if is_read => self.tell(path).await,
            Ok(()) => self.change(&caller, body).await,
        }
    }

    async fn tell(&self, path: &str) -> Reply {
        let service = &self.service;
        match path {
            "/" => plain(StatusCode::OK, &paths()),
            "/metrics" => {
                let text = metrics::text(service, self.settings.envoy_metrics);
                let mut reply = plain(StatusCode::OK, &text);
                let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
                reply.headers_mut().insert(header::CONTENT_TYPE, kind);
                reply
            }
            "/stats" => plain(StatusCode::OK, &metrics::stats(service)),
            "/rlconfig" => plain(StatusCode::OK, &metrics::rules(service)),
            "/healthz" => plain(StatusCode::OK, "ok\n"),
            "/readyz" => match status::reason(service).await {
                None if service.is_degraded() => {
                    plain(StatusCode::OK, "ready, but the store is unavailable: see /v1/status\n")
                }
                None => plain(StatusCode::OK, "ready\n"),
                Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n")),
            },
            "/v1/status" => document(&status::status(service).await),
            "/v1/nodes" => document(&status::nodes(service)),
            "/v1/policy" => document(&status::policy(service)),
            "/v1/hot-keys" => document(&status::hot_keys(service)),
            "/v1/overrides" => document(&status::overrides(service)),
            "/v1/kill-switch" => document(&status::switches(service)),
            "/v1/demotions" => document(&status::demotions(service)),
            "/v1/log-level" => document(&json!({ "level": service.status().log().level().name() })),
            "/v1/reset" => other_method("POST"),
            _ if path.starts_with("/debug/pprof") => {
                let why = "there are no pprof endpoints: this is no Go program; use perf or a \
                           debugger on the process";
                refusal(StatusCode::NOT_FOUND, why)
            }
            _ => refusal(StatusCode::NOT_FOUND, "nothing is here; / lists what is"),
        }
    }

    async fn change(&self, caller: &Caller<'_>, body: Incoming) -> Reply {
        let head = caller.head;
        let allowed = match head.uri.path() {
            "/v1/reset" => &["POST"][..],
            "/v1/overrides" | "/v1/kill-switch" | "/v1/demotions" => &["PUT", "DELETE"],
            "/v1/log-level" => &["PUT"],
            path if PATHS.iter().any(|(known, _)| *known == path) || path == "/" => {
                return other_method("GET");
            }
            _ => return refusal(StatusCode::NOT_FOUND, "nothing is here; / lists what is"),
        };
        if !allowed.contains(&head.method.as_str()) {
            return other_method(&allowed.join(", "));
        }
        if let Err(denied) = caller.may_use_keys() {
            return denial(denied);
        }
        let Ok(Ok(body)) = timeout(TIME, Limited::new(body, MAX_BODY).collect()).await else {
            let why = format!("a body has at most {MAX_BODY} bytes and comes within 30 s");
            return refusal(StatusCode::BAD_REQUEST, &why);
        };
        match change::carry_out(&self.service, &self.client, head, &body.to_bytes()).await {
            Ok(told) => document(&told),
            Err(change::Refused::Wrong(why)) => refusal(StatusCode::BAD_REQUEST, &why),
            Err(change::Refused::Store(error)) => {
                let mut reply = refusal(StatusCode::SERVICE_UNAVAILABLE, &error.to_string());
                reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(STORE_RETRY));
                reply
            }
        }
    }
}

fn paths() -> String {
    PATHS.iter().map(|(path, about)| format!("{path}: {about}\n")).collect()
}

fn other_method(allowed: &str) -> Reply {
    let mut reply = refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("ask with {allowed}"));
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        reply.headers_mut().insert(header::ALLOW, allowed);
    }
    reply
}

fn document(value: &Value) -> Reply {
    typed(StatusCode::OK, &format!("{value}\n"), "application/json")
}

fn refusal(status: StatusCode, why: &str) -> Reply {
    typed(status, &format!("{}\n", json!({ "error": why })), "application/json")
}

fn denial(denied: Denied) -> Reply {
    let mut reply = refusal(denied.status, denied.why);
    if denied.status == StatusCode::UNAUTHORIZED {
        let scheme = HeaderValue::from_static("Bearer");
        reply.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    }
    reply
}

fn plain(status: StatusCode, text: &str) -> Reply {
    typed(status, text, "text/plain; charset=utf-8")
}

fn typed(status: StatusCode, text: &str, kind: &'static str) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // Whatever a key says, no browser takes it for a page.
    let guard = HeaderValue::from_static("nosniff");
    reply.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, guard);
    reply
}

/// A change, from a fuzzer: nobody is let in without the token, and what is carried out is told.
#[cfg(feature = "fuzzing")]
pub(crate) async fn try_change(
    service: &RateLimitService,
    head: &hyper::http::request::Parts,
    body: &[u8],
) {
    let settings = Settings { token: Some("s3cret".into()), ..Settings::default() };
    if (Caller { head, settings: &settings }).may_use_keys().is_ok() {
        let shown = head.headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        assert!(shown.is_some_and(|shown| shown.ends_with(b"s3cret")), "{shown:?}");
    }
    // Refused or not: what it says is read.
    match change::carry_out(service, "fuzzer", head, body).await {
        Ok(told) => assert!(told.is_object(), "{told}"),
        Err(change::Refused::Wrong(why)) => assert!(!why.is_empty(), "a refusal says why"),
        Err(change::Refused::Store(error)) => panic!("memory refuses nothing: {error}"),
    }
    let told = [status::policy, status::overrides, status::switches, status::demotions];
    for told in told.map(|told| told(service)) {
        assert!(told.is_object(), "{told}");
    }
}
