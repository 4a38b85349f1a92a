//! Every metric. `docs/reference/metrics.md` is written from this table.

use prometheus_client::metrics::MetricType;

/// One metric.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricType,
    /// The names of its labels, separated by commas.
    #[cfg_attr(not(test), expect(dead_code, reason = "the reference page is made by a test"))]
    pub(crate) labels: &'static str,
    pub(crate) about: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: MetricType::Counter, labels, about }
}

const fn gauge(name: &'static str, labels: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: MetricType::Gauge, labels, about }
}

const fn histogram(name: &'static str, labels: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: MetricType::Histogram, labels, about }
}

/// All metrics; those of envoyproxy/ratelimit last.
pub(crate) static METRICS: &[Metric] = &[
    gauge("tidegate_build_info", "version", "Always 1; the label has the version."),
    gauge("tidegate_uptime_seconds", "", "Time since the daemon started."),
    gauge("tidegate_draining", "", "1 while the daemon shuts down, otherwise 0."),
    counter("process_cpu_seconds_total", "", "CPU time of the process, user and system."),
    gauge("process_threads", "", "Threads of the process."),
    gauge("process_virtual_memory_bytes", "", "Virtual memory of the process."),
    gauge("process_resident_memory_bytes", "", "Resident memory of the process."),
    gauge("process_start_time_seconds", "", "Start of the process, in seconds since 1970."),
    gauge("process_open_fds", "", "Open file descriptors."),
    gauge("process_max_fds", "", "Limit of open file descriptors."),
    counter(
        "tidegate_requests_total",
        "listener, verdict",
        "Requests by verdict: allowed, denied, or failed (no decision).",
    ),
    histogram(
        "tidegate_request_seconds",
        "listener",
        "Time from reading a request to its decision, waiting for Redis included. RESP commands that arrive together have the time of the last one.",
    ),
    counter("tidegate_connections_total", "listener", "Connections opened."),
    gauge("tidegate_connections", "listener", "Open connections."),
    counter(
        "tidegate_refused_connections_total",
        "listener, reason",
        "Connections closed before they were served: full (`limits.max_connections`, or no file descriptor left), address_connections and address_rate (`gateway.per_address`), proxy_header (missing, malformed or late).",
    ),
    counter(
        "tidegate_access_log_dropped_lines_total",
        "",
        "Lines of the access log that were not written, because standard output was blocked or closed.",
    ),
    gauge(
        "tidegate_policy_info",
        "revision",
        "Always 1; the label identifies the policy in force, which is the same on every node with the same files.",
    ),
    gauge(
        "tidegate_policy_loaded_timestamp_seconds",
        "",
        "Time when the policy was put in force, in seconds since 1970; 0 without a policy.",
    ),
    counter(
        "tidegate_policy_loads_total",
        "outcome",
        "Policy loads by outcome: loaded or refused.",
    ),
    gauge("tidegate_overrides", "", "Overrides in force."),
    gauge("tidegate_kill_switches", "", "Kill switches in force."),
    counter(
        "tidegate_limit_units_total",
        "domain, limit, outcome",
        "Units decided, by limit and outcome: within_limit, near_limit (admitted above policy.near_limit_percent), over_limit (denied), shadow (over a limit that is not enforced). Each unit has one outcome.",
    ),
    counter(
        "tidegate_limit_returned_units_total",
        "domain, limit",
        "Units returned by refunds and negative costs.",
    ),
    counter(
        "tidegate_limit_skipped_requests_total",
        "domain, limit",
        "Requests that skipped an in-flight limit, because their call cannot release: Envoy's rate limit service, `/v1/auth`, `/v1/check`, `TG.CHECK`.",
    ),
    gauge(
        "tidegate_concurrency_limit",
        "domain, protect",
        "The limit of a concurrency limiter (`protect`); during a probe, that before it. Limiters appear with their first request.",
    ),
    gauge(
        "tidegate_concurrency_in_flight",
        "domain, protect",
        "Requests in progress, which hold a permit of the concurrency limiter.",
    ),
    gauge("tidegate_concurrency_queued", "domain, protect", "Requests that wait for a permit."),
    gauge(
        "tidegate_concurrency_baseline_seconds",
        "domain, protect",
        "The latency without queueing that the concurrency limiter has measured, if it is known.",
    ),
    counter(
        "tidegate_shed_requests_total",
        "domain, protect, class, reason",
        "Requests that a concurrency limiter shed, or would have in shadow mode: limit, queue_full, displaced, queue_timeout, deadline, busy.",
    ),
    counter(
        "tidegate_upstream_requests_total",
        "upstream, address, outcome",
        "Requests that the gateway sent or tried to send to an address, by outcome: answered (its head arrived), busy (all connections in use), connect_failed, no_response, timed_out, malformed, cut (the response ended early; counted as answered before), and client_gone (the client did not send all of its request).",
    ),
    counter(
        "tidegate_upstream_retries_total",
        "upstream, address",
        "Requests that were sent once more, by the address of the first attempt.",
    ),
    gauge(
        "tidegate_upstream_requests_in_progress",
        "upstream, address",
        "Requests from the choice of the address until the response ends.",
    ),
    gauge(
        "tidegate_upstream_connections",
        "upstream, address",
        "Connections to an address, idle ones included.",
    ),
    gauge(
        "tidegate_upstream_ejected",
        "upstream, address",
        "1 while an address is not used after failures in a row.",
    ),
    counter(
        "tidegate_upstream_ejections_total",
        "upstream, address",
        "Number of times that an address was ejected.",
    ),
    gauge(
        "tidegate_upstream_healthy",
        "upstream, address",
        "0 while the health check of an address fails; 1 without a health check.",
    ),
    counter(
        "tidegate_settlements_total",
        "outcome",
        "Limits with `count`, `refund` or `actual` that requests were settled under: settled, not_open (settled before, expired, or never opened), failed (no answer from the store; the units stay taken).",
    ),
    counter(
        "tidegate_settled_units_total",
        "fate",
        "Differences between reserved and actual cost: returned, dropped (not returned: the window has ended, or the units have been refilled since), booked, unbooked (beyond the limit).",
    ),
    counter(
        "tidegate_shadow_requests_total",
        "domain, limit, outcome",
        "Requests by the decision of a shadow limit compared with the enforced one: agree, would_deny, would_allow.",
    ),
    counter(
        "tidegate_unknown_domain_requests_total",
        "domain",
        "Requests for domains that the policy does not have. At most 100 domains have a label of their own.",
    ),
    counter(
        "tidegate_unmatched_descriptors_total",
        "",
        "Descriptors that no limit of their domain applied to.",
    ),
    gauge("tidegate_store_memory_bytes", "", "Memory that the state takes in this process."),
    gauge("tidegate_store_keys", "", "Keys with state in this process, idle ones included."),
    counter("tidegate_store_evicted_total", "", "Keys evicted because memory was full."),
    counter(
        "tidegate_store_evicted_units_total",
        "",
        "Upper bound of the units that evicted keys had consumed.",
    ),
    counter(
        "tidegate_store_overflowed_total",
        "",
        "Decisions on the state that keys share when memory is full.",
    ),
    gauge(
        "tidegate_store_reservations",
        "",
        "Reservations in this process that were not settled, expired ones included until they are removed.",
    ),
    counter(
        "tidegate_store_unreserved_total",
        "",
        "Reservations that were not opened because memory was full; their units stay taken.",
    ),
    counter(
        "tidegate_deny_cache_hits_total",
        "",
        "Charges denied from the deny cache, without asking Redis.",
    ),
    gauge("tidegate_deny_cache_entries", "", "Entries of the deny cache, at most 65,536."),
    counter(
        "tidegate_lease_units_total",
        "fate",
        "Leased units: granted by Redis, spent, unspent (returned to the lease because another limit denied), expired, returned to Redis at shutdown. granted + unspent = spent + expired + returned + outstanding.",
    ),
    gauge("tidegate_lease_outstanding_units", "", "Leased units that can still be spent."),
    counter(
        "tidegate_lease_answers_total",
        "",
        "Charges decided from a lease, without asking Redis.",
    ),
    counter(
        "tidegate_local_charges_total",
        "outcome",
        "Charges decided by this node alone, by `local` limits and local overrides: allowed or denied.",
    ),
    gauge("tidegate_store_drill", "", "1 during an outage drill, else 0."),
    gauge("tidegate_local_overrides", "", "Keys with a local override, at most 1,000."),
    counter(
        "tidegate_store_errors_total",
        "kind",
        "Requests without a decision from Redis: unavailable, slow (later than the deadline), overloaded (too many requests in flight), refused (Redis rejects the commands).",
    ),
    counter(
        "tidegate_store_corrupt_states_total",
        "",
        "States in Redis that Tidegate cannot have written. Such a key counts as absent, and the next charge replaces it.",
    ),
    gauge(
        "tidegate_store_circuit",
        "server, state",
        "1 for the state of a server's circuit: closed (all requests), open (probes only), ramping (a growing share). The first server and every server that was unavailable once are listed, at most 64.",
    ),
    counter(
        "tidegate_store_circuit_trips_total",
        "server",
        "Times that a server's circuit was opened.",
    ),
    gauge("tidegate_store_round_trip_seconds", "server", "Mean round trip to a server."),
    gauge(
        "tidegate_store_deadline_seconds",
        "server",
        "Time after which requests are decided without the server.",
    ),
    gauge(
        "tidegate_store_findings",
        "condition",
        "Redis servers with a condition that weakens limits: eviction (keys are evicted, and their consumption with them), replica, persistence (nothing is written to disk), unchecked (the user lacks the right to check), registry (nodes cannot be counted). `/v1/status` has the servers and the fix.",
    ),
    gauge(
        "tidegate_nodes",
        "",
        "Number of nodes that share the limits: as set, or the largest count of the last minute (`nodes: auto`).",
    ),
    counter(
        "tidegate_fallback_charges_total",
        "mode",
        "Charges decided without Redis: by this node's share of the limit (local), admitted (allow), denied (deny).",
    ),
    gauge(
        "tidegate_fallback_owing_keys",
        "",
        "Keys with pending debits, which Redis is charged when it recovers; at most 65,536.",
    ),
    counter("tidegate_fallback_booked_keys_total", "", "Pending debits that Redis was charged."),
    counter("tidegate_fallback_booked_units_total", "", "Units of these debits."),
    counter(
        "tidegate_fallback_dropped_units_total",
        "",
        "Units admitted without Redis that it is never charged, for lack of room.",
    ),
    histogram("tidegate_store_seconds", "", "Time that requests waited for Redis."),
    counter(
        "ratelimit_service_rate_limit_total_hits",
        "domain, key1, key2",
        "As envoyproxy/ratelimit counts it.",
    ),
    counter(
        "ratelimit_service_rate_limit_over_limit",
        "domain, key1, key2",
        "As envoyproxy/ratelimit counts it; a denied request counts as a whole.",
    ),
    counter(
        "ratelimit_service_rate_limit_near_limit",
        "domain, key1, key2",
        "As envoyproxy/ratelimit counts it.",
    ),
    counter(
        "ratelimit_service_rate_limit_within_limit",
        "domain, key1, key2",
        "As envoyproxy/ratelimit counts it.",
    ),
    counter(
        "ratelimit_service_rate_limit_shadow_mode",
        "domain, key1, key2",
        "As envoyproxy/ratelimit counts it.",
    ),
    counter(
        "ratelimit_service_should_rate_limit_error",
        "err_type",
        "As envoyproxy/ratelimit counts it.",
    ),
    counter(
        "ratelimit_service_total_requests",
        "grpc_method",
        "As envoyproxy/ratelimit counts it.",
    ),
    histogram(
        "ratelimit_service_response_time_seconds",
        "grpc_method",
        "As envoyproxy/ratelimit measures it, to the microsecond.",
    ),
    counter("ratelimit_service_config_load_success", "", "As envoyproxy/ratelimit counts it."),
    counter("ratelimit_service_config_load_error", "", "As envoyproxy/ratelimit counts it."),
];

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Metrics

<!-- Written by the test `the_page_is_up_to_date` of tidegate-server from the table of metrics. -->

`GET /metrics` on the admin port (6070), in the text format of Prometheus. `process_*` exist on Linux.
`listener` is `RESP`, `HTTP`, `gRPC`, `gateway`, `admin` or `metrics`; `server` is the `host:port` of a Redis server.

At most 1,000 limits have labels of their own; the others are summed
under the limit `_overflow`, and further unknown domains under the domain `_overflow`. Keys are not labels, because
their number has no bound: `GET /v1/hot-keys` lists those with most requests and those with most denied requests. The
metrics whose names begin with `ratelimit_` exist with `--compat envoy`.

| metric | type | labels | meaning |
|---|---|---|---|
";

    #[test]
    fn the_page_is_up_to_date() {
        let mut page = HEAD.to_owned();
        for Metric { name, kind, labels, about } in METRICS {
            let kind = kind.as_str();
            page += &format!("| `{name}` | {kind} | {labels} | {about} |\n");
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let fresh = std::env::temp_dir().join("tidegate-metrics.md");
        std::fs::write(&fresh, &page).unwrap();
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(found == page, "cp {} docs/reference/metrics.md", fresh.display());
    }
}
