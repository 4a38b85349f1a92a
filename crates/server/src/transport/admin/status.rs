//! Status documents of the admin API.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tidegate::Timestamp;
use tidegate::concurrency::ConcurrencyStats;
use tidegate::policy::{LocallyDecided, OtherNumbers, Switch, in_words};
use tidegate::store::DomainRevision;
use tidegate::store::circuits::CircuitReport;
use tidegate::store::redis::{Finding, Node, RegistryReport};

use crate::observability::hot_keys::{HotKey, MAX_LISTED};
use crate::observability::utc::Utc;
use crate::service::RateLimitService;
use crate::store::SharedStore;
use crate::transport::gateway::{Outcome, Upstream};

/// Why the daemon is not ready; `None` if it is. Asks the store. An unavailable store does not
/// count, because the policy defines the fallback; a misconfigured store does, because an operator
/// has to act.
pub(crate) async fn reason(service: &RateLimitService) -> Option<String> {
    if let Some(why) = service.status().reason() {
        return Some(why.to_owned());
    }
    service.probe().await.err().filter(|error| !error.is_outage()).map(|error| error.to_string())
}

/// The status of the daemon and of its store.
pub(super) async fn status(service: &RateLimitService) -> Value {
    let reason = reason(service).await;
    let mut document = json!({
        "ready": reason.is_none(),
        "reason": reason,
        "state": if service.is_degraded() { "degraded" } else { "healthy" },
        "store": { "kind": if service.is_local() { "memory" } else { "redis" } },
    });
    let limiters = service.limiter().protection_stats();
    if !limiters.is_empty() {
        let limiter = |(domain, name, stats): &(Box<str>, Box<str>, ConcurrencyStats)| {
            json!({
                "domain": domain,
                "protect": name,
                "limit": stats.limit,
                "in_flight": stats.in_flight,
                "queued": stats.queued,
                "baseline_ms": stats.baseline.map(|time| time.as_secs_f64() * 1_000.0),
                "shed": stats.shed(),
            })
        };
        document["concurrency"] = limiters.iter().map(limiter).collect();
    }
    if let Some(upstreams) = service.status().upstreams() {
        document["upstreams"] = upstreams.all().iter().map(|it| upstream(it)).collect();
    }
    if let Some(store) = service.shared_store() {
        let endpoint = |circuit: CircuitReport| {
            let timing = store.store().timing(circuit.endpoint);
            let millis = |time: Duration| time.as_secs_f64() * 1_000.0;
            json!({
                "endpoint": circuit.endpoint,
                "address": store.store().address(circuit.endpoint),
                "circuit": circuit.state.as_str(),
                "trips": circuit.trips,
                "round_trip_ms": timing.and_then(|timing| timing.round_trip).map(millis),
                "deadline_ms": timing.map(|timing| millis(timing.deadline)),
            })
        };
        let endpoints: Vec<Value> = store.circuits().into_iter().map(endpoint).collect();
        let failure = store.failure();
        let failure =
            failure.map(|(at, error)| json!({ "at": time(at), "error": error.to_string() }));
        document["store"]["endpoints"] = endpoints.into();
        document["store"]["last_failure"] = failure.into();
        document["store"]["owing_keys"] = store.stats().fallback.owing_keys.into();
        let finding = |it: Finding| json!({ "server": it.server, "condition": it.condition.as_str(), "message": it.message });
        let findings: Vec<Value> = store.store().findings().into_iter().map(finding).collect();
        document["store"]["findings"] = findings.into();
        document["store"]["drill"] = drill(service)["drill"].take();
        document["nodes"] = node_count(service);
        let registry = store.store().registry();
        document["repair"] = json!({
            "active": store.store().repairs(),
            "lagging": lagging(&registry),
        });
    }
    document
}

/// The outage drill under way, if any, and the seconds that it still takes.
pub(super) fn drill(service: &RateLimitService) -> Value {
    let left = service.shared_store().and_then(SharedStore::drill);
    let left = left.map(|left| left.as_micros().div_ceil(1_000_000));
    json!({ "drill": left.map(|seconds| json!({ "seconds_left": seconds })) })
}

/// The live nodes that share the store.
pub(super) fn nodes(service: &RateLimitService) -> Value {
    let Some(store) = service.shared_store() else { return json!({ "nodes": [], "count": 1 }) };
    let registry = store.store().registry();
    let node = |node: &Node| {
        let domains = node.domains.iter().map(revision).collect::<Map<String, Value>>();
        json!({
            "id": node.id,
            "this": node.is_own,
            "last_seen": time(node.seen),
            "policy": domains,
        })
    };
    let mut document = node_count(service);
    document["nodes"] = registry.nodes.iter().map(node).collect();
    document["lagging"] = lagging(&registry);
    document["read_at"] = registry.read_at.map(time).into();
    document["error"] = registry.error.map(|error| error.to_string()).into();
    document
}

