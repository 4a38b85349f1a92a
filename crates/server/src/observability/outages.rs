//! Watches the servers of a shared store. Logs when an outage begins and when it ends, corrupt states,
//! and conditions that weaken limits. Runs the self-test when servers first answer.
//!
//! ```text
//!   circuits, error counters ──every 500 ms──▶ Outages ──▶ began: warn or error, ended: info
//! ```
//!
//! The decision path only counts; it does not log.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tidegate::store::StoreError;
use tidegate::store::circuits::{CircuitReport, CircuitState};
use tidegate::{Span, Timestamp};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{error, info, warn};

use crate::observability::findings::Reported;
use crate::observability::status::StoreFailure;
use crate::service::RateLimitService;
use crate::store::SharedStore;

/// How often the circuits, the counters and the findings are read.
const INTERVAL: Duration = Duration::from_millis(500);
/// Number of intervals between two inspections of the servers: once a minute.
const INSPECTION: u32 = 120;
/// Failures of one kind are logged if they last for this long. Within this time a circuit may open,
/// whose outage covers them.
const GRACE: Span = Span::from_secs(2);
/// Failures of one kind have ended if none was counted for this long.
const QUIET: Span = Span::from_secs(5);

/// Watches until the daemon stops. Returns at once if all state is in this process.
pub(crate) async fn watch(service: RateLimitService, mut stopped: watch::Receiver<bool>) {
    let Some(store) = service.shared_store() else { return };
    let stopping = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let (mut stopping, mut outages) = (pin!(stopping), Outages::default());
    let (mut reported, mut corrupt, mut intervals) = (Reported::default(), 0, 0);
    let mut is_drill = false;
    loop {
        reported.report(store.store().findings());
        corrupt = report_corrupt(store, corrupt);
        is_drill = report_drill(store, is_drill);
        for change in outages.observe(&Observation::of(&service, store)) {
            change.log(store);
        }
        if timeout(INTERVAL, stopping.as_mut()).await.is_ok() {
            return;
        }
        intervals += 1;
        tokio::select! {
            _ = stopping.as_mut() => return,
            () = examine(store, &mut intervals) => {}
        }
    }
}

/// Tests servers whose last test failed, as soon as they answer, and inspects the others once a minute.
async fn examine(store: &SharedStore, intervals: &mut u32) {
    let is_open = |circuit: &CircuitReport| circuit.state == CircuitState::Open;
    if store.circuits().iter().any(is_open) {
        return;
    }
    let store = store.store();
    if store.fault().is_some() {
        // The store keeps the fault, which the next observation reads.
        let _ = store.self_test().await;
    } else if *intervals >= INSPECTION || !store.is_inspected() {
        *intervals = 0;
        // The findings are read from the store. Failures are counted by the requests that have
        // them.
        let _ = store.inspect().await;
    }
}

/// Logs the begin and the end of an outage drill. Returns whether a drill is in progress.
fn report_drill(store: &SharedStore, was_drill: bool) -> bool {
    let left = store.drill();
    match left {
        Some(left) if !was_drill => warn!(
            event = "drill_began",
            seconds = left.as_micros().div_ceil(1_000_000),
            "an outage drill is under way: the store counts as unavailable"
        ),
        None if was_drill => info!(event = "drill_ended", "the outage drill is over"),
        _ => {}
    }
    left.is_some()
}

/// Logs states that Tidegate cannot have written. Returns their number so far.
fn report_corrupt(store: &SharedStore, known: u64) -> u64 {
    let corrupt = store.store().corrupt_states();
    if corrupt > known {
        warn!(
            event = "store_corrupt",
            states = corrupt - known,
            "states in Redis were not written by Tidegate and count as absent; give Tidegate a \
             namespace of its own"
        );
    }
    corrupt
}

/// The state of the store at one time.
#[derive(Debug)]
struct Observation {
    now: Timestamp,
    circuits: Vec<CircuitReport>,
    /// Failed requests so far, by kind.
    failed: [(StoreFailure, u64); StoreFailure::ALL.len()],
    /// Whether the self-test was refused.
    is_refused: bool,
}

impl Observation {
    fn of(service: &RateLimitService, store: &SharedStore) -> Self {
        let is_refused = |fault: StoreError| StoreFailure::of(&fault) == StoreFailure::Refused;
        Self {
            now: service.now(),
            circuits: store.circuits(),
            failed: service.status().store_errors(),
            is_refused: store.store().fault().is_some_and(is_refused),
        }
    }
}

/// Outages that were logged as begun and have not ended. There is one entry per server of the
/// breaker, at most 64.
#[derive(Debug, Default)]
struct Outages {
    servers: BTreeMap<usize, ServerOutage>,
    failures: [Failures; StoreFailure::ALL.len()],
}

