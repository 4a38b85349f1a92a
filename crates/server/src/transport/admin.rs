//! The admin API: metrics, status, and changes at run time.
//!
//! ```text
//!   reading: status.rs, metrics.rs      changing: change.rs      access control: access.rs
//! ```
//!
//! # Bounds
//! A body has at most [`MAX_BODY`] bytes, a head at most [`MAX_HEAD`]; both must arrive within
//! [`TIME`].

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

/// The most bytes of a head, approximately.
const MAX_HEAD: usize = 16 << 10;

/// How long a head or a body may take to arrive.
const TIME: Duration = Duration::from_secs(30);

/// `Retry-After` in seconds of a call that failed because of the store.
const STORE_RETRY: u64 = 1;

/// A response whose body is in memory.
type Reply = Response<Full<Bytes>>;

/// The paths that a listener serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// All paths.
    All,
    /// `/metrics` only.
    Metrics,
}

/// The parts that answers are built from.
struct AdminContext {
    service: RateLimitService,
    settings: Arc<Settings>,
    access: Access,
    /// The address of the client, for the audit log.
    client: String,
}

/// Serves a connection until the peer closes it or the server is stopping.
pub(crate) async fn converse(stream: Stream, context: ConnContext, access: Access) {
    let ConnContext { service, settings, mut stopped, .. } = context;
    let client = stream.peer().map_or_else(|| "unix socket".into(), |peer| peer.to_string());
    let context = AdminContext { service, settings, access, client };
    let service = service_fn(|request| {
        let context = &context;
        async move { Ok::<_, Infallible>(context.answer(request).await) }
    });
    let head_time = TIME.min(context.settings.idle_after);
    let bounds = Bounds { head: MAX_HEAD, head_time, taking: TIME, stop_grace: Duration::ZERO };
    http::serve(stream, &bounds, service, &mut stopped).await;
}

/// The paths, with a description of each.
const PATHS: [(&str, &str); 17] = [
    ("/metrics", "metrics in the Prometheus format"),
    ("/stats", "counters in the format of envoyproxy/ratelimit"),
    ("/rlconfig", "all limits of the policy, in the format of envoyproxy/ratelimit"),
    ("/healthz", "liveness"),
    (
        "/readyz",
        "readiness: a policy is loaded, the store is usable, and the server is not stopping",
    ),
    ("/v1/status", "status of the daemon and its store, with pending debits"),
    (
        "/v1/nodes",
        "the live nodes that share the store, with their policy revisions, and the count in use",
    ),
    ("/v1/policy", "the policy in force, and what overrides it"),
    ("/v1/hot-keys", "the keys with the most requests and the most denials"),
    ("/v1/reset", "POST: resets a key, or the keys of descriptors"),
    ("/v1/overrides", "PUT, DELETE: temporary overrides of limits"),
    ("/v1/kill-switch", "PUT, DELETE: limits in shadow mode"),
    ("/v1/blocks", "PUT, DELETE: blocks a key under limits with block_for, or lifts its block"),
    (
        "/v1/local-overrides",
        "PUT, DELETE: keys that this node decides locally, by its share of the limit",
    ),
    (
        "/v1/drill",
        "PUT, DELETE: an outage drill, for which the store counts as unavailable for some seconds",
    ),
    ("/v1/log-level", "PUT: the log level"),
    ("/debug/pprof/", "not available: this is not a Go program; use perf or a debugger"),
];

/// Paths for probes and scrapers, which may use any `Host`; they show no keys and no client
/// addresses.
const PUBLIC: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// Paths whose answers contain keys.
const NAME_KEYS: [&str; 2] = ["/v1/hot-keys", "/v1/local-overrides"];

impl AdminContext {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let path = head.uri.path();
        if self.access == Access::Metrics && path != "/metrics" {
            return refusal(StatusCode::NOT_FOUND, "not found; this listener serves /metrics only");
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
            Ok(()) if is_read => self.read(path).await,
            Ok(()) => self.change(&caller, body).await,
        }
    }

    async fn read(&self, path: &str) -> Reply {
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
            "/v1/local-overrides" => document(&status::local_overrides(service)),
            "/v1/drill" => document(&status::drill(service)),
            "/v1/log-level" => document(&json!({ "level": service.status().log().level().name() })),
            "/v1/reset" => other_method("POST"),
            "/v1/blocks" => other_method("PUT, DELETE"),
            _ if path.starts_with("/debug/pprof") => {
                let why = "there are no pprof endpoints: this is not a Go program; use perf or a \
                           debugger on the process";
                refusal(StatusCode::NOT_FOUND, why)
            }
            _ => refusal(StatusCode::NOT_FOUND, "not found; / lists all paths"),
        }
    }

    async fn change(&self, caller: &Caller<'_>, body: Incoming) -> Reply {
        let head = caller.head;
        let allowed = match head.uri.path() {
            "/v1/reset" => &["POST"][..],
            "/v1/overrides"
            | "/v1/kill-switch"
            | "/v1/blocks"
            | "/v1/local-overrides"
            | "/v1/drill" => &["PUT", "DELETE"],
            "/v1/log-level" => &["PUT"],
            path if PATHS.iter().any(|(known, _)| *known == path) || path == "/" => {
                return other_method("GET");
            }
            _ => return refusal(StatusCode::NOT_FOUND, "not found; / lists all paths"),
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
            Ok(outcome) => document(&outcome),
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
    let mut reply = refusal(StatusCode::METHOD_NOT_ALLOWED, &format!("use {allowed}"));
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
    // Keeps browsers from interpreting a key as a page.
    let guard = HeaderValue::from_static("nosniff");
    reply.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, guard);
    reply
}

/// Runs a change from a fuzzer: checks that it needs the token and that it is logged.
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
    // Parses the body whether or not the call is refused.
    match change::carry_out(service, "fuzzer", head, body).await {
        Ok(outcome) => assert!(outcome.is_object(), "{outcome}"),
        Err(change::Refused::Wrong(why)) => assert!(!why.is_empty(), "a refusal says why"),
        Err(change::Refused::Store(error)) => panic!("memory refuses nothing: {error}"),
    }
    let documents = [status::policy, status::overrides, status::switches, status::local_overrides];
    for document in documents.map(|document| document(service)) {
        assert!(document.is_object(), "{document}");
    }
}
