//! Watches the servers of a shared store: logs when they are unavailable at the start, when they
//! recover and when corrupt states were read, and runs the self-test once they answer.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use tidegate::store::breaker::{CircuitReport, CircuitState};
use tidegate::{Span, Timestamp};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::gate::Gate;
use crate::log::{Event, Level};
use crate::store::Watched;

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(500);

/// Looks until the daemon stops; at once over if all state is in this process.
pub(crate) async fn keep(gate: Gate, mut stopped: watch::Receiver<bool>) {
    let Some(watched) = gate.watched() else { return };
    if let Some(fault) = watched.store().fault() {
        gate.status().store_failed(gate.counters(), &fault);
    }
    let stopping = async { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let (mut stopping, mut vigil) = (pin!(stopping), Vigil::default());
    let mut corrupt = 0;
    while timeout(LOOK, stopping.as_mut()).await.is_err() {
        let before = std::mem::replace(&mut corrupt, watched.store().corrupt_states());
        if corrupt > before {
            let count = corrupt - before;
            let why = format!(
                "{count} states in Redis were not written by Tidegate, and count as absent; give \
                 Tidegate a namespace of its own"
            );
            gate.status().log().say(Level::Warn, Event::StoreCorrupt, why);
        }
        let circuits = watched.circuits();
        let is_open = |circuit: &CircuitReport| circuit.state == CircuitState::Open;
        if watched.store().fault().is_some() && !circuits.iter().any(is_open) {
            test(&gate, watched).await;
        }
        let back = vigil.look(gate.now(), &circuits);
        let told = back.into_iter().map(|(endpoint, away)| {
            let address = watched.store().address(endpoint);
            let address = address.unwrap_or_else(|| format!("server {endpoint}"));
            match away.as_micros() / 1_000_000 {
                0 => format!("{address} (after less than a second)"),
                seconds => format!("{address} (after {seconds} s)"),
            }
        });
        let told: Vec<String> = told.collect();
        if !told.is_empty() {
            let log = gate.status().log();
            // Whoever reads of an outage reads of its end.
            log.say(Level::Warn, Event::StoreBack, format!("asked again: {}", told.join(", ")));
        }
    }
}

/// Tests servers that did not answer at the start, or refused since. A fault that is left keeps the
/// daemon from being ready, if it takes a change of the setup, and is tested again.
async fn test(gate: &Gate, watched: &Watched) {
    let log = gate.status().log();
    match watched.store().self_test().await {
        Ok(_) => log.say(Level::Info, Event::StoreBack, "the self-test of the store passed"),
        Err(fault) => gate.status().store_failed(gate.counters(), &fault),
    }
}

/// What was seen of each endpoint that has ever been away: no more than the breaker tells apart.
#[derive(Debug, Default)]
struct Vigil(BTreeMap<usize, Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// How often it was away, as far as has been told.
    trips: u64,
    /// Since when it is.
    since: Option<Timestamp>,
}

impl Vigil {
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
        let mut vigil = Vigil::default();
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
