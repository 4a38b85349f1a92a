//! Configuration of the Redis store.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::store::redis::routing::sentinel::Watched;
use crate::store::redis::wire::script::TimeSource;
use crate::store::{Misconfigured, StoreError};

/// The servers of a store, and how it uses them.
///
/// | URL | servers |
/// |---|---|
/// | `redis://user:password@host:6379/0` | one |
/// | `unix:///run/redis.sock?db=0` | one, by a socket |
/// | `redis+sentinel://host:26379,host:26379/mymaster/0` | the primary that sentinels name |
/// | `redis+cluster://host:6379,host:6379` | a cluster, discovered from any of its nodes |
///
/// `rediss` instead of `redis` encrypts; `?protocol=resp3` speaks RESP3. User and password are those of the
/// servers; `?sentinel_user=user&sentinel_pass=password` are those of the sentinels.
#[derive(Clone, Debug)]
pub struct RedisConfig {
    pub(super) servers: Servers,
    pub(super) per_second: Option<Servers>,
    pub(super) tls: Tls,
    pub(super) namespace: String,
    pub(super) hashes_texts: bool,
    /// `None`: derived from the round trip.
    pub(super) deadline: Option<Duration>,
    /// False until the first self-test is over.
    pub(super) started: Arc<AtomicBool>,
    pub(super) connect_timeout: Duration,
    pub(super) max_in_flight: usize,
    pub(super) max_batch: usize,
    pub(super) pipeline: usize,
    pub(super) settles_after: Duration,
    pub(super) registers: bool,
    pub(super) register_every: Duration,
    pub(super) node_name: Option<String>,
    pub(super) starts_alone: bool,
    pub(super) time: TimeSource,
}

/// How servers are discovered.
#[derive(Clone, Debug)]
pub(super) enum Servers {
    One(ConnectionInfo),
    Sentinel(Watched),
    Cluster(Vec<ConnectionInfo>),
}

/// Certificates in PEM.
#[derive(Clone, Default)]
pub(super) struct Tls {
    pub(super) authority: Option<Vec<u8>>,
    pub(super) certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (authority, certificate) = (self.authority.is_some(), self.certificate.is_some());
        f.debug_struct("Tls")
            .field("authority", &authority)
            .field("certificate", &certificate)
            .finish()
    }
}

