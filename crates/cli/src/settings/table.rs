//! All settings of the daemon. Files, the environment, flags, `--print-config` and the reference page use this
//! table.

use std::time::Duration;

use super::value::Kind;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Path in a settings file, such as `store.deadline`.
    pub(crate) path: &'static str,
    /// Type of the value.
    pub(crate) kind: Kind,
    /// Default; empty if there is none.
    pub(crate) default: &'static str,
    /// Its flag, without dashes; empty if there is none.
    pub(crate) flag: &'static str,
    /// Description.
    pub(crate) about: &'static str,
}

impl Setting {
    /// The part of an upstream's setting after the name.
    pub(crate) fn of_upstream(&self) -> Option<&'static str> {
        self.path.strip_prefix(UPSTREAMS)?.strip_prefix(NAME)
    }

    /// Its environment variable.
    pub(crate) fn variable(&self) -> String {
        format!("TIDEGATE__{}", self.path.replace('.', "__").to_ascii_uppercase())
    }
}

/// The setting of this path.
pub(crate) fn find(path: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.path == path)
}

/// The common prefix of the settings of upstreams. The name of the upstream follows; in the table,
/// it is [`NAME`].
pub(crate) const UPSTREAMS: &str = "gateway.upstreams.";
pub(crate) const NAME: &str = "NAME.";

/// The setting of upstreams with this path after the name.
pub(crate) fn find_of_upstream(rest: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.of_upstream() == Some(rest))
}

const fn setting(path: &'static str, kind: Kind, about: &'static str) -> Setting {
    Setting { path, kind, default: "", flag: "", about }
}

impl Setting {
    const fn default(self, default: &'static str) -> Self {
        Self { default, ..self }
    }

    const fn flag(self, flag: &'static str) -> Self {
        Self { flag, ..self }
    }
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

const DAY: Duration = Duration::from_secs(86_400);
const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);

const CERTIFICATE: &str = "Certificate chain (PEM) of this listener; setting it turns TLS on";
const KEY: &str = "Private key (PEM) of the certificate";
const CLIENT_CA: &str = "CA certificates (PEM) for client certificates, which clients then need";

const CLIENT_NAMES: &str =
    "Accepted client certificate names. Empty: any name signed by `client_ca`";

