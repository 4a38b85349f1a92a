//! Circuit breakers: no request is sent to a server that does not answer.
//!
//! # Promise
//! An endpoint's circuit opens after five consecutive requests without an answer. Only these and
//! the requests sent before the fifth timed out wait for a server that does not answer. Later
//! requests fail at once with [`StoreError::CircuitOpen`], and a background probe reads one key
//! every 250 ms ± 20 %. After the first answer to a probe, a quarter of the keys is sent to the
//! server, and a quarter more every 100 ms.
//!
//! # Failures
//! A request that times out or cannot be sent counts against its endpoint; one whose charges go to
//! several endpoints counts against each. A refusal is an answer. [`StoreError::Overloaded`] does
//! not count either way.
//!
//! # Outage drill
//! During a drill every endpoint counts as unavailable, for at most [`MAX_DRILL`]. A drill ends by itself.

mod circuit;
mod drill;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tidegate_core::{Decision, Explanation, Limit, Op, Span, Timestamp};

use self::circuit::{Circuit, Heard, PROBE_INTERVAL, Ticket, pause};
use super::background::Background;
use super::shared::Layers;
use super::{Batch, Charge, DecisionSource, Store, StoreError};
use crate::key::OwnedKey;
use crate::sync::{Mutex, lock};

pub use self::circuit::CircuitState;
pub(super) use self::drill::Drill;
pub use self::drill::MAX_DRILL;

/// The most endpoints with a circuit of their own; further ones share these circuits.
pub const MAX_ENDPOINTS: usize = 64;

/// The `retry_after` of a charge whose server has just failed to answer.
pub(super) const USUAL_WAIT: Span = PROBE_INTERVAL;

type Number = dyn Fn(&Charge<'_>) -> usize + Send + Sync;

/// Maps each charge to the server of the store that decides it. Clones are handles to the same
/// function. By default, a store has one server.
#[derive(Clone, Default)]
pub struct Endpoints(Option<Arc<Number>>);

impl Endpoints {
    /// Endpoints that are numbered by a function.
    pub fn by(number: impl Fn(&Charge<'_>) -> usize + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(number)))
    }

    pub(super) fn of(&self, charge: &Charge<'_>) -> usize {
        self.0.as_ref().map_or(0, |number| number(charge) % MAX_ENDPOINTS)
    }
}

impl fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Endpoints(several)" } else { "Endpoints(one)" })
    }
}

/// The circuits of all endpoints.
#[derive(Debug)]
pub(super) struct Circuits([Endpoint; MAX_ENDPOINTS]);

#[derive(Debug, Default)]
struct Endpoint {
    /// One more than the ticket of a closed circuit, to be read without the lock; 0 if it is not closed.
    closed: AtomicU64,
    circuit: Mutex<Circuit>,
}

/// The state of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitReport {
    /// Its number.
    pub endpoint: usize,
    /// Which requests are sent.
    pub state: CircuitState,
    /// How often the circuit has opened.
    pub trips: u64,
}

/// The endpoints that a request is sent to, without duplicates; nearly always one.
#[derive(Debug, Default)]
struct Entered {
    first: Option<(usize, Ticket)>,
    others: Vec<(usize, Ticket)>,
}

impl Entered {
    fn iter(&self) -> impl Iterator<Item = &(usize, Ticket)> {
        self.first.iter().chain(&self.others)
    }
}

impl Endpoint {
    fn enter_closed(&self) -> Option<Ticket> {
        self.closed.load(Ordering::Relaxed).checked_sub(1).map(Ticket::of)
    }

    /// Changes the circuit, and publishes whether it is closed.
    fn with<T>(&self, work: impl FnOnce(&mut Circuit) -> T) -> T {
        let mut circuit = lock(&self.circuit);
        let value = work(&mut circuit);
        let closed = circuit.enter_closed().map_or(0, |ticket| ticket.number() + 1);
        self.closed.store(closed, Ordering::Relaxed);
        value
    }
}

impl Default for Circuits {
    fn default() -> Self {
        let endpoints = std::array::from_fn(|_| Endpoint::default());
        endpoints.iter().for_each(|endpoint| endpoint.with(|_| ()));
        Self(endpoints)
    }
}

impl Circuits {
    /// The state of each endpoint that was ever unavailable, and of the first.
    pub(super) fn reports(&self, now: Timestamp) -> Vec<CircuitReport> {
        let report = |(endpoint, place): (usize, &Endpoint)| {
            let circuit = lock(&place.circuit);
            CircuitReport { endpoint, state: circuit.state(now), trips: circuit.trips() }
        };
        let all = self.0.iter().enumerate().map(report);
        all.filter(|report| report.endpoint == 0 || report.trips > 0).collect()
    }
}

