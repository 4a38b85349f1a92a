//! What a server is told at its start.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::observability::log::Level;
use crate::runtime::server::ServeError;

/// What a server is told at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to speak the Redis protocol; nowhere if `None`.
    pub resp: Option<Listen>,
    /// Where to speak HTTP.
    pub http: Option<Listen>,
    /// Where to speak gRPC.
    pub grpc: Option<Listen>,
    /// Where to answer those who run the daemon.
    pub admin: Option<Listen>,
    /// Where everybody may read metrics, and nothing else.
    pub metrics: Option<Listen>,
    /// The token for calls on the admin port that name or change keys. Without one, such calls are
    /// answered only on loopback and on a Unix socket.
    pub token: Option<String>,
    /// Names that clients may use for the admin port in `Host`, beside its addresses and `localhost`.
    /// If there are none, a port beyond loopback answers to every name.
    pub hosts: Vec<String>,
    /// How the admin port shows values of keys.
    pub key_values: KeyValues,
    /// The token for calls on the HTTP port that return units. Without one, such calls are answered
    /// only on loopback and on a Unix socket.
    pub http_token: Option<String>,
    /// Whether metrics have the names of envoyproxy/ratelimit as well.
    pub envoy_metrics: bool,
    /// What clients of the Redis protocol have to say first; nothing if `None`.
    pub password: Option<String>,
    /// Whether the Redis protocol may be spoken beyond loopback with clients that show neither a
    /// password nor a certificate. They cannot return units or reset keys.
    pub allow_unauthenticated: bool,
    /// What answers tell beyond the verdict.
    pub answers: Answers,
    /// How many threads answer.
    pub threads: NonZeroUsize,
    /// How many connections each listener holds, as far as there are file descriptors. One more is
    /// closed as soon as it is opened.
    pub max_connections: usize,
    /// A connection that has asked nothing for this long is closed, at the latest after twice the
    /// time.
    pub idle_after: Duration,
    /// The same for one that has begun a request and does not complete it, or that does not take
    /// its answer.
    pub stuck_after: Duration,
    /// A connection of gRPC is asked to end after about so long, so that clients spread anew.
    pub max_age: Duration,
    /// How long it may take to do so.
    pub max_age_grace: Duration,
    /// How long connections may take to finish once the server stops.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            resp: None,
            http: None,
            grpc: None,
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
    /// Checks that no listener is open to other machines without the credentials that it needs.
    /// [`serve`](crate::serve) does so, too.
    pub fn check(&self) -> Result<(), ServeError> {
        match &self.resp {
            Some(listen) if self.is_resp_open() && !self.allow_unauthenticated => {
                Err(ServeError::Unauthenticated(listen.address.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Which calls are answered less freely than on loopback, in words, and how to change it.
    pub(crate) fn exposures(&self) -> Vec<(Level, String)> {
        let mut told = Vec::new();
        let open = |listen: &Option<Listen>| {
            let listen = listen.as_ref().filter(|listen| !listen.is_local());
            listen.map(|listen| listen.address.clone())
        };
        if let Some(address) = open(&self.resp).filter(|_| self.is_resp_open()) {
            let text = format!(
                "RESP on {address} accepts clients of other machines without a password; commands \
                 that return units or reset keys are refused there: set listen.resp.password_file"
            );
            told.push((Level::Warn, text));
        }
        if let Some(address) = open(&self.admin).filter(|_| self.token.is_none()) {
            let text = format!(
                "admin on {address} has no token: calls that name or change keys answer 403; set \
                 listen.admin.token_file"
            );
            told.push((Level::Info, text));
        }
        if let Some(address) = open(&self.http).filter(|_| self.http_token.is_none()) {
            let text = format!(
                "HTTP on {address} has no token: calls that return units answer 403; set \
                 listen.http.token_file"
            );
            told.push((Level::Info, text));
        }
        let asks_none = self.grpc.as_ref().is_none_or(|listen| !listen.asks_certificates());
        if let Some(address) = open(&self.grpc).filter(|_| asks_none) {
            let text = format!(
                "gRPC on {address} accepts clients of other machines without a certificate, also \
                 calls that return units (is_negative_hits): set listen.grpc.tls.client_ca"
            );
            told.push((Level::Info, text));
        }
        told
    }

    /// Whether clients of the Redis protocol from other machines need no credentials.
    pub(crate) fn is_resp_open(&self) -> bool {
        let is_open = |listen: &Listen| !listen.is_local() && !listen.asks_certificates();
        self.password.is_none() && self.resp.as_ref().is_some_and(is_open)
    }
}

/// How values of keys are shown to operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyValues {
    /// As they are.
    #[default]
    Plain,
    /// The first characters of each: at most four, and at most half of them.
    Short,
    /// The first 16 hexadecimal digits of the SHA-256 of each.
    Hash,
}

/// Where to listen, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub address: Address,
    /// Encrypted, if given.
    pub tls: Option<TlsFiles>,
}

impl<A: Into<SocketAddr>> From<A> for Listen {
    fn from(address: A) -> Self {
        Self { address: Address::Tcp(address.into()), tls: None }
    }
}

impl Listen {
    /// Whether only programs on this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        match &self.address {
            Address::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Address::Unix(_) => true,
        }
    }

    /// Whether clients need a certificate.
    fn asks_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|files| files.client_authority.is_some())
    }
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Port 0 is any that is free.
    Tcp(SocketAddr),
    /// A socket in the file system. One that is left over there is replaced, and it is removed in
    /// the end.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Files in PEM. They are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those that vouch for it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whoever vouches for clients. If given, a client has to show a certificate.
    pub client_authority: Option<PathBuf>,
    /// If given, a client's certificate has to bear one of these names.
    pub client_names: Vec<String>,
}

/// What answers tell beyond the verdict.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// `X-RateLimit-*` beside the fields of the IETF draft.
    pub x_rate_limit: bool,
    /// What the body of a denial is.
    pub body: Body,
    /// What a proxy that asks over gRPC is told to add to the answers of its clients.
    pub proxy_headers: ProxyHeaders,
    /// Dynamic metadata as envoyproxy/ratelimit gives them, in gRPC.
    pub dynamic_metadata: bool,
}

/// What the body of a denial is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// The same document as that of an allowed request.
    #[default]
    Json,
    /// `application/problem+json`.
    Problem,
    /// Nothing.
    Empty,
}

/// Headers that a proxy adds to the answers of its clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyHeaders {
    /// Those that the HTTP listener answers with.
    #[default]
    Standard,
    /// The three of envoyproxy/ratelimit.
    Envoy(EnvoyHeaders),
    /// None, as envoyproxy/ratelimit unless its environment says more.
    None,
}

/// What envoyproxy/ratelimit calls its headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyHeaders {
    /// For the limit.
    pub limit: String,
    /// For what remains of it.
    pub remaining: String,
    /// For the seconds until it is whole again.
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
