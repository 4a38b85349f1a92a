//! Settings of a server.

mod answers;
mod edge;
mod gateway;
mod listen;
mod route;
mod upstream;

use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use crate::observability::log::Level;
use crate::runtime::server::ServeError;

pub use self::answers::{Answers, Body, EnvoyHeaders, ProxyHeaders};
pub use self::edge::{AccessFormat, AddressLimits, Edge};
pub use self::gateway::{
    Gateway, HeaderNames, InvalidHeaderNames, InvalidPeers, Peers, UnclearDomain,
};
pub use self::listen::{Address, Listen, TlsFiles};
pub use self::route::{InvalidRoute, Route};
pub use self::upstream::{
    HealthCheck, InvalidUpstream, MAX_ADDRESSES, Scheme, Upstream, UpstreamAddress, UpstreamTls,
};

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The listener for the Redis protocol; none if `None`.
    pub resp: Option<Listen>,
    /// The listener for HTTP.
    pub http: Option<Listen>,
    /// The listener for gRPC.
    pub grpc: Option<Listen>,
    /// The listener of the gateway.
    pub proxy: Option<Listen>,
    /// The upstreams of the gateway; needed with `proxy`.
    pub gateway: Option<Gateway>,
    /// The listener for the admin API.
    pub admin: Option<Listen>,
    /// A public listener for metrics only.
    pub metrics: Option<Listen>,
    /// The token for admin calls that name or change keys. Without one, such calls are answered
    /// only on loopback and on a Unix socket.
    pub token: Option<String>,
    /// Names that clients may use for the admin listener in `Host`, besides its addresses and
    /// `localhost`. Empty: a listener beyond loopback accepts every name.
    pub hosts: Vec<String>,
    /// How the admin API shows values of keys.
    pub key_values: KeyValues,
    /// The token for HTTP calls that return units. Without one, such calls are answered only on
    /// loopback and on a Unix socket.
    pub http_token: Option<String>,
    /// Whether metrics are exported under the names of envoyproxy/ratelimit as well.
    pub envoy_metrics: bool,
    /// The password of the Redis protocol; none if `None`.
    pub password: Option<String>,
    /// Whether the RESP listener may be bound beyond loopback for clients without a password or
    /// certificate. Such clients cannot return units or reset keys.
    pub allow_unauthenticated: bool,
    /// Content of answers besides the verdict.
    pub answers: Answers,
    /// Number of worker threads.
    pub threads: NonZeroUsize,
    /// The most connections of each listener, as far as file descriptors allow. Further connections
    /// are closed at once.
    pub max_connections: usize,
    /// How long a connection may be idle. It is closed after at most twice this time.
    pub idle_after: Duration,
    /// The same for a connection with an incomplete request or an unread answer.
    pub stuck_after: Duration,
    /// The approximate age at which a gRPC connection is asked to end, so that clients rebalance.
    pub max_age: Duration,
    /// How long a gRPC connection may take to end then.
    pub max_age_grace: Duration,
    /// How long connections may take to finish once the server is stopping.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resp: None,
            http: None,
            grpc: None,
            proxy: None,
            gateway: None,
            admin: None,
            metrics: None,
            token: None,
            hosts: Vec::new(),
            key_values: KeyValues::default(),
            http_token: None,
            envoy_metrics: false,
            password: None,
            allow_unauthenticated: false,
            answers: Answers::default(),
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
            max_connections: 16_384,
            idle_after: Duration::from_secs(300),
            stuck_after: Duration::from_secs(10),
            max_age: Duration::from_secs(24 * 3_600),
            max_age_grace: Duration::from_secs(3_600),
            drain: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Checks that no listener is open to other machines without the credentials it needs.
    /// [`serve`](crate::serve) does the same.
    pub fn check(&self) -> Result<(), ServeError> {
        match &self.resp {
            Some(listen) if self.is_resp_open() && !self.allow_unauthenticated => {
                Err(ServeError::Unauthenticated(listen.address.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Listeners with restricted calls or without credentials, as log messages with the setting to
    /// change.
    pub(crate) fn exposures(&self) -> Vec<(Level, String)> {
        let mut exposures = Vec::new();
        let open = |listen: &Option<Listen>| {
            let listen = listen.as_ref().filter(|listen| !listen.is_local());
            listen.map(|listen| listen.address.clone())
        };
        if let Some(address) = open(&self.resp).filter(|_| self.is_resp_open()) {
            let text = format!(
                "RESP on {address} accepts clients of other machines without a password; commands \
                 that return units or reset keys are refused there: set listen.resp.password_file"
            );
            exposures.push((Level::Warn, text));
        }
        if let Some(address) = open(&self.admin).filter(|_| self.token.is_none()) {
            let text = format!(
                "admin on {address} has no token: calls that name or change keys answer 403; set \
                 listen.admin.token_file"
            );
            exposures.push((Level::Info, text));
        }
        if let Some(address) = open(&self.http).filter(|_| self.http_token.is_none()) {
            let text = format!(
                "HTTP on {address} has no token: calls that return units answer 403; set \
                 listen.http.token_file"
            );
            exposures.push((Level::Info, text));
        }
        let requires_none = self.grpc.as_ref().is_none_or(|listen| !listen.requires_certificates());
        if let Some(address) = open(&self.grpc).filter(|_| requires_none) {
            let text = format!(
                "gRPC on {address} accepts clients of other machines without a certificate, also \
                 calls that return units (is_negative_hits): set listen.grpc.tls.client_ca"
            );
            exposures.push((Level::Info, text));
        }
        exposures
    }

    /// Whether clients of the Redis protocol on other machines need no credentials.
    pub(crate) fn is_resp_open(&self) -> bool {
        let is_open = |listen: &Listen| !listen.is_local() && !listen.requires_certificates();
        self.password.is_none() && self.resp.as_ref().is_some_and(is_open)
    }
}

/// How the admin API shows values of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyValues {
    /// Unchanged.
    #[default]
    Plain,
    /// The first characters of each value: at most four, and at most half of them.
    Short,
    /// The first 16 hexadecimal digits of the SHA-256 of each value.
    Hash,
}