impl<S: Store + 'static> Layers<S> {
    /// Admits a charge to the circuit of its endpoint. Reads the clock itself, because the request may have
    /// waited since it arrived.
    fn enter(&self, charge: &Charge<'_>) -> Result<(usize, Ticket), StoreError> {
        let endpoint = self.endpoints.of(charge);
        if let Some(left) = self.drill.left(&self.clock) {
            return Err(StoreError::Drill { retry_after: left });
        }
        let place = &self.circuits.0[endpoint];
        if let Some(ticket) = place.enter_closed() {
            return Ok((endpoint, ticket));
        }
        let now = self.clock.now();
        let ticket = place.with(|circuit| circuit.enter(now, charge.key.number()));
        let open = |retry_after| StoreError::CircuitOpen { retry_after };
        ticket.map(|ticket| (endpoint, ticket)).map_err(open)
    }

    /// Checks whether a charge may be sent, and fails with the error of its endpoint otherwise.
    /// Sends nothing.
    pub(super) fn is_sendable(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.enter(charge).map(drop)
    }

    fn enter_all(&self, charges: &[Charge<'_>]) -> Result<Entered, StoreError> {
        let mut entered = Entered::default();
        for charge in charges {
            let (endpoint, ticket) = self.enter(charge)?;
            if entered.first.is_none() {
                entered.first = Some((endpoint, ticket));
            } else if entered.iter().all(|(known, _)| *known != endpoint) {
                entered.others.push((endpoint, ticket));
            }
        }
        Ok(entered)
    }

    /// Sends a batch to the store, if the circuits of its endpoints allow it.
    pub(super) async fn send(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let entered = self.enter_all(batch.charges)?;
        let outcome = self.store.decide(now, batch, decisions).await;
        self.leave(now, &entered, batch.charges, &outcome);
        outcome
    }

    /// Sends the request for an explanation.
    pub(super) async fn send_explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        let charges = std::slice::from_ref(charge);
        let entered = self.enter_all(charges)?;
        let outcome = self.store.explain(now, charge).await;
        self.leave(now, &entered, charges, &outcome);
        outcome
    }

    /// Records the outcome of a request that arrived at `now`.
    fn leave<T>(
        &self,
        now: Timestamp,
        entered: &Entered,
        charges: &[Charge<'_>],
        outcome: &Result<T, StoreError>,
    ) {
        let Some(heard) = heard(outcome) else { return };
        // An answer is recorded at the request's arrival time, which saves a second clock reading.
        let now = if heard == Heard::Answer { now } else { self.clock.now() };
        let pause = pause(self.background.chance());
        for (endpoint, ticket) in entered.iter() {
            let place = &self.circuits.0[*endpoint];
            if place.with(|circuit| circuit.leave(now, *ticket, heard, pause)) {
                let belongs = |charge: &&Charge<'_>| self.endpoints.of(charge) == *endpoint;
                // If its keys have moved since, any key of the request will do.
                if let Some(example) = charges.iter().find(belongs).or(charges.first()) {
                    self.start_probe(*endpoint, example, pause);
                }
            }
        }
    }

    /// Opens the circuit of the endpoint that decides `charge`, for a server that is known to be
    /// unavailable before the first request. A probe closes it as soon as the server answers.
    pub(super) fn open_circuit(&self, charge: &Charge<'_>) {
        let (now, pause) = (self.clock.now(), pause(self.background.chance()));
        let endpoint = self.endpoints.of(charge);
        if self.circuits.0[endpoint].with(|circuit| circuit.trip(now, pause)) {
            self.start_probe(endpoint, charge, pause);
        }
    }

    fn start_probe(&self, endpoint: usize, example: &Charge<'_>, pause: Span) {
        let (layers, background) = (self.this.clone(), self.background.clone());
        let example = (OwnedKey::of(example.key), *example.limit);
        self.background.spawn(probe((layers, background), endpoint, example, pause));
    }
}

/// Probes an endpoint with reads of one of its keys until it answers or the store is dropped.
async fn probe<S: Store + 'static>(
    (layers, background): (Weak<Layers<S>>, Background),
    endpoint: usize,
    (key, limit): (OwnedKey, Limit),
    first: Span,
) {
    let mut wait = first;
    loop {
        background.sleep(wait).await;
        let Some(layers) = layers.upgrade() else { return };
        let question = Charge::new(key.key(), &limit, Op::Read(0));
        let mut decisions = Vec::with_capacity(1);
        let now = layers.clock.now();
        let asked = layers.store.decide(now, Batch::one(&question), &mut decisions).await;
        let heard = heard(&asked).unwrap_or(Heard::Silence);
        wait = pause(background.chance());
        let now = layers.clock.now();
        if layers.circuits.0[endpoint].with(|circuit| circuit.probed(now, heard, wait)) {
            return;
        }
    }
}

/// Whether an outcome shows that the server answered; `None` if it shows neither.
const fn heard<T>(outcome: &Result<T, StoreError>) -> Option<Heard> {
    match outcome {
        Ok(_) | Err(StoreError::Misconfigured(..) | StoreError::Protocol(_)) => Some(Heard::Answer),
        Err(StoreError::Timeout | StoreError::Slow(_) | StoreError::Unavailable(_)) => {
            Some(Heard::Silence)
        }
        Err(StoreError::Overloaded | StoreError::CircuitOpen { .. } | StoreError::Drill { .. }) => {
            None
        }
    }
}
