//! All environment variables of envoyproxy/ratelimit, and their effect in Tidegate.

use super::Fate::{self, Makes, Refused, Sets, Unused};

/// One variable of envoyproxy/ratelimit.
#[derive(Debug)]
pub(crate) struct Variable {
    pub(crate) name: &'static str,
    /// Its default in envoyproxy/ratelimit.
    pub(crate) default: &'static str,
    /// The value that needs no warning.
    pub(crate) quiet: &'static str,
    pub(crate) fate: Fate,
}

const fn variable(name: &'static str, default: &'static str, fate: Fate) -> Variable {
    Variable { name, default, quiet: default, fate }
}

impl Variable {
    const fn quiet(self, quiet: &'static str) -> Self {
        Self { quiet, ..self }
    }
}

const NO_STATSD: &str = "nothing is sent to statsd: Prometheus reads /metrics on the debug port";
const NO_XDS: &str = "policies come from files only (see CONFIG_TYPE)";
const NO_MEMCACHE: &str = "state is kept in Redis or in memory only (see BACKEND_TYPE)";
const NO_TRACES: &str = "no traces are sent";
const ONE_LINK: &str = "there is one connection to each server, shared by all requests";
const BATCHES: &str = "waiting requests are batched without a timer";
const RETRIES: &str =
    "the daemon does not wait for Redis at start; /readyz answers 503 until Redis answers";

