//! Settings for the content of answers.

/// Content of answers besides the verdict.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Whether to add `X-RateLimit-*` to the fields of the IETF draft.
    pub x_rate_limit: bool,
    /// The body of a denial. `None`: problem details over HTTP; over gRPC and at `/json`, the proxy's own.
    pub body: Option<Body>,
    /// Headers that the proxy adds to its clients' answers, for gRPC.
    pub proxy_headers: ProxyHeaders,
    /// Whether to send dynamic metadata as envoyproxy/ratelimit does, in gRPC.
    pub dynamic_metadata: bool,
}

/// The body of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// The same document as for an allowed request.
    Json,
    /// `application/problem+json`: that document with the members of RFC 9457.
    #[default]
    Problem,
    /// No body.
    Empty,
}

/// Headers that a proxy adds to its clients' answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyHeaders {
    /// The headers of the HTTP listener.
    #[default]
    Standard,
    /// The three headers of envoyproxy/ratelimit.
    Envoy(EnvoyHeaders),
    /// None, the default of envoyproxy/ratelimit.
    None,
}

/// The header names of envoyproxy/ratelimit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyHeaders {
    /// The header for the limit.
    pub limit: String,
    /// The header for the remaining units.
    pub remaining: String,
    /// The header for the seconds until the reset.
    pub reset: String,
}

impl Default for EnvoyHeaders {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        }
    }
}
