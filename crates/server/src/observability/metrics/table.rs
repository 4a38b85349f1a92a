//! Every metric there is. `docs/reference/metrics.md` is written from here.

/// One metric.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    /// The names of its labels, as they are written.
    #[cfg_attr(not(test), expect(dead_code, reason = "the reference page is made by a test"))]
    pub(crate) labels: &'static str,
    pub(crate) about: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: "counter", labels, about }
}

const fn gauge(name: &'static str, labels: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: "gauge", labels, about }
}

const fn histogram(name: &'static str, labels: &'static str, about: &'static str) -> Metric {
    Metric { name, kind: "histogram", labels, about }
}

/// All of them; those of envoyproxy/ratelimit last.
pub(crate) static METRICS: &[Metric] = &[
    gauge("tidegate_build_info", "version", "1; the label tells the release."),
    gauge("tidegate_uptime_seconds", "", "How long the daemon has run."),
    gauge("tidegate_draining", "", "1 once the daemon has been told to end."),
    counter(
        "tidegate_requests_total",
        "listener, verdict",
        "Requests that were decided (allowed, denied) or could not be (failed).",
    ),
    counter("tidegate_connections_total", "listener", "Connections that were opened."),
    gauge("tidegate_connections", "listener", "Connections that are open."),
    gauge(
        "tidegate_policy_info",
        "revision",
        "1; the label names the texts of the policy in force, the same on every node.",
    ),
    gauge(
        "tidegate_policy_loaded_timestamp_seconds",
        "",
        "When the policy was put in force; 0 if there is none.",
    ),
    counter(
        "tidegate_policy_loads_total",
        "outcome",
        "Policies that were put in force (loaded), and those that could not be (refused).",
    ),
    gauge("tidegate_overrides", "", "Overrides in force that were made on the admin port."),
    gauge("tidegate_kill_switches", "", "Kill switches that are on."),
    counter(
        "tidegate_limit_units_total",
        "domain, limit, outcome",
        "Units by what a limit of the policy said: within_limit, over_limit, of the former near_limit, of the latter shadow, and what was returned.",
    ),
    counter(
        "tidegate_shadow_requests_total",
        "domain, limit, outcome",
        "Requests of which a limit tried beside another said the same (agree) or not (would_deny, would_allow).",
    ),
    gauge("tidegate_store_memory_bytes", "", "Bytes that state takes in this process."),
    gauge("tidegate_store_keys", "", "Keys with state in this process, idle ones included."),
    counter("tidegate_store_evicted_total", "", "Keys that were forgotten for want of memory."),
    counter(
        "tidegate_store_forgotten_units_total",
        "",
        "At most so many units were forgotten with them.",
    ),
    counter(
        "tidegate_store_overflowed_total",
        "",
        "Decisions on a state that keys without room share.",
    ),
    counter(
        "tidegate_deny_cache_hits_total",
        "",
        "Charges that were denied without asking Redis, because Redis had and nothing could have changed.",
    ),
    gauge("tidegate_deny_cache_entries", "", "Denials that are remembered, at most 65536."),
    counter(
        "tidegate_lease_units_total",
        "fate",
        "Units taken ahead of requests (granted), and what became of them: spent (of which unspent, because another limit denied), expired, or returned at the end.",
    ),
    gauge("tidegate_lease_outstanding_units", "", "Units taken ahead that can still be spent."),
    counter(
        "tidegate_lease_answers_total",
        "",
        "Charges that were decided from units taken ahead, without asking Redis.",
    ),
    counter(
        "tidegate_local_charges_total",
        "outcome",
        "Charges that this node decided by itself: of `local` in policies, and of demoted keys.",
    ),
    gauge("tidegate_demoted_keys", "", "Keys that this node decides by itself, at most 1000."),
    counter(
        "tidegate_second_shards_total",
        "outcome",
        "Charges that one shard of a hot key denied, by what a second one said: allowed or denied.",
    ),
    counter(
        "tidegate_store_errors_total",
        "kind",
        "Requests that Redis gave no decision for: Redis was unavailable, answered after the deadline (slow), refused because of its setup (refused), or too many requests waited for it (overloaded).",
    ),
    counter(
        "tidegate_store_corrupt_states_total",
        "",
        "States read from Redis that Tidegate cannot have written: another type, or no numbers. Such a key counts as absent, and the next charge replaces it.",
    ),
    gauge(
        "tidegate_store_circuit",
        "endpoint, state",
        "1 for how a Redis server is asked: by all (closed), by nobody but a probe (open), by more and more (ramping). Servers are numbered, 64 are told apart; `/v1/status` tells their addresses.",
    ),
    counter(
        "tidegate_store_circuit_trips_total",
        "endpoint",
        "How often a Redis server was found to be gone.",
    ),
    gauge(
        "tidegate_store_round_trip_seconds",
        "endpoint",
        "Mean round trip to a Redis server, as measured.",
    ),
    gauge(
        "tidegate_store_deadline_seconds",
        "endpoint",
        "How long a Redis server may be silent before requests are decided without it.",
    ),
    gauge(
        "tidegate_store_findings",
        "condition",
        "Redis servers with a condition that weakens limits: eviction (keys are evicted, and with them their debt), replica, persistence (nothing is written to disk), unchecked (the user lacks the right to check), registry (nodes cannot be counted). `/v1/status` has the servers and the fix.",
    ),
    gauge(
        "tidegate_nodes",
        "",
        "Number of nodes that share the limits: as set, or the largest count of the last minute (`nodes: auto`).",
    ),
    counter(
        "tidegate_fallback_charges_total",
        "mode",
        "Charges that were decided without Redis: by this node's share of the limit (local), let in (allow), kept out (deny).",
    ),
    gauge(
        "tidegate_fallback_owing_keys",
        "",
        "Keys that were let in without Redis, to be booked there; at most 65,536.",
    ),
    counter(
        "tidegate_fallback_booked_keys_total",
        "",
        "Keys that were booked when Redis was back, each as often as it was.",
    ),
    counter("tidegate_fallback_booked_units_total", "", "Units that were booked with them."),
    counter(
        "tidegate_fallback_forgotten_units_total",
        "",
        "Units let in without Redis that will not be booked, for want of room.",
    ),
    histogram("tidegate_store_seconds", "", "How long requests waited for Redis."),
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

`GET /metrics` on the admin port (6070), in the text format of Prometheus. Labels are those of the table and no
others; of limits, 1,000 are told apart, and what further ones count is told as that of the limit `_overflow`.
`listener` is `RESP`, `HTTP`, `gRPC`, `admin` or `metrics`.

Keys are no labels, for there is no end of them: `GET /v1/hot-keys` tells those that come most and those that are
denied most. The metrics whose names begin with `ratelimit_` are there with `--compat envoy`.

| metric | type | labels | meaning |
|---|---|---|---|
";

    #[test]
    fn the_page_is_up_to_date() {
        let mut page = HEAD.to_owned();
        for Metric { name, kind, labels, about } in METRICS {
            page += &format!("| `{name}` | {kind} | {labels} | {about} |\n");
        }
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        let fresh = std::env::temp_dir().join("tidegate-metrics.md");
        std::fs::write(&fresh, &page).unwrap();
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(found == page, "cp {} docs/reference/metrics.md", fresh.display());
    }
}
