//! The routes of the HTTP listener and their methods.

use hyper::Method;

use super::check_request::Action;
use super::lease_request::LeaseAction;

/// A route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// One request.
    Ask(Action),
    /// Places of a request in in-flight limits.
    Lease(LeaseAction),
    /// Limits of a request that are settled after its response.
    Settle,
    /// Several requests.
    Batch,
    /// A request that a proxy forwards.
    Auth,
    /// Liveness.
    Health,
    /// The OpenAPI document.
    OpenApi,
    /// A request in the form of envoyproxy/ratelimit.
    Json,
    /// Readiness in the form of envoyproxy/ratelimit.
    HealthCheck,
}

impl Route {
    pub(crate) const PATHS: [&str; 15] = [
        "/v1/check",
        "/v1/peek",
        "/v1/refund",
        "/v1/reset",
        "/v1/explain",
        "/v1/acquire",
        "/v1/release",
        "/v1/renew",
        "/v1/settle",
        "/v1/batch",
        "/v1/auth",
        "/healthz",
        "/openapi.json",
        "/json",
        "/healthcheck",
    ];

    pub(crate) fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/check" => Self::Ask(Action::Check),
            "/v1/peek" => Self::Ask(Action::Peek),
            "/v1/refund" => Self::Ask(Action::Refund),
            "/v1/reset" => Self::Ask(Action::Reset),
            "/v1/explain" => Self::Ask(Action::Explain),
            "/v1/acquire" => Self::Ask(Action::Acquire),
            "/v1/release" => Self::Lease(LeaseAction::Release),
            "/v1/renew" => Self::Lease(LeaseAction::Renew),
            "/v1/settle" => Self::Settle,
            "/v1/batch" => Self::Batch,
            "/v1/auth" => Self::Auth,
            "/healthz" => Self::Health,
            "/openapi.json" => Self::OpenApi,
            "/json" => Self::Json,
            "/healthcheck" => Self::HealthCheck,
            // The rest is the domain and the path of the forwarded request.
            _ if path.starts_with("/v1/auth/") => Self::Auth,
            _ => return None,
        })
    }

    /// Whether the route accepts this method.
    pub(crate) fn takes(self, method: &Method) -> bool {
        match self.allow() {
            None => true,
            Some("POST") => method == Method::POST,
            Some(_) => method == Method::GET || method == Method::HEAD,
        }
    }

    /// The methods that the route accepts; `None` if all.
    pub(crate) const fn allow(self) -> Option<&'static str> {
        match self {
            Self::Ask(_) | Self::Lease(_) | Self::Settle | Self::Batch => Some("POST"),
            // Some proxies use the method of the request that they forward.
            Self::Auth | Self::Json | Self::HealthCheck => None,
            Self::Health | Self::OpenApi => Some("GET, HEAD"),
        }
    }
}
