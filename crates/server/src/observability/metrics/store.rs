//! Metrics of the store, of Redis and of the layers in front of it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tidegate::store::OnStoreFailure;
use tidegate::store::circuits::CircuitState;
use tidegate::store::fallback::FallbackStats;
use tidegate::store::redis::{Condition, Timing};

use super::page::{Labels, Page};
use crate::observability::findings;
use crate::service::RateLimitService;
use crate::store::SharedStore;

const NONE: &Labels<'_> = &[];

pub(super) fn encode(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    if let Some(memory) = service.memory() {
        page.value("tidegate_store_memory_bytes", memory.bytes)?;
        page.value("tidegate_store_keys", memory.keys)?;
        page.value("tidegate_store_evicted_total", memory.evicted)?;
        page.value("tidegate_store_evicted_units_total", memory.evicted_units)?;
        page.value("tidegate_store_overflowed_total", memory.overflowed)?;
        page.value("tidegate_store_reservations", memory.reservations)?;
        page.value("tidegate_store_unreserved_total", memory.unreserved)?;
    }
    layers(service, page)?;
    let errors = service.status().store_errors();
    let errors = errors.map(|(kind, count)| ([("kind", kind.as_str())], count));
    page.family("tidegate_store_errors_total", errors)?;
    if let Some(store) = service.shared_store() {
        page.value("tidegate_store_corrupt_states_total", store.store().corrupt_states())?;
        servers(store, page)?;
        let found = store.store().findings();
        let found = Condition::ALL.map(|condition| {
            ([("condition", condition.as_str())], findings::count(&found, condition))
        });
        page.family("tidegate_store_findings", found)?;
    }
    if let Some(nodes) = service.nodes() {
        page.value("tidegate_nodes", u64::from(nodes.count().get()))?;
    }
    if let Some(store) = service.shared_store() {
        page.value("tidegate_store_drill", u64::from(store.drill().is_some()))?;
        fallback(&store.stats().fallback, page)?;
    }
    let times = service.status().times(|thread| &thread.store_times);
    page.histograms("tidegate_store_seconds", [(NONE, times)])
}

/// The layers in front of Redis.
fn layers(service: &RateLimitService, page: &mut Page<'_, '_>) -> fmt::Result {
    if let Some((hits, entries)) = service.deny_cache() {
        page.value("tidegate_deny_cache_hits_total", hits)?;
        page.value("tidegate_deny_cache_entries", entries)?;
    }
    if let Some(leases) = service.leases() {
        let units = [
            ("granted", leases.granted),
            ("spent", leases.spent),
            ("unspent", leases.unspent),
            ("returned", leases.returned),
            ("expired", leases.expired),
        ];
        let units = units.map(|(fate, units)| ([("fate", fate)], units));
        page.family("tidegate_lease_units_total", units)?;
        page.value("tidegate_lease_outstanding_units", leases.outstanding)?;
        page.value("tidegate_lease_answers_total", leases.answered)?;
    }
    if let Some(local) = service.local() {
        let charges = outcomes(local.allowed, local.denied);
        page.family("tidegate_local_charges_total", charges)?;
        let count =
            service.limiter().controls().local_overrides().count(service.time(service.now()));
        page.value("tidegate_local_overrides", count)?;
    }
    Ok(())
}

fn outcomes(allowed: u64, denied: u64) -> [([(&'static str, &'static str); 1], u64); 2] {
    [([("outcome", "allowed")], allowed), ([("outcome", "denied")], denied)]
}

/// One server. Two stores on one server count as one.
#[derive(Debug)]
struct Server {
    state: CircuitState,
    trips: u64,
    timing: Option<Timing>,
}

fn servers(store: &SharedStore, page: &mut Page<'_, '_>) -> fmt::Result {
    let mut servers: BTreeMap<String, Server> = BTreeMap::new();
    for circuit in store.circuits() {
        // A server that has left its cluster has no address.
        let Some(address) = store.store().address(circuit.endpoint) else { continue };
        let timing = store.store().timing(circuit.endpoint);
        let server = servers.entry(address).or_insert(Server {
            state: CircuitState::Closed,
            trips: 0,
            timing,
        });
        server.trips += circuit.trips;
        if circuit.state != CircuitState::Closed {
            server.state = circuit.state;
        }
    }
    let states = servers.iter().flat_map(|(address, server)| {
        CircuitState::ALL.map(|state| {
            ([("server", &**address), ("state", state.as_str())], server.state == state)
        })
    });
    page.family("tidegate_store_circuit", states)?;
    let trips = servers.iter().map(|(address, server)| ([("server", &**address)], server.trips));
    page.family("tidegate_store_circuit_trips_total", trips)?;
    let times = |which: fn(&Timing) -> Option<Duration>| {
        let time = move |(address, server): (&'_ String, &'_ Server)| {
            Some((address.clone(), which(server.timing.as_ref()?)?.as_secs_f64()))
        };
        servers.iter().filter_map(time).collect::<Vec<_>>()
    };
    for (name, times) in [
        ("tidegate_store_round_trip_seconds", times(|timing| timing.round_trip)),
        ("tidegate_store_deadline_seconds", times(|timing| Some(timing.deadline))),
    ] {
        page.family(name, times.iter().map(|(address, time)| ([("server", &**address)], *time)))?;
    }
    Ok(())
}

fn fallback(stats: &FallbackStats, page: &mut Page<'_, '_>) -> fmt::Result {
    let charges = OnStoreFailure::ALL.iter().zip(stats.answered);
    let charges = charges.map(|(mode, count)| ([("mode", mode.as_str())], count));
    page.family("tidegate_fallback_charges_total", charges)?;
    page.value("tidegate_fallback_owing_keys", stats.owing_keys)?;
    page.value("tidegate_fallback_booked_keys_total", stats.booked_keys)?;
    page.value("tidegate_fallback_booked_units_total", stats.booked_units)?;
    page.value("tidegate_fallback_dropped_units_total", stats.dropped_units)
}