/// All settings, in the order of the reference page.
pub(crate) static SETTINGS: &[Setting] = &[
    setting("compat", Kind::Choice(&["off", "envoy"]), COMPAT).default("off").flag("compat"),
    setting("threads", Kind::Number(1, 1_024), "Number of worker threads; by default one per core")
        .flag("threads"),
    setting(
        "nodes",
        Kind::AutoOr(1, 1 << 20),
        "Number of nodes that share the limits. While Redis is unavailable, each node enforces 1.5 × limit / nodes. `auto`: the largest count of the last minute, from the registry in Redis",
    )
    .default("auto"),
    setting(
        "node_name",
        Kind::Text(64),
        "Name of this node in the registry and in `/v1/nodes`; by default the host name",
    ),
    setting(
        "policy.files",
        Kind::List,
        "Policy files, or folders whose .yaml and .yml files are read",
    )
    .flag("config"),
    setting("policy.merge", Kind::Flag, "Allow several files to define one domain")
        .default("false")
        .flag("merge"),
    setting("policy.shadow", Kind::Flag, "Decide and count every limit, but deny nothing")
        .default("false"),
    setting("policy.enforce_secret_file", Kind::Path, SECRET),
    setting(
        "policy.near_limit_percent",
        Kind::Number(1, 100),
        "Percentage of a limit from which requests count as `near_limit`",
    )
    .default("80"),
    setting("listen.http.address", Kind::Listener, "HTTP listener")
        .default("127.0.0.1:8080")
        .flag("http"),
    setting("listen.http.token_file", Kind::Path, HTTP_TOKEN),
    setting("listen.http.tls.certificate", Kind::Path, CERTIFICATE),
    setting("listen.http.tls.key", Kind::Path, KEY),
    setting("listen.http.tls.client_ca", Kind::Path, CLIENT_CA),
    setting("listen.http.tls.client_names", Kind::List, CLIENT_NAMES),
    setting("listen.grpc.address", Kind::Listener, "gRPC listener")
        .default("127.0.0.1:8081")
        .flag("grpc"),
    setting("listen.grpc.tls.certificate", Kind::Path, CERTIFICATE),
    setting("listen.grpc.tls.key", Kind::Path, KEY),
    setting("listen.grpc.tls.client_ca", Kind::Path, CLIENT_CA),
    setting("listen.grpc.tls.client_names", Kind::List, CLIENT_NAMES),
    setting(
        "listen.grpc.max_connection_age",
        Kind::Span(Duration::from_secs(1), DAY.saturating_mul(30)),
        AGE,
    )
    .default("24h"),
    setting(
        "listen.grpc.max_connection_age_grace",
        Kind::Span(millis(1), DAY),
        "Time for calls in flight after `max_connection_age`",
    )
    .default("1h"),
    setting("listen.resp.address", Kind::Listener, "Redis protocol listener")
        .default("127.0.0.1:6380")
        .flag("resp"),
    setting(
        "listen.resp.password_file",
        Kind::Path,
        "File whose first line is the password for Redis clients",
    )
    .flag("password-file"),
    setting("listen.resp.allow_unauthenticated", Kind::Flag, UNAUTHENTICATED).default("false"),
    setting("listen.resp.tls.certificate", Kind::Path, CERTIFICATE),
    setting("listen.resp.tls.key", Kind::Path, KEY),
    setting("listen.resp.tls.client_ca", Kind::Path, CLIENT_CA),
    setting("listen.resp.tls.client_names", Kind::List, CLIENT_NAMES),
    setting(
        "listen.admin.address",
        Kind::Listener,
        "Listener for metrics, health and the admin API",
    )
    .default("127.0.0.1:6070")
    .flag("admin"),
    setting("listen.admin.token_file", Kind::Path, TOKEN),
    setting("listen.admin.hosts", Kind::List, HOSTS),
    setting("listen.admin.key_values", Kind::Choice(&["plain", "short", "hash"]), KEY_VALUES)
        .default("plain"),
    setting("listen.admin.tls.certificate", Kind::Path, CERTIFICATE),
    setting("listen.admin.tls.key", Kind::Path, KEY),
    setting("listen.admin.tls.client_ca", Kind::Path, CLIENT_CA),
    setting("listen.admin.tls.client_names", Kind::List, CLIENT_NAMES),
    setting("listen.gateway.address", Kind::Listener, "Gateway listener; needs `gateway.upstream` or `gateway.upstreams`")
        .default("off")
        .flag("gateway"),
    setting("listen.gateway.tls.certificate", Kind::Path, CERTIFICATE),
    setting("listen.gateway.tls.key", Kind::Path, KEY),
    setting("listen.gateway.tls.client_ca", Kind::Path, CLIENT_CA),
    setting("listen.gateway.tls.client_names", Kind::List, CLIENT_NAMES),
    setting(
        "listen.metrics.address",
        Kind::Listener,
        "Listener for `/metrics` only, without credentials",
    )
    .default("off"),
    setting(
        "gateway.upstream",
        Kind::Text(512),
        "Service that the gateway forwards requests to, such as http://127.0.0.1:9000, https://app:9443 or h2c://127.0.0.1:50051 (HTTP/2 without TLS, for gRPC): the upstream `default` for the route `/`",
    )
    .flag("upstream"),
    setting(
        "gateway.domain",
        Kind::Text(256),
        "Domain whose `requests` rules apply; by default the only one that has any",
    ),
    setting("gateway.trusted_peers", Kind::List, TRUSTED_PEERS),
    setting("gateway.drop_headers", Kind::List, DROP_HEADERS),
    setting("gateway.max_body", Kind::Bytes(0, 1 << 50), MAX_BODY).default("0"),
    setting(
        "gateway.access_log",
        Kind::Choice(&["off", "text", "json"]),
        "Format of the access log, one line per request on standard output",
    )
    .default("off")
    .flag("access-log"),
    setting("gateway.proxy_protocol_peers", Kind::List, PROXY_PROTOCOL),
    setting(
        "gateway.per_address.connections",
        Kind::Number(0, 100_000),
        "Maximum number of open connections of one IPv4 address or IPv6 /64, except `gateway.trusted_peers`; 0: no limit",
    )
    .default("0"),
    setting(
        "gateway.per_address.rate",
        Kind::Text(64),
        "Maximum rate of new connections of one IPv4 address or IPv6 /64, such as 50/s; by default no limit",
    ),
    setting(
        "gateway.per_address.burst",
        Kind::Number(1, 1 << 20),
        "New connections of one address at once; by default the number of the rate",
    ),
    setting(
        "gateway.max_connections",
        Kind::Number(1, 1 << 20),
        "Maximum number of connections to each address of a service",
    )
    .default("1024"),
    setting(
        "gateway.connect_timeout",
        Kind::Span(millis(1), MINUTE),
        "Timeout for connecting to the service",
    )
    .default("3s"),
    setting(
        "gateway.head_timeout",
        Kind::Span(millis(1), Duration::from_secs(3_600)),
        "Time that the service has until the head of its response",
    )
    .default("30s"),
    setting(
        "gateway.idle_timeout",
        Kind::Span(millis(1), DAY),
        "Time that a response of the service may pause; also the messages of a gRPC client",
    )
    .default("60s"),
    setting("gateway.tls.authority", Kind::Path, UPSTREAM_CA),
    setting(
        "gateway.upstreams.NAME.urls",
        Kind::List,
        "Addresses of the upstream NAME, of one scheme: http://HOST:PORT, https://HOST:PORT or h2c://HOST:PORT. Of two random addresses, a request goes to the one with fewer requests in progress",
    ),
    setting("gateway.upstreams.NAME.routes", Kind::List, ROUTES),
    setting(
        "gateway.upstreams.NAME.max_connections",
        Kind::Number(1, 1 << 20),
        "Maximum number of connections to each address; by default `gateway.max_connections`",
    ),
    setting(
        "gateway.upstreams.NAME.connect_timeout",
        Kind::Span(millis(1), MINUTE),
        "Timeout for connecting; by default `gateway.connect_timeout`",
    ),
    setting(
        "gateway.upstreams.NAME.head_timeout",
        Kind::Span(millis(1), HOUR),
        "Time until the head of a response; by default `gateway.head_timeout`",
    ),
    setting(
        "gateway.upstreams.NAME.idle_timeout",
        Kind::Span(millis(1), DAY),
        "Time that a response may pause; by default `gateway.idle_timeout`",
    ),
    setting(
        "gateway.upstreams.NAME.eject_for",
        Kind::Span(millis(1), HOUR),
        "Time that an address is not used after 5 failures in a row; then its share of the requests grows within the same time",
    )
    .default("10s"),
    setting(
        "gateway.upstreams.NAME.tls.authority",
        Kind::Path,
        "CA certificates (PEM) for the certificates of https:// addresses; by default `gateway.tls.authority`",
    ),
    setting(
        "gateway.upstreams.NAME.tls.server_name",
        Kind::Text(256),
        "Name in the certificates of https:// addresses; by default the host of the URL",
    ),
    setting(
        "gateway.upstreams.NAME.tls.http2",
        Kind::Flag,
        "Offer HTTP/2 to https:// addresses; WebSockets need HTTP/1.1",
    )
    .default("true"),
    setting(
        "gateway.upstreams.NAME.health.path",
        Kind::Text(2_048),
        "Path of a health check of each address, which a status from 200 to 399 passes; none without it",
    ),
    setting(
        "gateway.upstreams.NAME.health.interval",
        Kind::Span(millis(10), HOUR),
        "Time between two health checks",
    )
    .default("5s"),
    setting(
        "gateway.upstreams.NAME.health.timeout",
        Kind::Span(millis(1), MINUTE),
        "Time that a health check may take",
    )
    .default("1s"),
    setting(
        "gateway.upstreams.NAME.health.unhealthy_after",
        Kind::Number(1, 1_000),
        "Number of failed health checks in a row after which an address is not used",
    )
    .default("3"),
    setting(
        "gateway.upstreams.NAME.health.healthy_after",
        Kind::Number(1, 1_000),
        "Number of passed health checks in a row after which an address is used again",
    )
    .default("2"),
    setting(
        "store.url",
        Kind::Store,
        "Store of the limits' state: memory, or a Redis such as redis://127.0.0.1:6379",
    )
    .default("memory")
    .flag("store"),
    setting("store.per_second_url", Kind::Store, "Another Redis for limits that refill within a second"),
    setting(
        "store.memory",
        Kind::Bytes(1 << 20, 1 << 40),
        "Maximum memory for state in this process",
    )
    .default("256MiB"),
    setting(
        "store.deadline",
        Kind::Span(millis(1), MINUTE),
        "Time that a request waits for Redis; by default it follows the measured round trip, from 10ms to 1s",
    ),
    setting("store.connect_timeout", Kind::Span(millis(1), MINUTE), "Timeout for connecting to Redis")
        .default("1s"),
    setting("store.namespace", Kind::Text(128), "Prefix of all keys in Redis").default("tg"),
    setting("store.hash_keys", Kind::Flag, "Store hashes of keys in Redis instead of their text")
        .default("false"),
    setting(
        "store.max_in_flight",
        Kind::Number(1, 1 << 20),
        "Maximum number of requests that wait for one Redis server; further ones are decided without it",
    )
    .default("16384"),
    setting(
        "store.pipeline",
        Kind::Number(1, 1 << 16),
        "Maximum number of commands in flight per Redis server, and on a cluster per hash slot, so that busy slots do not delay the others; the actual number follows the round trip. `store.max_in_flight` bounds each server",
    )
    .default("1024"),
    setting(
        "store.on_failure",
        Kind::Choice(&["local", "allow", "deny"]),
        "Fallback of limits that are sent with the request while Redis is unavailable; limits of a policy have `on_store_failure`",
    )
    .default("local"),
    setting(
        "store.register_every",
        Kind::Span(millis(100), MINUTE),
        "Interval at which this node registers in Redis; the same on all nodes. A crashed node stops counting after 12 intervals",
    )
    .default("5s"),
    setting("store.wait_at_start", Kind::Flag, "Wait for Redis at start, and fail if it is unavailable").default("false"),
    setting(
        "store.tls.authority",
        Kind::Path,
        "CA certificates (PEM) for the certificate of Redis, instead of the system's",
    ),
    setting("store.tls.certificate", Kind::Path, "Client certificate (PEM) for Redis"),
    setting("store.tls.key", Kind::Path, "Private key (PEM) of the client certificate"),
    setting(
        "limits.max_connections",
        Kind::Number(1, 1 << 20),
        "Maximum number of connections per listener",
    )
    .default("16384"),
    setting(
        "limits.idle_after",
        Kind::Span(millis(100), DAY),
        "Close a connection that has completed no request for this long",
    )
    .default("5m"),
    setting(
        "limits.stuck_after",
        Kind::Span(millis(100), DAY),
        "Close a Redis client that has not completed a started request, or has not read its answer, for this long",
    )
    .default("10s"),
    setting(
        "limits.linger",
        Kind::Span(Duration::ZERO, Duration::from_secs(3_600)),
        "Time that the daemon goes on serving after a stop signal, with `/readyz` answering 503: as long as the load balancer takes to notice",
    )
    .default("0"),
    setting(
        "limits.drain",
        Kind::Span(Duration::ZERO, Duration::from_secs(3_600)),
        "Maximum time to drain connections at shutdown",
    )
    .default("10s"),
    setting(
        "response.body",
        Kind::Choice(&["problem+json", "json", "empty"]),
        "Body of a denial over HTTP; over gRPC and at `/json`, none unless set to problem+json",
    )
    .default("problem+json"),
    setting(
        "response.x_ratelimit_headers",
        Kind::Flag,
        "Send X-RateLimit-* in addition to the headers of the IETF draft",
    )
    .default("false"),
    setting(
        "response.ratelimit_headers",
        Kind::Flag,
        "Send RateLimit-Limit, -Remaining and -Reset over gRPC, as envoyproxy/ratelimit does",
    )
    .default("false"),
    setting("response.limit_header", Kind::Text(64), "Name of the header RateLimit-Limit")
        .default("RateLimit-Limit"),
    setting("response.remaining_header", Kind::Text(64), "Name of the header RateLimit-Remaining")
        .default("RateLimit-Remaining"),
    setting("response.reset_header", Kind::Text(64), "Name of the header RateLimit-Reset")
        .default("RateLimit-Reset"),
    setting(
        "response.dynamic_metadata",
        Kind::Flag,
        "Send the request and the policy's metadata as dynamic metadata over gRPC",
    )
    .default("false"),
    setting(
        "log.level",
        Kind::Choice(&["error", "warn", "info", "debug"]),
        "Minimum level of log lines",
    )
    .default("info"),
    setting("log.format", Kind::Choice(&["text", "json"]), "Format of log lines")
        .default("text"),
];

