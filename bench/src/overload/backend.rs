//! A backend: a separate process that serves HTTP on one thread, with or without a limiter in it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use axum::serve::ListenerExt as _;
use axum::{BoxError, Router};
use serde::{Deserialize, Serialize};
use tidegate::policy::{Merging, Policy, PolicyLimiter};
use tidegate::store::memory::MemoryStore;
use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower::limit::GlobalConcurrencyLimitLayer;

use super::spec::CLASSES;
use super::work::{Kind, Times, Work};
use crate::Failure;

/// The first argument of the process.
pub const COMMAND: &str = "overload-backend";

/// The limit of `tower::limit::ConcurrencyLimit`.
const TOWER_LIMIT: usize = 32;

/// A send buffer that holds less than a large response.
const SMALL_BUFFER: usize = 8 * 1_024;

/// A backend, as the second argument of its process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    pub kind: Kind,
    pub times: Times,
    pub mean_us: u64,
    pub workers: usize,
    pub seed: u64,
    /// Length of a response body.
    pub body: usize,
    pub limiter: Inside,
}

/// The limiter in a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inside {
    None,
    /// tower's `ConcurrencyLimit` and `LoadShed`.
    Tower,
    /// Tidegate's layer, with this as an entry of `protect`.
    Tidegate(String),
}

impl Setup {
    pub fn of(kind: Kind) -> Self {
        Self {
            kind,
            times: if kind == Kind::Cpu { Times::Constant } else { Times::Exponential },
            mean_us: u64::try_from(kind.mean().as_micros()).unwrap_or(u64::MAX),
            workers: kind.workers(),
            seed: 1,
            body: 2,
            limiter: Inside::None,
        }
    }

    /// The cell that measures its peak.
    pub fn peak_name(&self) -> String {
        let Self { kind, times, mean_us, workers, .. } = self;
        format!("peak-{}{workers}-{times:?}-{mean_us}us", kind.letter())
    }

    pub fn with(self, limiter: Inside) -> Self {
        Self { limiter, ..self }
    }
}

/// Four classes by path, and one concurrency limiter for all of them.
pub fn policy(protect: &str) -> String {
    let rule = |class| format!("    - {{path: /{class}, class: {class}, descriptors: []}}\n");
    policy_of(protect, &CLASSES.map(rule).concat())
}

/// Four classes by path, each with the name of its concurrency limiter.
pub fn policy_by_class(protect: &str, names: [&str; CLASSES.len()]) -> String {
    let rule = |(class, name)| {
        format!("    - {{path: /{class}, class: {class}, protect: {name}, descriptors: []}}\n")
    };
    policy_of(protect, &CLASSES.into_iter().zip(names).map(rule).collect::<String>())
}

fn policy_of(protect: &str, rules: &str) -> String {
    format!(
        "domain: api
classes:
  - {{name: critical}}
  - {{name: write}}
  - {{name: read, default: true}}
  - {{name: test}}
protect:
  - {protect}
requests:
  rules:
{rules}descriptors: []
"
    )
}

/// `protect` with default settings.
pub const PROTECT: &str = "{name: api}";

type Limiter = PolicyLimiter<MemoryStore>;

struct Shared {
    work: Work,
    body: usize,
    limiter: Option<Limiter>,
}

/// The process: `[setup, port]`.
pub fn serve(arguments: &[String]) -> Result<(), Failure> {
    let [setup, port] = arguments else { return Err("a setup and a port are needed".into()) };
    let setup: Setup = serde_json::from_str(setup)?;
    let port: u16 = port.parse()?;
    let limiter = match &setup.limiter {
        Inside::Tidegate(protect) => {
            let loaded = Policy::load(&[("policy.yaml", &policy(protect))], Merging::Refuse);
            Some(PolicyLimiter::in_memory(loaded.policy.ok_or(loaded.findings)?)?)
        }
        Inside::None | Inside::Tower => None,
    };
    let mean = Duration::from_micros(setup.mean_us);
    let work = Work::start(setup.kind, setup.times, mean, setup.workers, setup.seed);
    let shared = Arc::new(Shared { work, body: setup.body, limiter: limiter.clone() });
    let router = layered(&setup.limiter, limiter)
        .route("/limit", get(limit))
        .route("/set/{what}/{value}", get(set))
        .with_state(shared);
    // A thread for each request that burns processor time: the kernel shares the core among them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(super::load::MOST_CONNECTIONS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let is_large = setup.body > SMALL_BUFFER;
        let listener = listener.tap_io(move |stream| {
            let _ = stream.set_nodelay(true);
            if is_large {
                // A small buffer, so that the unread part of a response stays in the server.
                let _ = rustix::net::sockopt::set_socket_send_buffer_size(stream, SMALL_BUFFER);
            }
        });
        axum::serve(listener, router).await
    })?;
    Ok(())
}

/// The route that works, behind its limiter.
fn layered(inside: &Inside, limiter: Option<Limiter>) -> Router<Arc<Shared>> {
    let router = Router::new().route("/{class}", get(work));
    match (inside, limiter) {
        (Inside::Tower, _) => router.layer(
            ServiceBuilder::new()
                .layer(HandleErrorLayer::new(async |_: BoxError| StatusCode::SERVICE_UNAVAILABLE))
                .load_shed()
                .layer(GlobalConcurrencyLimitLayer::new(TOWER_LIMIT)),
        ),
        (_, Some(limiter)) => router.layer(RateLimitLayer::policy(limiter, "api")),
        (_, None) => router,
    }
}

async fn work(State(shared): State<Arc<Shared>>) -> Result<Response, Infallible> {
    let length = shared.body;
    // The work continues when the client gives up, because workers do not notice.
    let _ = tokio::spawn(async move { shared.work.serve().await }).await;
    Ok(Response::new(Body::from(vec![b'x'; length])))
}

/// The limit at the moment.
async fn limit(State(shared): State<Arc<Shared>>) -> String {
    let stats = shared.limiter.as_ref().map(Limiter::protection_stats);
    let first = stats.as_ref().and_then(|stats| stats.first());
    first.map_or_else(String::new, |(_, _, stats)| stats.limit.to_string())
}

async fn set(State(shared): State<Arc<Shared>>, Path((what, value)): Path<(String, u32)>) {
    match what.as_str() {
        "workers" => shared.work.set_workers(value as usize),
        _ => shared.work.set_slowness(value),
    }
}