impl RedisConfig {
    /// The servers of a URL, with default settings.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Ok(Self {
            servers: Servers::parse(url)?,
            per_second: None,
            tls: Tls::default(),
            namespace: "tg".into(),
            hashes_texts: false,
            deadline: None,
            started: Arc::default(),
            connect_timeout: Duration::from_secs(1),
            max_in_flight: 16_384,
            max_batch: 64,
            pipeline: 1_024,
            settles_after: Duration::from_secs(60),
            registers: true,
            register_every: Duration::from_secs(5),
            node_name: None,
            starts_alone: false,
            time: TimeSource::Store,
        })
    }

    /// Other servers for limits of a second or less, which cause most of the load and whose lost
    /// state matters least.
    #[doc(hidden)]
    pub fn per_second(mut self, url: &str) -> Result<Self, StoreError> {
        self.per_second = Some(Servers::parse(url)?);
        Ok(self)
    }

    /// The prefix of all keys; `tg` by default. Nodes that share limits need the same. With a brace
    /// in it [`RedisStore::connect`](crate::store::redis::RedisStore::connect) fails.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Stores hashes instead of the texts of keys, for texts that are personal data.
    #[doc(hidden)]
    pub const fn hash_keys(mut self) -> Self {
        self.hashes_texts = true;
        self
    }

    /// Fixes how long a request waits for its reply, counting only the time in which this process
    /// listens.
    ///
    /// By default the deadline follows the measured round trip, from 10 ms for a nearby server up
    /// to 1 s, and ends only the wait for a server that sends nothing at all. A fixed deadline also
    /// ends the wait for a slow server; the guide on where to place Redis says when to fix it.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// How long connecting may take; 1 s by default.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The most requests that wait for one server, sent or not; 16,384 by default. Further ones
    /// fail at once with [`StoreError::Overloaded`]. The same number again may wait to release,
    /// renew, refund or reset.
    #[doc(hidden)]
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.max_in_flight = requests.max(1);
        self
    }

    /// The most charges in one command: up to 256, 64 by default. 1 sends each charge separately.
    #[doc(hidden)]
    pub fn max_batch(mut self, charges: usize) -> Self {
        self.max_batch = charges.clamp(1, 256);
        self
    }

    /// The most commands in flight per server and slot; 1,024 by default. The store uses as many as
    /// keep throughput independent of the round trip: 16 for each millisecond, and at least 4.
    /// Requests that arrive meanwhile share the next command.
    #[doc(hidden)]
    pub fn pipeline(mut self, commands: usize) -> Self {
        self.pipeline = commands.max(1);
        self
    }

    /// How long this node waits for other nodes to load its policy before it repairs states that
    /// are impossible under its limits; 60 s by default. If the registry shows that all live nodes
    /// have the policy, this node repairs after two [intervals](RedisConfig::register_every). 0
    /// repairs always.
    #[doc(hidden)]
    pub const fn settles_after(mut self, delay: Duration) -> Self {
        self.settles_after = delay;
        self
    }

    /// How often this node registers; 5 s by default. It must be the same on all nodes. A dead node
    /// stops counting 12 intervals after its last registration.
    #[doc(hidden)]
    pub fn register_every(mut self, interval: Duration) -> Self {
        self.register_every = interval.max(Duration::from_millis(10));
        self
    }

    /// Does not register this node: other nodes do not count it, and it counts only itself.
    #[doc(hidden)]
    pub const fn without_registry(mut self) -> Self {
        self.registers = false;
        self
    }

    /// The name of this node in the registry, at most 64 characters; the process id by default.
    pub fn node_name(mut self, name: impl Into<String>) -> Self {
        self.node_name = Some(name.into());
        self
    }

    /// Starts even if the servers are unavailable: until they answer, every request fails with an
    /// outage. Misconfigured servers are then found by requests or by
    /// [`RedisStore::self_test`](crate::store::redis::RedisStore::self_test); errors in the
    /// settings themselves still fail at the start.
    pub const fn start_without_server(mut self) -> Self {
        self.starts_alone = true;
        self
    }

    /// Trusts this certificate authority (PEM) instead of the system's.
    pub fn tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.authority = Some(pem.into());
        self
    }

    /// Presents this certificate and key (PEM) to the server.
    pub fn tls_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.tls.certificate = Some((certificate.into(), key.into()));
        self
    }

    /// Checks the settings as far as possible without a server.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        // The text in the first braces of a key determines its slot, and that must be its tag.
        if self.namespace.contains(['{', '}']) {
            let why = format!(
                "the namespace {:?} contains a brace, which is not allowed",
                self.namespace
            );
            return Err(StoreError::misconfigured(Misconfigured::Setting, why));
        }
        Ok(())
    }

    /// For tests: the clock that decides.
    #[doc(hidden)]
    #[doc(hidden)]
    pub const fn time(mut self, time: TimeSource) -> Self {
        self.time = time;
        self
    }
}

impl Tls {
    pub(super) fn client(&self) -> Option<ClientTlsConfig> {
        let (client_cert, client_key) = self.certificate.clone()?;
        Some(ClientTlsConfig { client_cert, client_key })
    }
}

