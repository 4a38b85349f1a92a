//! What the daemon has counted, as Prometheus reads it and as envoyproxy/ratelimit tells it.
//!
//! # Bounds
//! Labels are those of [`table::METRICS`] and no others. Limits are told apart up to [`MAX_LIMITS`];
//! what further ones have counted is told together, as that of the limit `_overflow`.

mod envoy;
pub(crate) mod table;

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::policy::{LimitStats, OVERFLOW};
use tidegate::store::OnStoreFailure;
use tidegate::store::breaker::{CircuitReport, CircuitState};
use tidegate::store::fallback::FallbackStats;
use tidegate::store::redis::{Condition, Timing};

use self::table::METRICS;
use crate::observability::findings;
use crate::observability::status::{BOUNDS, Times};
use crate::service::RateLimitService;
use crate::store::SharedStore;
use crate::transport::Protocol;

pub(crate) use self::envoy::{rules, stats};

/// The most limits that are told apart.
pub(crate) const MAX_LIMITS: usize = 1_000;

/// What the content type of metrics is.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics.
pub(crate) fn text(service: &RateLimitService, with_envoy_names: bool) -> String {
    let mut page = Page::default();
    process(service, &mut page);
    listeners(service, &mut page);
    policy(service, &mut page);
    limits(service, &mut page);
    store(service, &mut page);
    if with_envoy_names {
        envoy::metrics(service, &mut page);
    }
    page.text
}

/// Metrics as they are written, one after the other.
#[derive(Debug, Default)]
struct Page {
    text: String,
    /// The metric whose head was written last.
    head: &'static str,
}

impl Page {
    /// One line; with the head of its metric, if it is the first.
    fn line(&mut self, name: &'static str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.suffixed(name, "", labels, value);
    }

    fn suffixed(
        &mut self,
        name: &'static str,
        suffix: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        if self.head != name {
            self.head = name;
            let metric = METRICS.iter().find(|metric| metric.name == name);
            debug_assert!(metric.is_some(), "{name} is not in the table");
            if let Some(metric) = metric {
                let (about, kind) = (metric.about, metric.kind);
                let _ = writeln!(self.text, "# HELP {name} {about}\n# TYPE {name} {kind}");
            }
        }
        let _ = write!(self.text, "{name}{suffix}");
        for (number, (label, value)) in labels.iter().enumerate() {
            let start = if number == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{start}{label}=\"{}\"", escaped(value));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{end} {value}");
    }

    fn histogram(&mut self, name: &'static str, labels: &[(&str, &str)], times: &Times) {
        for (bound, count) in BOUNDS.iter().zip(times.at_most) {
            let bound = seconds(*bound);
            let labels: Vec<_> = labels.iter().copied().chain([("le", &*bound)]).collect();
            self.suffixed(name, "_bucket", &labels, count);
        }
        let all: Vec<_> = labels.iter().copied().chain([("le", "+Inf")]).collect();
        self.suffixed(name, "_bucket", &all, times.count);
        self.suffixed(name, "_sum", labels, seconds(times.micros));
        self.suffixed(name, "_count", labels, times.count);
    }
}

/// Microseconds as seconds, exactly.
fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// As Prometheus wants the value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn process(service: &RateLimitService, page: &mut Page) {
    let version = env!("CARGO_PKG_VERSION");
    page.line("tidegate_build_info", &[("version", version)], 1);
    let uptime = service.now().since(service.status().started());
    page.line("tidegate_uptime_seconds", &[], seconds(uptime.as_micros()));
    page.line("tidegate_draining", &[], u8::from(service.status().is_draining()));
}

fn listeners(service: &RateLimitService, page: &mut Page) {
    let listeners =
        Protocol::ALL.map(|listener| (listener.name(), service.status().listener(listener)));
    for (listener, stats) in &listeners[..3] {
        for (verdict, count) in
            [("allowed", stats.allowed), ("denied", stats.denied), ("failed", stats.failed)]
        {
            let labels = [("listener", *listener), ("verdict", verdict)];
            page.line("tidegate_requests_total", &labels, count);
        }
    }
    for (listener, stats) in &listeners {
        page.line("tidegate_connections_total", &[("listener", listener)], stats.connections);
    }
    for (listener, stats) in &listeners {
        page.line("tidegate_connections", &[("listener", listener)], stats.open);
    }
}