#[derive(Debug, Default)]
struct ServerOutage {
    /// How often the circuit was opened.
    trips: u64,
    /// Set while the circuit is not closed.
    since: Option<Timestamp>,
}

/// Failures of one kind while every circuit is closed.
#[derive(Debug, Default)]
struct Failures {
    /// Counted so far.
    known: u64,
    under_way: Option<Episode>,
}

#[derive(Debug)]
struct Episode {
    since: Timestamp,
    last: Timestamp,
    failed: u64,
    is_logged: bool,
}

/// An outage that has begun or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    ServerUnavailable(usize),
    ServerRecovered(usize, Span),
    FailuresBegan(StoreFailure),
    FailuresEnded { kind: StoreFailure, after: Span, failed: u64 },
}

impl Outages {
    /// The outages that have begun or ended since the last observation.
    fn observe(&mut self, seen: &Observation) -> Vec<Change> {
        let mut changes = Vec::new();
        let is_under_way = |server: &ServerOutage| server.since.is_some();
        let mut is_outage = self.servers.values().any(is_under_way);
        for circuit in seen.circuits.iter().filter(|circuit| circuit.trips > 0) {
            let server = self.servers.entry(circuit.endpoint).or_default();
            if circuit.trips > server.trips && server.since.is_none() {
                server.since = Some(seen.now);
                is_outage = true;
                changes.push(Change::ServerUnavailable(circuit.endpoint));
            }
            server.trips = circuit.trips;
            if circuit.state == CircuitState::Closed
                && let Some(since) = server.since.take()
            {
                changes.push(Change::ServerRecovered(circuit.endpoint, seen.now.since(since)));
            }
        }
        for ((kind, counted), failures) in seen.failed.into_iter().zip(&mut self.failures) {
            let failed = counted.saturating_sub(failures.known);
            failures.known = counted;
            let is_refusal = kind == StoreFailure::Refused;
            if is_outage && !is_refusal {
                // These requests failed because of the outage, which is logged for each server.
                failures.under_way = None;
                continue;
            }
            let is_failing = failed > 0 || (is_refusal && seen.is_refused);
            changes.extend(failures.observe(kind, seen.now, is_failing.then_some(failed)));
        }
        changes
    }
}

impl Failures {
    /// `failed` is `None` if there is no sign of failure.
    fn observe(
        &mut self,
        kind: StoreFailure,
        now: Timestamp,
        failed: Option<u64>,
    ) -> Option<Change> {
        match (&mut self.under_way, failed) {
            (Some(episode), Some(more)) => {
                episode.last = now;
                episode.failed += more;
                let is_late = !episode.is_logged && now.since(episode.since) >= GRACE;
                episode.is_logged |= is_late;
                is_late.then_some(Change::FailuresBegan(kind))
            }
            (Some(episode), None) if now.since(episode.last) >= QUIET => {
                let (after, failed) = (episode.last.since(episode.since), episode.failed);
                let ended = Change::FailuresEnded { kind, after, failed };
                let ended = episode.is_logged.then_some(ended);
                self.under_way = None;
                ended
            }
            (None, Some(failed)) => {
                // An operator has to act on a refusal: it does not open a circuit.
                let is_logged = kind == StoreFailure::Refused;
                self.under_way = Some(Episode { since: now, last: now, failed, is_logged });
                is_logged.then_some(Change::FailuresBegan(kind))
            }
            _ => None,
        }
    }
}