const UPSTREAM_CA: &str =
    "CA certificates (PEM) for the certificates of https:// services, instead of the system's";
const ROUTES: &str = "Requests that go to the upstream NAME: hosts, normalised paths or both, such as [api.example.com, /v1, '*.example.com/v1']. \
                      An exact host wins over a pattern, and the longest path wins; `/` takes all other requests. A \
                      single upstream needs no routes";
const SECRET: &str = "File whose first line, of at least 16 bytes, is the secret that selects the keys of \
                      `enforce: 25%`. The same on all nodes. Without it clients can predict the selection";
const COMPAT: &str =
    "Replace envoyproxy/ratelimit: read its environment variables, listen on its addresses";
const AGE: &str =
    "Close a gRPC connection after this time ± 10 %, so that clients spread over daemons";
const TOKEN: &str = "File whose first line is the token for calls that name or change keys. Without it, such calls are \
                     answered on loopback only";
const HTTP_TOKEN: &str = "File whose first line is the token for calls that return units. Without it, such calls \
                          are answered on loopback only";
const HOSTS: &str = "Accepted names in `Host`, in addition to localhost and the listener's addresses. On \
                     loopback other names are refused; elsewhere every name is accepted if the list is empty";
const TRUSTED_PEERS: &str = "Addresses and networks of proxies in front of the gateway, and `unix` for peers on a Unix \
                             socket. Headers by which a client could pass for a proxy, such as `X-Forwarded-*`, are \
                             dropped if they come from other peers";