fn policy(service: &RateLimitService, page: &mut Page) {
    let policy = service.status().policy();
    let revision = policy.revision.map(|revision| revision.to_string()).unwrap_or_default();
    page.line("tidegate_policy_info", &[("revision", &revision)], 1);
    let loaded_at = policy.loaded_at.map_or(0, |at| at.as_micros());
    page.line("tidegate_policy_loaded_timestamp_seconds", &[], seconds(loaded_at));
    for (outcome, count) in [("loaded", policy.loaded), ("refused", policy.refused)] {
        page.line("tidegate_policy_loads_total", &[("outcome", outcome)], count);
    }
    let controls = service.limiter().controls();
    let overrides = controls.overrides().filter(|(_, it)| service.now() < it.until).count();
    page.line("tidegate_overrides", &[], overrides);
    page.line("tidegate_kill_switches", &[], controls.switches().count());
}

fn limits(service: &RateLimitService, page: &mut Page) {
    let policy = service.policy();
    let mut told: Vec<(&str, &str, LimitStats)> = Vec::new();
    let mut beside = Vec::new();
    let mut rest = LimitStats::default();
    for domain in policy.domains() {
        for limit in domain.rules().iter().flat_map(tidegate::policy::Rule::limits) {
            if told.len() == MAX_LIMITS {
                rest += limit.stats();
                continue;
            }
            told.push((domain.name(), limit.id(), limit.stats()));
            beside.extend(limit.shadow().map(|it| (domain.name(), limit.id(), it.agreement())));
        }
    }
    told.sort_unstable_by_key(|(domain, limit, _)| (*domain, *limit));
    if rest != LimitStats::default() {
        told.push((OVERFLOW, OVERFLOW, rest));
    }
    for (domain, limit, stats) in told {
        for (outcome, units) in [
            ("within_limit", stats.within_limit),
            ("over_limit", stats.over_limit),
            ("near_limit", stats.near_limit),
            ("shadow", stats.shadow_mode),
            ("returned", stats.total_negative_hits),
        ] {
            let labels = [("domain", domain), ("limit", limit), ("outcome", outcome)];
            page.line("tidegate_limit_units_total", &labels, units);
        }
    }
    for (domain, limit, agreement) in beside {
        for (outcome, count) in [
            ("agree", agreement.agree),
            ("would_deny", agreement.would_deny),
            ("would_allow", agreement.would_allow),
        ] {
            let labels = [("domain", domain), ("limit", limit), ("outcome", outcome)];
            page.line("tidegate_shadow_requests_total", &labels, count);
        }
    }
}

