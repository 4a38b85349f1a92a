//! What there is to ask for, and by which methods.

use hyper::Method;

use super::check_request::Action;

/// One of the things to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// One question.
    Ask(Action),
    /// Several.
    Batch,
    /// About the request that a proxy holds.
    Auth,
    /// Whether anybody is there.
    Health,
    /// What there is to ask for, for programs.
    OpenApi,
    /// A question as envoyproxy/ratelimit reads it.
    Json,
    /// Whether it is worth asking, as envoyproxy/ratelimit says it.
    HealthCheck,
}

impl Route {
    pub(crate) const PATHS: [&str; 11] = [
        "/v1/check",
        "/v1/peek",
        "/v1/refund",
        "/v1/reset",
        "/v1/explain",
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
            "/v1/batch" => Self::Batch,
            "/v1/auth" => Self::Auth,
            "/healthz" => Self::Health,
            "/openapi.json" => Self::OpenApi,
            "/json" => Self::Json,
            "/healthcheck" => Self::HealthCheck,
            // What follows is the domain, and the path of the request that is asked about.
            _ if path.starts_with("/v1/auth/") => Self::Auth,
            _ => return None,
        })
    }

    /// Whether it can be asked for so.
    pub(crate) fn takes(self, method: &Method) -> bool {
        match self.allow() {
            None => true,
            Some("POST") => method == Method::POST,
            Some(_) => method == Method::GET || method == Method::HEAD,
        }
    }

    /// The methods that it takes; `None` if it takes all.
    pub(crate) const fn allow(self) -> Option<&'static str> {
        match self {
            Self::Ask(_) | Self::Batch => Some("POST"),
            // Some proxies ask with the method of the request that they ask about.
            Self::Auth | Self::Json | Self::HealthCheck => None,
            Self::Health | Self::OpenApi => Some("GET, HEAD"),
        }
    }
}
