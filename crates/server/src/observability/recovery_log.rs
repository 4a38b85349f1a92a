//! Watches the servers of a shared store. Logs when they are unavailable at the start, when they
//! recover, when corrupt states were read, and conditions that weaken limits. Runs the self-test when
//! servers first answer.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tidegate::store::breaker::{CircuitReport, CircuitState};
use tidegate::{Span, Timestamp};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::observability::findings::Reported;
use crate::observability::log::{Event, Level};
use crate::service::RateLimitService;
use crate::store::SharedStore;

/// How often the circuits and the findings are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// After so many looks the servers are inspected again: once a minute.
const INSPECTION: u32 = 120;

/// Looks until the daemon stops; at once over if all state is in this process.
pub(crate) async fn keep(service: RateLimitService, mut stopped: watch::Receiver<bool>) {
    let Some(watched) = service.shared_store() else { return };
    if let Some(fault) = watched.store().fault() {
        service.status().log_store_failure(&fault);
    }
    let stopping = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let (mut stopping, mut vigil) = (pin!(stopping), RecoveryLog::default());
    let (mut reported, mut corrupt, mut looks) = (Reported::default(), 0, 0);
    loop {
        reported.report(watched.store().findings(), service.status().log());
        if timeout(LOOK, stopping.as_mut()).await.is_ok() {
            return;
        }
        corrupt = report_corrupt(&service, watched, corrupt);
        looks += 1;
        tokio::select! {
            _ = stopping.as_mut() => return,
            () = examine(&service, watched, &mut looks) => {}
        }
        report_recovered(&service, watched, &mut vigil);
    }
}

/// Tests servers whose last test failed, as soon as they answer, and inspects the others once a minute.
async fn examine(service: &RateLimitService, watched: &SharedStore, looks: &mut u32) {
    let store = watched.store();
    let is_open = |circuit: &CircuitReport| circuit.state == CircuitState::Open;
    if watched.circuits().iter().any(is_open) {
        return;
    }
    if store.fault().is_some() {
        match store.self_test().await {
            Ok(_) => {
                let log = service.status().log();
                log.say(Level::Info, Event::StoreBack, "the self-test of the store passed");
            }
            Err(fault) => service.status().log_store_failure(&fault),
        }
    } else if *looks >= INSPECTION || !store.is_inspected() {
        *looks = 0;
        // What is wrong with a server is reported by the requests that it fails.
        let _ = store.inspect().await;
    }
}

/// Logs states that were read and that Tidegate cannot have written. Returns how many there are by now.
fn report_corrupt(service: &RateLimitService, watched: &SharedStore, known: u64) -> u64 {
    let corrupt = watched.store().corrupt_states();
    if corrupt > known {
        let count = corrupt - known;
        let why = format!(
            "{count} states in Redis were not written by Tidegate, and count as absent; give \
             Tidegate a namespace of its own"
        );
        service.status().log().say(Level::Warn, Event::StoreCorrupt, why);
    }
    corrupt
}

/// Logs servers that are asked again, as loudly as their outage was.
fn report_recovered(service: &RateLimitService, watched: &SharedStore, vigil: &mut RecoveryLog) {
    let recovered = vigil.look(service.now(), &watched.circuits());
    let recovered: Vec<String> = recovered
        .into_iter()
        .map(|(endpoint, outage)| {
            let address = watched.store().address(endpoint);
            let address = address.unwrap_or_else(|| format!("server {endpoint}"));
            match outage.as_micros() / 1_000_000 {
                0 => format!("{address} (after less than a second)"),
                seconds => format!("{address} (after {seconds} s)"),
            }
        })
        .collect();
    if !recovered.is_empty() {
        let text = format!("asked again: {}", recovered.join(", "));
        service.status().log().say(Level::Warn, Event::StoreBack, text);
    }
}

/// What was seen of each endpoint that has ever been away: no more than the breaker tells apart.
#[derive(Debug, Default)]
struct RecoveryLog(BTreeMap<usize, Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// How often it was away, as far as has been told.
    trips: u64,
    /// Since when it is.
    since: Option<Timestamp>,
}

impl RecoveryLog {
    /// The endpoints that are back since the last look, and for how long each was seen to be away.
    fn look(&mut self, now: Timestamp, circuits: &[CircuitReport]) -> Vec<(usize, Span)> {
        let mut back = Vec::new();
        for circuit in circuits.iter().filter(|circuit| circuit.trips > 0) {
            let seen = self.0.entry(circuit.endpoint).or_default();
            if circuit.state != CircuitState::Closed {
                seen.since.get_or_insert(now);
            } else if circuit.trips > seen.trips {
                let since = seen.since.take().unwrap_or(now);
                seen.trips = circuit.trips;
                back.push((circuit.endpoint, now.since(since)));
            }
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_return_is_told_once() {
        let mut vigil = RecoveryLog::default();
        let circuit = |endpoint, state, trips| CircuitReport { endpoint, state, trips };
        let mut look = |secs: u64, circuits: &[CircuitReport]| {
            vigil.look(Timestamp::from_secs(100 + secs), circuits)
        };
        let (closed, open) = (CircuitState::Closed, CircuitState::Open);
        assert_eq!(look(0, &[circuit(0, closed, 0)]), [], "it was never away");
        assert_eq!(look(1, &[circuit(0, open, 1), circuit(3, open, 1)]), []);
        assert_eq!(look(2, &[circuit(0, CircuitState::Ramping, 1), circuit(3, open, 1)]), []);
        let back = look(3, &[circuit(0, closed, 1), circuit(3, open, 1)]);
        assert_eq!(back, [(0, Span::from_secs(2))]);
        let back = look(9, &[circuit(0, closed, 1), circuit(3, closed, 2)]);
        assert_eq!(back, [(3, Span::from_secs(8))]);
        assert_eq!(look(10, &[circuit(0, closed, 1), circuit(3, closed, 2)]), [], "told already");
        // Between two looks it came and went.
        assert_eq!(look(11, &[circuit(0, closed, 2)]), [(0, Span::ZERO)]);
    }
}