fn store(service: &RateLimitService, page: &mut Page) {
    if let Some(memory) = service.memory() {
        page.line("tidegate_store_memory_bytes", &[], memory.bytes);
        page.line("tidegate_store_keys", &[], memory.keys);
        page.line("tidegate_store_evicted_total", &[], memory.evicted);
        page.line("tidegate_store_forgotten_units_total", &[], memory.forgotten_units);
        page.line("tidegate_store_overflowed_total", &[], memory.overflowed);
    }
    if let Some((hits, entries)) = service.deny_cache() {
        page.line("tidegate_deny_cache_hits_total", &[], hits);
        page.line("tidegate_deny_cache_entries", &[], entries);
    }
    if let Some(leases) = service.leases() {
        let each = [
            ("granted", leases.granted),
            ("spent", leases.spent),
            ("unspent", leases.unspent),
            ("returned", leases.returned),
            ("expired", leases.expired),
        ];
        for (fate, units) in each {
            page.line("tidegate_lease_units_total", &[("fate", fate)], units);
        }
        page.line("tidegate_lease_outstanding_units", &[], leases.outstanding);
        page.line("tidegate_lease_answers_total", &[], leases.answered);
    }
    if let Some(local) = service.local() {
        for (outcome, count) in [("allowed", local.allowed), ("denied", local.denied)] {
            page.line("tidegate_local_charges_total", &[("outcome", outcome)], count);
        }
        let demoted = service.limiter().controls().demotions().count(service.time(service.now()));
        page.line("tidegate_demoted_keys", &[], demoted);
    }
    if let Some(shards) = service.shards() {
        let denied = shards.asked_again.saturating_sub(shards.let_in_again);
        for (outcome, count) in [("allowed", shards.let_in_again), ("denied", denied)] {
            page.line("tidegate_second_shards_total", &[("outcome", outcome)], count);
        }
    }
    for (kind, count) in service.status().store_errors() {
        page.line("tidegate_store_errors_total", &[("kind", kind.as_str())], count);
    }
    if let Some(watched) = service.shared_store() {
        let corrupt = watched.store().corrupt_states();
        page.line("tidegate_store_corrupt_states_total", &[], corrupt);
        let reports = watched.circuits();
        circuits(&reports, page);
        timing(&reports, watched, page);
        let findings = watched.store().findings();
        for condition in Condition::ALL {
            let labels = [("condition", condition.as_str())];
            page.line("tidegate_store_findings", &labels, findings::count(&findings, condition));
        }
    }
    if let Some(nodes) = service.nodes() {
        page.line("tidegate_nodes", &[], nodes.count());
    }
    if let Some(store) = service.shared_store() {
        fallback(&store.stats().fallback, page);
    }
    let times = service.status().times(|thread| &thread.store_times);
    page.histogram("tidegate_store_seconds", &[], &times);
}

fn circuits(circuits: &[CircuitReport], page: &mut Page) {
    for circuit in circuits {
        let endpoint = circuit.endpoint.to_string();
        for state in CircuitState::ALL {
            let labels = [("endpoint", &*endpoint), ("state", state.as_str())];
            page.line("tidegate_store_circuit", &labels, u8::from(circuit.state == state));
        }
    }
    for circuit in circuits {
        let endpoint = circuit.endpoint.to_string();
        let labels = [("endpoint", &*endpoint)];
        page.line("tidegate_store_circuit_trips_total", &labels, circuit.trips);
    }
}

fn timing(circuits: &[CircuitReport], watched: &SharedStore, page: &mut Page) {
    let timed = circuits.iter().filter_map(|circuit| {
        Some((circuit.endpoint.to_string(), watched.store().timing(circuit.endpoint)?))
    });
    let timed: Vec<_> = timed.collect();
    let micros = |time: Duration| seconds(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    for (endpoint, Timing { round_trip, .. }) in &timed {
        if let Some(round_trip) = round_trip {
            let labels = [("endpoint", &**endpoint)];
            page.line("tidegate_store_round_trip_seconds", &labels, micros(*round_trip));
        }
    }
    for (endpoint, Timing { deadline, .. }) in &timed {
        let labels = [("endpoint", &**endpoint)];
        page.line("tidegate_store_deadline_seconds", &labels, micros(*deadline));
    }
}

fn fallback(stats: &FallbackStats, page: &mut Page) {
    for (mode, count) in OnStoreFailure::ALL.iter().zip(stats.answered) {
        page.line("tidegate_fallback_charges_total", &[("mode", mode.as_str())], count);
    }
    page.line("tidegate_fallback_owing_keys", &[], stats.owing_keys);
    page.line("tidegate_fallback_booked_keys_total", &[], stats.booked_keys);
    page.line("tidegate_fallback_booked_units_total", &[], stats.booked_units);
    page.line("tidegate_fallback_forgotten_units_total", &[], stats.forgotten_units);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_exactly() {
        for (micros, text) in [(0, "0"), (1, "0.000001"), (1_500_000, "1.5"), (10_000_000, "10")] {
            assert_eq!(seconds(micros), text);
        }
    }

    #[test]
    fn labels_cannot_break_out() {
        let mut page = Page::default();
        page.line("tidegate_policy_info", &[("revision", "a\"\\\nb")], 1);
        let line = page.text.lines().last().unwrap();
        assert_eq!(line, "tidegate_policy_info{revision=\"a\\\"\\\\\\nb\"} 1");
    }
}
