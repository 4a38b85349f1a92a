//! A router called without a network, as often as fits.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::routing::get;
use axum::{BoxError, Router};
use http::{HeaderMap, Request, StatusCode};
use tidegate::concurrency::ConcurrencyLimiter;
use tidegate::policy::{Merging, Policy, PolicyLimiter};
use tidegate_tower::{Answers, RateLimitLayer};
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::{Service, ServiceBuilder};
use tower_governor::GovernorLayer;
use tower_governor::errors::GovernorError;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;

use super::{
    BARE, FIELDS, KEY, NO_OP, PEER, PEER_FIELDS, PERMIT, PLAIN, POLICY, PROTECT, PROTECT_POLICY,
    Row, SHED, layer, rows,
};
use crate::Failure;
use crate::measure::thread_cpu;
use crate::options::Options;

pub fn measure(options: &Options) -> Result<Vec<Row>, Failure> {
    let rounds = options.rounds.unwrap_or(if options.quick { 3 } else { 41 });
    let repeats = if options.quick { 500 } else { 20_000 };
    let mut routers = routers()?;
    let mut measured = Vec::new();
    for _ in 0..rounds {
        let round = routers.iter_mut().map(|(_, router)| call(router, repeats));
        measured.push(round.collect::<Result<Vec<f64>, Failure>>()?);
    }
    let names: Vec<&'static str> = routers.iter().map(|(name, _)| *name).collect();
    Ok(rows(&names, NO_OP, &measured))
}

fn call(router: &mut Router, repeats: u32) -> Result<f64, Failure> {
    let mut context = Context::from_waker(Waker::noop());
    let (mut served, started) = (0, thread_cpu());
    for number in 0..repeats {
        let user = ["17", "18", "19", "20"][number as usize % 4];
        let request = Request::get("/").header(KEY, user).body(Body::empty())?;
        let mut response = std::pin::pin!(router.call(request));
        if let Poll::Ready(Ok(response)) = response.as_mut().poll(&mut context) {
            served += u32::from(response.status() == 200);
        }
    }
    let spent = thread_cpu() - started;
    match served == repeats {
        true => Ok(spent.as_nanos() as f64 / f64::from(repeats)),
        false => Err(format!("{served} of {repeats} requests were served").into()),
    }
}

fn routers() -> Result<Vec<(&'static str, Router)>, Failure> {
    let router = || Router::new().route("/", get(async || "served"));
    let plain = || layer(Answers::problem_json().on_denials_only());
    let permits = ConcurrencyLimiter::fixed(1_000).build();
    Ok(vec![
        (BARE, router()),
        (NO_OP, router().layer(tower::layer::layer_fn(NoOp))),
        (PLAIN, router().layer(plain()?)),
        (FIELDS, router().layer(layer(Answers::problem_json())?)),
        (PERMIT, router().layer(plain()?.concurrency(permits))),
        (POLICY, router().layer(RateLimitLayer::policy(policy(LIMITED)?, "api"))),
        (
            PROTECT,
            router().layer(RateLimitLayer::protect(ConcurrencyLimiter::fixed(1_000).build())),
        ),
        (PROTECT_POLICY, router().layer(RateLimitLayer::policy(policy(PROTECTED)?, "api"))),
        (SHED, {
            router().layer(
                ServiceBuilder::new()
                    .layer(HandleErrorLayer::new(async |_: BoxError| {
                        StatusCode::SERVICE_UNAVAILABLE
                    }))
                    .load_shed()
                    .layer(GlobalConcurrencyLimitLayer::new(1_000)),
            )
        }),
        (PEER, router().layer(GovernorLayer::new(peer().finish().ok_or("a configuration")?))),
        (PEER_FIELDS, {
            let config = peer().use_headers().finish().ok_or("a configuration")?;
            router().layer(GovernorLayer::new(Arc::new(config)))
        }),
    ])
}

/// A limit for each user.
const LIMITED: &str = "
domain: api
requests:
  rules:
    - {path: /, descriptors: [{entries: [{key: user, header: x-user}]}]}
descriptors:
  - {key: user, rate: 1000000/s, burst: 4000000000}
";

/// Nothing but a concurrency limiter.
const PROTECTED: &str = "
domain: api
protect: [{name: api, estimator: fixed, limit: 1000}]
requests:
  rules: [{path: /, protect: api, descriptors: []}]
descriptors: []
";

fn policy(file: &str) -> Result<PolicyLimiter<tidegate::store::memory::MemoryStore>, Failure> {
    let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
    Ok(PolicyLimiter::in_memory(loaded.policy.ok_or(loaded.findings)?)?)
}

/// A service that only passes requests on.
#[derive(Clone)]
struct NoOp<S>(S);

impl<S: Service<R>, R> Service<R> for NoOp<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> S::Future {
        self.0.call(request)
    }
}

/// The key of Tidegate's layer.
#[derive(Clone)]
pub struct ByUser;

impl KeyExtractor for ByUser {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        let headers: &HeaderMap = request.headers();
        let user = headers.get(KEY).and_then(|user| user.to_str().ok());
        user.map(str::to_owned).ok_or(GovernorError::UnableToExtractKey)
    }
}

fn peer() -> GovernorConfigBuilder<
    ByUser,
    governor::middleware::NoOpMiddleware<governor::clock::QuantaInstant>,
> {
    let mut builder = GovernorConfigBuilder::default();
    builder.per_nanosecond(1_000).burst_size(u32::MAX);
    builder.key_extractor(ByUser)
}
