//! Every setting of the daemon, once: files, the environment, flags, `--print-config` and the
//! reference page know no other.

use std::time::Duration;

use super::value::Kind;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// Where it stands in a settings file, as in `store.deadline`.
    pub(crate) path: &'static str,
    /// What it takes.
    pub(crate) kind: Kind,
    /// What it is unless somebody says; empty if it then is nothing.
    pub(crate) default: &'static str,
    /// The flag that sets it, without dashes; empty if there is none.
    pub(crate) flag: &'static str,
    /// What it does.
    pub(crate) about: &'static str,
}

impl Setting {
    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("TIDEGATE__{}", self.path.replace('.', "__").to_ascii_uppercase())
    }
}

/// The setting of this path.
pub(crate) fn find(path: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.path == path)
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
const MINUTE: Duration = Duration::from_secs(60);

const CERTIFICATE: &str = "The certificate chain (PEM) to show here; with it, TLS is spoken";
const KEY: &str = "The private key (PEM) of the certificate";
const CLIENT_CA: &str = "Who signs the certificates (PEM) that clients then have to show";

const CLIENT_NAMES: &str =
    "If there are any: names of which a client's certificate has to bear one";

/// All of them, in the order in which they are printed.
pub(crate) static SETTINGS: &[Setting] = &[
    setting("compat", Kind::Choice(&["off", "envoy"]), COMPAT).default("off").flag("compat"),
    setting("threads", Kind::Number(1, 1_024), "How many threads answer; one per core if nothing")
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
        "Name of this node in the registry and in `/v1/nodes`; the host name if nothing",
    ),
    setting(
        "policy.files",
        Kind::List,
        "Policy files, or folders of which every .yaml and .yml file is read",
    )
    .flag("config"),
    setting("policy.merge", Kind::Flag, "Let several files describe one domain")
        .default("false")
        .flag("merge"),
    setting("policy.shadow", Kind::Flag, "Decide and count every limit, and hold nobody back")
        .default("false"),
    setting("policy.enforce_secret_file", Kind::Path, SECRET),
    setting(
        "policy.near_limit_percent",
        Kind::Number(1, 100),
        "From how much of a limit on `near_limit` counts",
    )
    .default("80"),
    setting("listen.http.address", Kind::Listener, "Where to speak HTTP")
        .default("127.0.0.1:8080")
        .flag("http"),
    setting("listen.http.token_file", Kind::Path, HTTP_TOKEN),
    setting("listen.http.tls.certificate", Kind::Path, CERTIFICATE),
    setting("listen.http.tls.key", Kind::Path, KEY),
    setting("listen.http.tls.client_ca", Kind::Path, CLIENT_CA),
    setting("listen.http.tls.client_names", Kind::List, CLIENT_NAMES),
    setting("listen.grpc.address", Kind::Listener, "Where to speak gRPC")
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
        "How long calls may take to end then",
    )
    .default("1h"),
    setting("listen.resp.address", Kind::Listener, "Where to speak the Redis protocol")
        .default("127.0.0.1:6380")
        .flag("resp"),
    setting(
        "listen.resp.password_file",
        Kind::Path,
        "A file whose first line is the password that Redis clients have to give",
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
        "Where metrics, health and the calls that change something are",
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
    setting(
        "listen.metrics.address",
        Kind::Listener,
        "Where nothing but /metrics is, for everybody to read",
    )
    .default("off"),
    setting(
        "store.url",
        Kind::Store,
        "Where state is kept: memory, or a Redis such as redis://127.0.0.1:6379",
    )
    .default("memory")
    .flag("store"),
    setting("store.per_second_url", Kind::Store, "Another Redis for limits of a second or less"),
    setting(
        "store.memory",
        Kind::Bytes(1 << 20, 1 << 40),
        "The most memory that state takes in this process",
    )
    .default("256MiB"),
    setting(
        "store.deadline",
        Kind::Span(millis(1), MINUTE),
        "How long a request waits for Redis; by default this follows the measured round trip, from 10ms to 1s",
    ),
    setting("store.connect_timeout", Kind::Span(millis(1), MINUTE), "How long connecting to Redis may take")
        .default("1s"),
    setting("store.namespace", Kind::Text(128), "What all keys in Redis begin with").default("tg"),
    setting("store.hash_keys", Kind::Flag, "Keep hashes in Redis instead of the texts of keys")
        .default("false"),
    setting(
        "store.max_in_flight",
        Kind::Number(1, 1 << 20),
        "Requests that may wait for one Redis server; further ones are decided without it",
    )
    .default("16384"),
    setting(
        "store.pipeline",
        Kind::Number(1, 1 << 16),
        "The most commands in flight per Redis server; as many are used as the round trip calls for",
    )
    .default("1024"),
    setting(
        "store.on_failure",
        Kind::Choice(&["local", "allow", "deny"]),
        "What limits that come with the request answer while Redis is away; those of a policy say it themselves (`on_store_failure`)",
    )
    .default("local"),
    setting(
        "store.register_every",
        Kind::Span(millis(100), MINUTE),
        "How often this node registers in Redis; the same on all nodes. A dead node stops counting after 12 of these",
    )
    .default("5s"),
    setting("store.wait_at_start", Kind::Flag, "Do not start while Redis is away").default("false"),
    setting(
        "store.tls.authority",
        Kind::Path,
        "Who signs the certificates of Redis (PEM), instead of those the system trusts",
    ),
    setting("store.tls.certificate", Kind::Path, "The certificate (PEM) to show to Redis"),
    setting("store.tls.key", Kind::Path, "Its private key (PEM)"),
    setting(
        "limits.max_connections",
        Kind::Number(1, 1 << 20),
        "The most connections of each listener",
    )
    .default("16384"),
    setting(
        "limits.idle_after",
        Kind::Span(millis(100), DAY),
        "A connection that has completed no request for this long is closed",
    )
    .default("5m"),
    setting(
        "limits.stuck_after",
        Kind::Span(millis(100), DAY),
        "A Redis client that has begun a request and does not complete it, or does not take its answer, is closed after this",
    )
    .default("10s"),
    setting(
        "limits.linger",
        Kind::Span(Duration::ZERO, Duration::from_secs(3_600)),
        "How long the daemon goes on answering, unready, once it is told to stop: as long as whoever sends to it takes to notice",
    )
    .default("0"),
    setting(
        "limits.drain",
        Kind::Span(Duration::ZERO, Duration::from_secs(3_600)),
        "How long connections may take to finish once the daemon stops",
    )
    .default("10s"),
    setting(
        "response.body",
        Kind::Choice(&["json", "problem+json", "empty"]),
        "What the body of a denial is over HTTP",
    )
    .default("json"),
    setting(
        "response.x_ratelimit_headers",
        Kind::Flag,
        "Answer with X-RateLimit-* beside the fields of the IETF draft",
    )
    .default("false"),
    setting(
        "response.ratelimit_headers",
        Kind::Flag,
        "Answer gRPC with RateLimit-Limit, -Remaining and -Reset, as envoyproxy/ratelimit does",
    )
    .default("false"),
    setting("response.limit_header", Kind::Text(64), "What the first of them is called")
        .default("RateLimit-Limit"),
    setting("response.remaining_header", Kind::Text(64), "What the second is called")
        .default("RateLimit-Remaining"),
    setting("response.reset_header", Kind::Text(64), "What the third is called")
        .default("RateLimit-Reset"),
    setting(
        "response.dynamic_metadata",
        Kind::Flag,
        "Answer gRPC with the request and the policy's metadata as dynamic metadata",
    )
    .default("false"),
    setting(
        "log.level",
        Kind::Choice(&["error", "warn", "info", "debug"]),
        "The least that is logged",
    )
    .default("info"),
    setting("log.format", Kind::Choice(&["text", "json"]), "How a line of the log is written")
        .default("text"),
];