/// All variables, in the order of envoyproxy's settings.
pub(crate) static VARIABLES: &[Variable] = &[
    variable("HOST", "0.0.0.0", Makes("listen.http.address")),
    variable("PORT", "8080", Makes("listen.http.address")),
    variable("DEBUG_HOST", "0.0.0.0", Makes("listen.admin.address")),
    variable("DEBUG_PORT", "6070", Makes("listen.admin.address")),
    variable("GRPC_UDS", "", Makes("listen.grpc.address")),
    variable("GRPC_HOST", "0.0.0.0", Makes("listen.grpc.address")),
    variable("GRPC_PORT", "8081", Makes("listen.grpc.address")),
    variable("GRPC_MAX_CONNECTION_AGE", "24h", Sets("listen.grpc.max_connection_age")),
    variable("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", Sets("listen.grpc.max_connection_age_grace")),
    variable("GRPC_SERVER_USE_TLS", "false", Makes("listen.grpc.tls.certificate")),
    variable("GRPC_SERVER_TLS_CERT", "", Makes("listen.grpc.tls.certificate")),
    variable("GRPC_SERVER_TLS_KEY", "", Makes("listen.grpc.tls.key")),
    variable("GRPC_CLIENT_TLS_CACERT", "", Makes("listen.grpc.tls.client_ca")),
    variable("GRPC_CLIENT_TLS_SAN", "", Makes("listen.grpc.tls.client_names")),
    variable("LOG_LEVEL", "WARN", Makes("log.level")),
    variable("LOG_FORMAT", "text", Makes("log.format")),
    variable(
        "CONFIG_TYPE",
        "FILE",
        Refused(
            &["GRPC_XDS_SOTW"],
            "policies come from files, not from a management server: write them to RUNTIME_ROOT, where changes are noticed at once",
        ),
    ),
    variable("FORCE_START_WITHOUT_INITIAL_CONFIG", "false", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_NODE_ID", "default", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_NODE_METADATA", "", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", Unused(NO_XDS)),
    variable("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", Unused(NO_XDS)),
    variable("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", Unused(NO_XDS)),
    variable("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", Unused(NO_XDS)),
    variable("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", Unused(NO_XDS)),
    variable("XDS_CLIENT_BACKOFF_JITTER", "true", Unused(NO_XDS)),
    variable("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", Unused(NO_XDS)),
    variable("USE_DOG_STATSD", "false", Unused(NO_STATSD)),
    variable("USE_DOG_STATSD_MOGRIFIERS", "", Unused(NO_STATSD)),
    variable("USE_STATSD", "true", Unused(NO_STATSD)).quiet("false"),
    variable("STATSD_HOST", "localhost", Unused(NO_STATSD)),
    variable("STATSD_PORT", "8125", Unused(NO_STATSD)),
    variable(
        "EXTRA_TAGS",
        "",
        Unused("labels of metrics are fixed; add labels for hosts in Prometheus"),
    ),
    variable("STATS_FLUSH_INTERVAL", "10s", Unused(NO_STATSD)),
    variable(
        "DISABLE_STATS",
        "false",
        Unused("statistics cannot be turned off; they cost next to nothing"),
    ),
    variable("USE_PROMETHEUS", "false", Makes("listen.metrics.address")),
    variable("PROMETHEUS_ADDR", ":9090", Makes("listen.metrics.address")),
    variable("PROMETHEUS_PATH", "/metrics", Unused("the path is /metrics")),
    variable(
        "PROMETHEUS_MAPPER_YAML",
        "",
        Unused("names and labels are those of envoyproxy's default mapper"),
    ),
    variable(
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
        "false",
        Unused("response times are in seconds"),
    ),
    variable("RUNTIME_ROOT", "/srv/runtime_data/current", Makes("policy.files")),
    variable("RUNTIME_SUBDIRECTORY", "", Makes("policy.files")),
    variable("RUNTIME_APPDIRECTORY", "config", Makes("policy.files")),
    variable(
        "RUNTIME_IGNOREDOTFILES",
        "false",
        Unused("files whose names begin with a dot are always skipped"),
    )
    .quiet("true"),
    variable("RUNTIME_WATCH_ROOT", "true", Makes("policy.files")),
    variable(
        "EXPIRATION_JITTER_MAX_SECONDS",
        "300",
        Unused("a key expires with its window, and Redis spreads expiry itself"),
    ),
    variable(
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "0",
        Unused(
            "denials are always cached, in bounded memory and only as long as they are valid; `refund_staleness` of a limit bounds how late another node's refund is noticed",
        ),
    ),
    variable("NEAR_LIMIT_RATIO", "0.8", Makes("policy.near_limit_percent")),
    variable("CACHE_KEY_PREFIX", "", Sets("store.namespace")),
    variable(
        "BACKEND_TYPE",
        "redis",
        Refused(
            &["memcache"],
            "memcached evicts counters when it is full and cannot decide several limits at once: use Redis, or unset REDIS_URL to keep state in memory",
        ),
    ),
    variable(
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "false",
        Unused(
            "limits in envoyproxy's form count denied requests; write the limit as `rate:` with `algorithm: fixed_window` to not count them",
        ),
    ),
    variable("LIMIT_RESPONSE_HEADERS_ENABLED", "false", Sets("response.ratelimit_headers")),
    variable("LIMIT_LIMIT_HEADER", "RateLimit-Limit", Sets("response.limit_header")),
    variable("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", Sets("response.remaining_header")),
    variable("LIMIT_RESET_HEADER", "RateLimit-Reset", Sets("response.reset_header")),
    variable(
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "false",
        Unused("/readyz always answers 503 without a policy"),
    )
    .quiet("true"),
    variable("REDIS_SOCKET_TYPE", "unix", Makes("store.url")),
    variable("REDIS_TYPE", "SINGLE", Makes("store.url")),
    variable("REDIS_URL", "/var/run/nutcracker/ratelimit.sock", Makes("store.url")),
    variable("REDIS_POOL_SIZE", "10", Unused(ONE_LINK)),
    variable("REDIS_AUTH", "", Makes("store.url")),
    variable("REDIS_TLS", "false", Makes("store.url")),
    variable("REDIS_TLS_CLIENT_CERT", "", Makes("store.tls.certificate")),
    variable("REDIS_TLS_CLIENT_KEY", "", Makes("store.tls.key")),
    variable("REDIS_TLS_CACERT", "", Makes("store.tls.authority")),
    variable(
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION",
        "false",
        Unused(
            "certificates are always verified; set REDIS_TLS_CACERT if Redis has a certificate of your own CA",
        ),
    ),
    variable("REDIS_PIPELINE_WINDOW", "0", Unused(BATCHES)),
    variable("REDIS_PIPELINE_LIMIT", "0", Unused(BATCHES)),
    variable("REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", Unused(BATCHES)),
    variable("REDIS_PERSECOND", "false", Makes("store.per_second_url")),
    variable("REDIS_PERSECOND_SOCKET_TYPE", "unix", Makes("store.per_second_url")),
    variable("REDIS_PERSECOND_TYPE", "SINGLE", Makes("store.per_second_url")),
    variable(
        "REDIS_PERSECOND_URL",
        "/var/run/nutcracker/ratelimitpersecond.sock",
        Makes("store.per_second_url"),
    ),
    variable("REDIS_PERSECOND_POOL_SIZE", "10", Unused(ONE_LINK)),
    variable("REDIS_PERSECOND_AUTH", "", Makes("store.per_second_url")),
    variable("REDIS_PERSECOND_TLS", "false", Makes("store.per_second_url")),
    variable("REDIS_SENTINEL_AUTH", "", Makes("store.url")),
    variable("REDIS_PERSECOND_SENTINEL_AUTH", "", Makes("store.per_second_url")),
    variable("REDIS_PERSECOND_PIPELINE_WINDOW", "0", Unused(BATCHES)),
    variable("REDIS_PERSECOND_PIPELINE_LIMIT", "0", Unused(BATCHES)),
    variable("REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1", Unused(BATCHES)),
    variable(
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION",
        "false",
        Unused(
            "/readyz answers 200 while Redis is unavailable, and 503 while Redis refuses commands",
        ),
    )
    .quiet("true"),
    variable("REDIS_TIMEOUT", "10s", Makes("store.deadline")),
    variable("REDIS_PERSECOND_TIMEOUT", "10s", Unused("REDIS_TIMEOUT applies to both")),
    variable("REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Unused(ONE_LINK)),
    variable("REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", Unused(ONE_LINK)),
    variable("REDIS_STARTUP_INITIAL_INTERVAL", "1s", Unused(RETRIES)),
    variable("REDIS_STARTUP_MAX_INTERVAL", "30s", Unused(RETRIES)),
    variable("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", Unused(RETRIES)),
    variable("MEMCACHE_HOST_PORT", "", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_MAX_IDLE_CONNS", "2", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_SRV", "", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_SRV_REFRESH", "0", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_TLS", "false", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_TLS_CLIENT_CERT", "", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_TLS_CLIENT_KEY", "", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_TLS_CACERT", "", Unused(NO_MEMCACHE)),
    variable("MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", Unused(NO_MEMCACHE)),
    variable("SHADOW_MODE", "false", Sets("policy.shadow")),
    variable("QUOTA_MODE", "false", Unused("set quota_mode per descriptor in the policy")),
    variable("RESPONSE_DYNAMIC_METADATA", "false", Sets("response.dynamic_metadata")),
    variable("MERGE_DOMAIN_CONFIG", "false", Sets("policy.merge")),
    variable("TRACING_ENABLED", "false", Unused(NO_TRACES)),
    variable("TRACING_SERVICE_NAME", "RateLimit", Unused(NO_TRACES)),
    variable("TRACING_SERVICE_NAMESPACE", "", Unused(NO_TRACES)),
    variable("TRACING_SERVICE_INSTANCE_ID", "", Unused(NO_TRACES)),
    variable("TRACING_EXPORTER_PROTOCOL", "http", Unused(NO_TRACES)),
    variable("TRACING_SAMPLING_RATE", "1", Unused(NO_TRACES)),
    variable(
        "USE_CALENDAR_MONTH_RATE_LIMIT",
        "false",
        Unused("a month is 30 days unless the limit has a `calendar`"),
    ),
];