impl Servers {
    fn parse(url: &str) -> Result<Self, StoreError> {
        let wrong = |why: &str| {
            let why = format!("{why} in {:?}", without_secrets(url));
            StoreError::misconfigured(Misconfigured::Setting, why)
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("no scheme"))?;
        let (scheme, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let schemes: &[&str] =
            if kind.is_empty() { &["redis", "rediss", "unix"] } else { &["redis", "rediss"] };
        if !schemes.contains(&scheme) {
            return Err(wrong("not one of redis, rediss, unix, redis+sentinel, redis+cluster"));
        }
        if scheme == "rediss" {
            provide_ciphers();
        }
        let info = |url: &str| {
            let info = url.into_connection_info().map_err(|error| wrong(&error.to_string()))?;
            let tcp = TcpSettings::default().set_nodelay(true);
            Ok::<ConnectionInfo, StoreError>(info.set_tcp_settings(tcp))
        };
        if kind.is_empty() {
            return info(url).map(Self::One);
        }
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (format!("{user}@"), rest),
            None => (String::new(), rest),
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, format!("?{query}")),
            None => (rest, String::new()),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let nodes = hosts.split(',').filter(|host| !host.is_empty());
        let nodes = nodes.map(|host| format!("{scheme}://{user}{host}"));
        match kind {
            "cluster" if !["", "0"].contains(&path) => {
                Err(wrong("a cluster has no databases, remove the one after the hosts"))
            }
            "cluster" => {
                let nodes: Result<Vec<_>, _> =
                    nodes.map(|node| info(&format!("{node}{query}"))).collect();
                nodes.map(Self::Cluster).and_then(|servers| servers.not_empty(&wrong))
            }
            "sentinel" => {
                let (primary, db) = path.split_once('/').unwrap_or((path, "0"));
                if primary.is_empty() {
                    return Err(wrong("the name of the primary is missing after the sentinels"));
                }
                // User, password and database are the primary's; sentinels have their own.
                let (credentials, query) = sentinel_credentials(&query);
                let node = info(&format!("{scheme}://{user}primary/{db}{query}"))?;
                let sentinels: Result<Vec<_>, _> = hosts
                    .split(',')
                    .filter(|host| !host.is_empty())
                    .map(|host| with_port(host, 26_379))
                    .map(|host| info(&format!("{scheme}://{credentials}{host}")))
                    .collect();
                let watched = Watched { sentinels: sentinels?, name: primary.into(), node };
                Self::Sentinel(watched).not_empty(&wrong)
            }
            other => Err(wrong(&format!("unknown kind of servers {other:?}"))),
        }
    }

    fn not_empty(self, wrong: &impl Fn(&str) -> StoreError) -> Result<Self, StoreError> {
        match &self {
            Self::Sentinel(Watched { sentinels: nodes, .. }) | Self::Cluster(nodes)
                if nodes.is_empty() =>
            {
                Err(wrong("no host"))
            }
            _ => Ok(self),
        }
    }
}

/// Removes the credentials of sentinels from a query, and formats them as they precede a host.
fn sentinel_credentials(query: &str) -> (String, String) {
    let (mut user, mut password, mut rest) = ("", "", Vec::new());
    for field in query.trim_start_matches('?').split('&').filter(|field| !field.is_empty()) {
        match field.split_once('=') {
            Some(("sentinel_user", value)) => user = value,
            Some(("sentinel_pass", value)) => password = value,
            _ => rest.push(field),
        }
    }
    let credentials =
        if password.is_empty() { String::new() } else { format!("{user}:{password}@") };
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    (credentials, query)
}

/// The URL for messages: without user and password, even if it is invalid.
fn without_secrets(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let place = match rest.rsplit_once('@') {
        Some((_, place)) => place,
        // If the host is missing, the password is where the port would be.
        None => rest.split_once(':').map_or(rest, |(host, port)| {
            let is_port = port.starts_with(|first: char| first.is_ascii_digit());
            if is_port { rest } else { host }
        }),
    };
    // The password of a socket is in the query.
    let place = place.split_once('?').map_or(place, |(place, _)| place);
    format!("{scheme}{place}")
}

/// Selects a TLS provider unless the program has: without one, the first connection panics.
fn provide_ciphers() {
    // An error means that the program has selected a provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn with_port(host: &str, port: u16) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { host.into() } else { format!("{host}:{port}") }
}