const SECRET: &str = "File whose first line, of at least 16 bytes, is the secret that chooses the keys which \
                      `enforce: 25%` covers. The same on all nodes. Without it the choice is predictable";
const COMPAT: &str =
    "Take the place of envoyproxy/ratelimit: read its environment, listen where it does";
const AGE: &str =
    "After this long, give or take a tenth, a gRPC connection is closed, so that clients spread";
const TOKEN: &str = "File whose first line is the token for calls that name or change keys. Without it, they are \
                     answered on loopback only";
const HTTP_TOKEN: &str = "File whose first line is the token for calls that return units. Without it, they are \
                          answered on loopback only";
const HOSTS: &str = "Names that clients may use for this port (`Host`), beside its addresses and localhost. On \
                     loopback no other name is answered; elsewhere every name is, unless there is a list";
const KEY_VALUES: &str = "How values of keys are shown: plain, short (at most 4 characters and a hash) or hash (16 \
                          digits of the SHA-256)";
const UNAUTHENTICATED: &str = "Speak the Redis protocol beyond loopback without a password or client certificates. \
                               Commands that return units or reset keys are refused then";

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
    fn no_setting_stands_twice_or_within_another() {
        for (number, one) in SETTINGS.iter().enumerate() {
            for other in &SETTINGS[number + 1..] {
                assert_ne!(one.path, other.path);
                assert!(!other.path.starts_with(&format!("{}.", one.path)), "{}", other.path);
            }
        }
    }
}