/// The number of nodes that share the limits, and whether the registry counts them.
fn node_count(service: &RateLimitService) -> Value {
    let (count, is_auto) =
        service.nodes().map_or((1, false), |it| (it.count().get(), it.is_auto()));
    json!({ "count": count, "auto": is_auto })
}

/// Nodes with a policy that differs from this node's.
fn lagging(registry: &RegistryReport) -> Value {
    let lags = |(id, domains): &(String, Vec<DomainRevision>)| json!({ "id": id, "policy": domains.iter().map(revision).collect::<Map<String, Value>>() });
    registry.lagging.iter().map(lags).collect()
}

fn revision(it: &DomainRevision) -> (String, Value) {
    (it.domain.to_string(), format!("{:016x}", it.revision).into())
}

pub(super) fn policy(service: &RateLimitService) -> Value {
    let status = service.status().policy();
    let policy = service.policy();
    let limits =
        policy.domains().flat_map(|it| it.rules()).map(|rule| rule.limits().len()).sum::<usize>();
    let mut domains: Vec<&str> = policy.domains().map(|domain| domain.name()).collect();
    domains.sort_unstable();
    json!({
        "revision": status.revision.map(|revision| revision.to_string()),
        "files": status.files,
        "loaded_at": status.loaded_at.map(time),
        "loaded": status.loaded,
        "refused": status.refused,
        "refusal": status.refusal,
        "domains": domains,
        "limits": limits,
        "overrides": overrides(service)["overrides"],
        "kill_switch": switches(service)["kill_switch"],
        "local_overrides": service.limiter().controls().local_overrides().count(service.time(service.now())),
    })
}

pub(super) fn overrides(service: &RateLimitService) -> Value {
    let (controls, now) = (service.limiter().controls(), service.time(service.now()));
    let overrides: Vec<Value> = controls
        .overrides()
        .filter(|(_, it)| now < it.until)
        .map(|(id, it)| {
            let mut document = json!({ "limit": id, "until": time(it.until), "reason": it.reason });
            match &it.numbers {
                OtherNumbers::Percent(percent) => document["percent"] = (*percent).into(),
                OtherNumbers::Limit(limit) => {
                    document["numbers"] = in_words(limit).to_string().into()
                }
            }
            document
        })
        .collect();
    json!({ "overrides": overrides })
}

pub(super) fn local_overrides(service: &RateLimitService) -> Value {
    let (controls, now) = (service.limiter().controls(), service.time(service.now()));
    let values = service.status().key_values();
    let document = |it: &LocallyDecided| {
        let entry = |(key, value): &(String, String)| (key.clone(), values.show_text(value));
        json!({
            "domain": it.domain,
            "descriptor": it.entries.iter().map(entry).collect::<Vec<_>>(),
            "nodes": it.local_override.nodes.count(),
            "until": it.local_override.until.map(time),
            "reason": it.local_override.reason,
        })
    };
    let holds = |it: &&LocallyDecided| it.local_override.until.is_none_or(|until| now < until);
    let local_overrides: Vec<Value> =
        controls.local_overrides().iter().filter(holds).map(document).collect();
    json!({ "local_overrides": local_overrides })
}

pub(super) fn switches(service: &RateLimitService) -> Value {
    let controls = service.limiter().controls();
    let document = |switch: &Switch| match switch {
        Switch::All => json!({ "all": true }),
        Switch::Domain(name) => json!({ "domain": name }),
        Switch::Limit(id) => json!({ "limit": id }),
    };
    let switches: Vec<Value> = controls.switches().map(document).collect();
    json!({ "kill_switch": switches })
}

pub(super) fn hot_keys(service: &RateLimitService) -> Value {
    let document = |denied: bool| -> Vec<Value> {
        let document = |HotKey { key, requests }| json!({ "key": key, "requests": requests });
        service.status().hot_keys(denied).into_iter().map(document).collect()
    };
    json!({ "at_most": MAX_LISTED, "asked": document(false), "denied": document(true) })
}

fn time(at: Timestamp) -> String {
    Utc(at).to_string()
}

/// A service behind the gateway.
fn upstream(upstream: &Upstream) -> Value {
    let addresses = upstream.addresses.iter().map(|address| {
        let outcomes = Outcome::ALL.map(|it| (it.name().to_owned(), address.outcomes(it).into()));
        json!({
            "address": address.name,
            "requests": Map::from_iter(outcomes),
            "retries": address.retries(),
            "in_progress": address.in_progress(),
            "connections": address.connections(),
            "ejected": address.is_ejected(),
            "ejections": address.ejections(),
            "healthy": address.is_healthy(),
        })
    });
    json!({ "upstream": upstream.settings.name, "addresses": addresses.collect::<Vec<_>>() })
}