/// The same connection settings for another address.
pub(super) fn at(node: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let addr = match node.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.into(),
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.into(), port),
    };
    node.clone().set_addr(addr)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Servers {
        Servers::parse(url).unwrap()
    }

    #[test]
    fn reads_every_kind_of_url() {
        let Servers::One(one) = parse("redis://bob:secret@example:7000/3") else { panic!("one") };
        assert_eq!(one.addr(), &ConnectionAddr::Tcp("example".into(), 7000));
        assert_eq!((one.redis_settings().db(), one.redis_settings().username()), (3, Some("bob")));
        let Servers::One(one) = parse("unix:///run/redis.sock?db=2") else { panic!("one") };
        assert_eq!(one.addr(), &ConnectionAddr::Unix("/run/redis.sock".into()));
        let url = "redis+sentinel://bob:secret@a:1,b/mymaster/2?protocol=resp3";
        let Servers::Sentinel(Watched { sentinels, name, node }) = parse(url) else {
            panic!("sentinel")
        };
        let node = node.redis_settings();
        assert_eq!(sentinels[0].addr(), &ConnectionAddr::Tcp("a".into(), 1));
        assert_eq!(sentinels[1].addr(), &ConnectionAddr::Tcp("b".into(), 26_379));
        assert_eq!(sentinels[0].redis_settings().password(), None);
        assert_eq!((&*name, node.db(), node.password()), ("mymaster", 2, Some("secret")));
        assert_eq!(node.protocol(), redis::ProtocolVersion::RESP3);
        let url =
            "redis+sentinel://bob:secret@a/mymaster?sentinel_pass=p%40ss&db=1&sentinel_user=eve";
        let Servers::Sentinel(Watched { sentinels, node, .. }) = parse(url) else {
            panic!("sentinel")
        };
        let sentinel = sentinels[0].redis_settings();
        assert_eq!((sentinel.username(), sentinel.password()), (Some("eve"), Some("p@ss")));
        assert_eq!(node.redis_settings().password(), Some("secret"));
        let Servers::Cluster(nodes) = parse("redis+cluster://a:1,b:2") else { panic!("cluster") };
        assert_eq!(nodes.len(), 2);
        assert_eq!(nodes[1].addr(), &ConnectionAddr::Tcp("b".into(), 2));
    }

    #[test]
    fn a_namespace_that_would_move_every_key_is_refused() {
        let config = RedisConfig::new("redis://example").unwrap();
        assert_eq!(config.check(), Ok(()));
        for namespace in ["{tg", "tg}", "a{b}c"] {
            let error = config.clone().namespace(namespace).check().unwrap_err();
            assert!(!error.is_outage());
            assert!(error.to_string().contains(&format!("the namespace {namespace:?}")), "{error}");
        }
    }

    /// Errors name the problem but never a password.
    #[test]
    fn an_invalid_url_is_reported_without_the_password() {
        for (url, says) in [
            ("example:6379", "no scheme in \"example:6379\""),
            ("bob:secret", "no scheme in \"bob\""),
            ("http://bob:secret@example", "not one of redis,"),
            ("unix+cluster://bob:secret@example", "not one of redis,"),
            ("redis://bob:secret", "in \"redis://bob\""),
            ("redis://bob:a@secret@example:port", "in \"redis://example:port\""),
            ("redis://bob:secret@example/nought", "in \"redis://example/nought\""),
            ("unix:///run/redis.sock?db=x&pass=secret", "in \"unix:///run/redis.sock\""),
            ("redis+sentinel://bob:secret@a,b", "the name of the primary is missing"),
            ("redis+cluster://bob:secret@/", "no host"),
            ("redis+cluster://bob:secret@a/3", "a cluster has no databases"),
            ("redis+swarm://bob:secret@a", "unknown kind of servers \"swarm\""),
        ] {
            let error = Servers::parse(url).unwrap_err();
            assert!(!error.is_outage(), "{url}");
            assert!(error.to_string().contains(says), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let url = "redis+sentinel://bob:secret@a,b/primary?sentinel_pass=secret";
        let config = RedisConfig::new(url).unwrap();
        assert!(!format!("{config:?}").contains("secret"), "{config:?}");
    }
}