const DROP_HEADERS: &str = "Further headers that are dropped unless the peer is in `gateway.trusted_peers`, such as the \
                            ones in which a service expects the name of an authenticated user; at most 64 names";
const MAX_BODY: &str =
    "Maximum size of a request body, above which the request gets 413; 0: no maximum";
const PROXY_PROTOCOL: &str = "Addresses and networks of load balancers that must send a PROXY protocol header (version 1 \
                              or 2) first; on a Unix socket, every peer. Other peers must not send one";
const KEY_VALUES: &str = "Display of key values: plain, short (at most 4 characters and a hash) or hash (16 \
                          digits of the SHA-256)";
const UNAUTHENTICATED: &str = "Allow the Redis protocol beyond loopback without a password or client certificates. \
                               Commands that return units or reset keys are then refused";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_of_its_setting() {
        for setting in SETTINGS.iter().filter(|setting| !setting.default.is_empty()) {
            assert!(setting.kind.read(setting.default).is_ok(), "{}", setting.path);
        }
    }

    #[test]
    fn no_setting_is_listed_twice_or_within_another() {
        for (number, one) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[number + 1..] {
                assert_ne!(one.path, other.path);
                assert!(!other.path.starts_with(&format!("{}.", one.path)), "{}", other.path);
            }
        }
    }
}