impl Change {
    fn log(self, store: &SharedStore) {
        let server = |endpoint: usize| store.store().address(endpoint);
        let last = |kind: StoreFailure| {
            let errors = [store.store().fault(), store.failure().map(|(_, error)| error)];
            let error = errors.into_iter().flatten().find(|error| StoreFailure::of(error) == kind);
            error.map_or_else(|| kind.as_str().to_owned(), |error| error.to_string())
        };
        let seconds = |span: Span| span.as_micros() / 1_000_000;
        match self {
            Self::ServerUnavailable(endpoint) => {
                let why = store.failure().map(|(_, error)| error.to_string());
                let why = why.unwrap_or_else(|| last(StoreFailure::Unavailable));
                warn!(event = "store_unavailable", server = server(endpoint), "{why}");
            }
            Self::ServerRecovered(endpoint, after) => info!(
                event = "store_recovered",
                server = server(endpoint),
                seconds = seconds(after),
                "the store is available again"
            ),
            Self::FailuresBegan(kind @ StoreFailure::Refused) => {
                error!(event = kind.event(), "{}", last(kind));
            }
            Self::FailuresBegan(kind) => warn!(event = kind.event(), "{}", last(kind)),
            Self::FailuresEnded { kind, after, failed } => info!(
                event = "store_recovered",
                ended = kind.event(),
                seconds = seconds(after),
                failed,
                "the store decides requests again"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOSED: CircuitState = CircuitState::Closed;
    const OPEN: CircuitState = CircuitState::Open;

    fn circuit(endpoint: usize, state: CircuitState, trips: u64) -> CircuitReport {
        CircuitReport { endpoint, state, trips }
    }

    /// Counts in the order of [`StoreFailure::ALL`].
    fn seen(secs: u64, circuits: &[CircuitReport], failed: [u64; 4]) -> Observation {
        let mut failed = failed.into_iter();
        Observation {
            now: Timestamp::from_secs(100 + secs),
            circuits: circuits.to_vec(),
            failed: StoreFailure::ALL.map(|kind| (kind, failed.next().unwrap_or_default())),
            is_refused: false,
        }
    }

    #[test]
    fn an_outage_is_logged_when_it_begins_and_when_it_ends() {
        use Change::{ServerRecovered, ServerUnavailable};
        let mut outages = Outages::default();
        let mut observe = |secs, circuits: &[_]| outages.observe(&seen(secs, circuits, [0; 4]));
        assert_eq!(observe(0, &[circuit(0, CLOSED, 0)]), []);
        let begun = observe(1, &[circuit(0, OPEN, 1), circuit(3, OPEN, 1)]);
        assert_eq!(begun, [ServerUnavailable(0), ServerUnavailable(3)]);
        // A probe that fails opens the circuit again: it is the same outage.
        assert_eq!(observe(2, &[circuit(0, CircuitState::Ramping, 1), circuit(3, OPEN, 2)]), []);
        let ended = observe(3, &[circuit(0, CLOSED, 1), circuit(3, OPEN, 2)]);
        assert_eq!(ended, [ServerRecovered(0, Span::from_secs(2))]);
        let ended = observe(9, &[circuit(0, CLOSED, 1), circuit(3, CLOSED, 3)]);
        assert_eq!(ended, [ServerRecovered(3, Span::from_secs(8))]);
        assert_eq!(observe(10, &[circuit(0, CLOSED, 1), circuit(3, CLOSED, 3)]), []);
        // The outage began and ended between two observations.
        let both = observe(11, &[circuit(0, CLOSED, 2)]);
        assert_eq!(both, [ServerUnavailable(0), ServerRecovered(0, Span::ZERO)]);
    }

    #[test]
    fn failures_without_an_open_circuit_are_one_outage() {
        use StoreFailure::{Refused, Slow};
        let mut outages = Outages::default();
        let closed = [circuit(0, CLOSED, 0)];
        let mut observe = |secs, failed| outages.observe(&seen(secs, &closed, failed));
        assert_eq!(observe(0, [0, 7, 0, 0]), [], "a circuit may open");
        assert_eq!(observe(1, [0, 8, 0, 0]), []);
        assert_eq!(observe(2, [0, 9, 0, 0]), [Change::FailuresBegan(Slow)]);
        assert_eq!(observe(3, [0, 10, 0, 0]), []);
        assert_eq!(observe(7, [0, 10, 0, 0]), [], "a pause is no end");
        let ended = Change::FailuresEnded { kind: Slow, after: Span::from_secs(3), failed: 10 };
        assert_eq!(observe(8, [0, 10, 0, 0]), [ended]);
        assert_eq!(observe(9, [0, 11, 0, 1]), [Change::FailuresBegan(Refused)]);
        // One failure alone is counted, and not logged.
        assert_eq!(observe(13, [0, 11, 0, 2]), []);
        assert_eq!(observe(15, [0, 11, 0, 2]), []);
    }

    /// While a circuit is open, the requests that fail are a part of its outage.
    #[test]
    fn failures_of_an_outage_are_not_logged_beside_it() {
        let mut outages = Outages::default();
        let (open, closed) = ([circuit(0, OPEN, 1)], [circuit(0, CLOSED, 1)]);
        assert_eq!(outages.observe(&seen(0, &[circuit(0, CLOSED, 0)], [3, 0, 0, 0])), []);
        let begun = outages.observe(&seen(1, &open, [5, 1, 0, 0]));
        assert_eq!(begun, [Change::ServerUnavailable(0)]);
        assert_eq!(outages.observe(&seen(4, &open, [50, 1, 0, 0])), []);
        let ended = outages.observe(&seen(5, &closed, [60, 1, 0, 0]));
        assert_eq!(ended, [Change::ServerRecovered(0, Span::from_secs(4))]);
        let refused = Observation { is_refused: true, ..seen(6, &closed, [60, 1, 0, 0]) };
        let begun = outages.observe(&refused);
        assert_eq!(begun, [Change::FailuresBegan(StoreFailure::Refused)]);
    }
}
