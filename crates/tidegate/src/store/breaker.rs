//! A store whose servers are not asked while they are gone: a slow one must not keep every request
//! waiting for its deadline, and one that comes back must not be run over.
//!
//! # Promise
//! Per endpoint: at most five requests in a row, and what was sent before they were given up, wait for
//! a server that does not answer; from then on a request is told so at once
//! ([`StoreError::Away`]), and a probe in the background looks every 250 ms, give or take a fifth.
//! What a probe asks changes nothing. A server that answers it is asked by a quarter of the keys, and
//! by a quarter more every 100 ms.
//!
//! # What counts
//! A request that times out or cannot be sent counts against its endpoint; one whose charges go to
//! several counts against each of them, for nobody knows which was silent. A refusal is an answer, and
//! too many requests of our own say nothing of the server.

mod circuit;

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tidegate_core::{Decision, Explanation, Limit, Op, Span, Timestamp};

use self::circuit::{Circuit, Heard, PROBES_APART, Ticket, pause};
use super::background::Background;
use super::{Charge, DecisionSource, Store, StoreError};
use crate::clock::Clock;
use crate::key::{Key, Scope};

pub use self::circuit::CircuitState;

/// The most endpoints that are told apart; further ones share the circuits of these.
pub const MAX_ENDPOINTS: usize = 64;

/// How long to wait for a server of which nothing is known but that it was silent just now.
pub(super) const USUAL_WAIT: Span = PROBES_APART;

/// A store that is not asked while it is gone.
#[derive(Debug)]
pub struct Breaker<S>(Arc<Inner<S>>);

#[derive(Debug)]
struct Inner<S> {
    store: S,
    clock: Clock,
    /// Where probes run.
    background: Background,
    places: [Endpoint; MAX_ENDPOINTS],
}

/// What is known of one endpoint.
#[derive(Debug, Default)]
struct Endpoint {
    /// What lets a request ask while nothing is wrong there, so that nobody has to wait for the lock to
    /// learn it; 0 if something is.
    closed: AtomicU64,
    circuit: Mutex<Circuit>,
}

/// What is known of one endpoint, for those who run the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitReport {
    /// Its number.
    pub endpoint: usize,
    /// How it is asked.
    pub state: CircuitState,
    /// How often it was found to be gone.
    pub trips: u64,
}

/// The endpoints that a request was let in to, each once. Nearly always it is one, which takes no memory
/// of its own.
#[derive(Debug, Default)]
struct Entered {
    first: Option<(usize, Ticket)>,
    others: Vec<(usize, Ticket)>,
}

impl Entered {
    fn iter(&self) -> impl Iterator<Item = &(usize, Ticket)> {
        self.first.iter().chain(&self.others)
    }

    fn add(&mut self, endpoint: usize, ticket: Ticket) {
        if self.iter().any(|(known, _)| *known == endpoint) {
            return;
        }
        match self.first {
            None => self.first = Some((endpoint, ticket)),
            Some(_) => self.others.push((endpoint, ticket)),
        }
    }
}

/// A key that an endpoint decides on, to ask it whether it is back.
#[derive(Debug)]
struct Example {
    scope: Scope,
    text: Box<[u8]>,
    tag: Box<[u8]>,
    limit: Limit,
}

impl Example {
    fn of(charge: &Charge<'_>) -> Self {
        let Key { scope, text, tag } = charge.key;
        Self { scope, text: text.into(), tag: tag.into(), limit: *charge.limit }
    }

    /// Changes nothing.
    fn question(&self) -> Charge<'_> {
        let key = Key::new(self.scope, &self.text).tagged(&self.tag);
        Charge::new(key, &self.limit, Op::Read(0))
    }
}

impl Endpoint {
    fn lock(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of whether the circuit is closed, for those who do not lock it.
    fn note(&self, circuit: &Circuit) {
        let closed = circuit.enter_closed().map_or(0, |ticket| ticket.number() + 1);
        self.closed.store(closed, Ordering::Relaxed);
    }

    /// Lets any key ask, if everybody may.
    fn enter_closed(&self) -> Option<Ticket> {
        self.closed.load(Ordering::Relaxed).checked_sub(1).map(Ticket::of)
    }

    /// Does something to the circuit, and takes note of whether it is closed.
    fn with<T>(&self, work: impl FnOnce(&mut Circuit) -> T) -> T {
        let mut circuit = self.lock();
        let value = work(&mut circuit);
        self.note(&circuit);
        value
    }
}

impl<S: Store + 'static> Breaker<S> {
    /// Watches over `store`, by the time of `clock`. Probes run in the tokio runtime that this is
    /// called in.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "redis")]
    pub fn new(store: S, clock: Clock) -> Self {
        Self::on(store, clock, &Background::tokio())
    }

    /// The same, with probes that run elsewhere.
    pub fn on(store: S, clock: Clock, background: &Background) -> Self {
        let background = background.clone();
        let places = std::array::from_fn(|_| Endpoint::default());
        for place in &places {
            place.note(&place.lock());
        }
        Self(Arc::new(Inner { store, clock, background, places }))
    }

    /// The store that is watched over.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Opens the circuit of the endpoint that decides `charge`, for a server that is known to be
    /// unavailable before the first request. A probe closes it as soon as the server answers.
    pub fn open(&self, charge: &Charge<'_>) {
        let inner = &self.0;
        let (now, pause) = (inner.clock.now(), pause(inner.background.chance()));
        let endpoint = inner.store.endpoint(charge) % MAX_ENDPOINTS;
        if inner.place(endpoint).with(|circuit| circuit.trip(now, pause)) {
            inner.start_probe(endpoint, charge, pause);
        }
    }

    /// What is known of every endpoint that has ever been gone, and of the first.
    pub fn circuits(&self) -> Vec<CircuitReport> {
        let now = self.0.clock.now();
        let report = |(endpoint, place): (usize, &Endpoint)| {
            let circuit = place.lock();
            CircuitReport { endpoint, state: circuit.state(now), trips: circuit.trips() }
        };
        let all = self.0.places.iter().enumerate().map(report);
        all.filter(|report| report.endpoint == 0 || report.trips > 0).collect()
    }
}

impl<S: Store> Inner<S> {
    fn place(&self, endpoint: usize) -> &Endpoint {
        &self.places[endpoint % MAX_ENDPOINTS]
    }

    /// Whether a charge may be sent, without sending it.
    fn ready(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        let place = self.place(self.store.endpoint(charge));
        if place.enter_closed().is_some() {
            return Ok(());
        }
        let now = self.clock.now();
        let entered = place.with(|circuit| circuit.enter(now, charge.key.number()));
        entered.map(drop).map_err(away)
    }

    /// Lets charges in to every endpoint that they go to, or to none. By the time it is, and not when the
    /// request came: it may have waited since.
    fn enter(&self, charges: &[Charge<'_>]) -> Result<Entered, StoreError> {
        let mut entered = Entered::default();
        for charge in charges {
            let endpoint = self.store.endpoint(charge) % MAX_ENDPOINTS;
            let place = self.place(endpoint);
            let ticket = match place.enter_closed() {
                Some(ticket) => Ok(ticket),
                None => {
                    let now = self.clock.now();
                    place.with(|circuit| circuit.enter(now, charge.key.number()))
                }
            };
            entered.add(endpoint, ticket.map_err(away)?);
        }
        Ok(entered)
    }
}

impl<S: Store + 'static> Inner<S> {
    /// Takes note of what came of it.
    fn leave<T>(
        self: &Arc<Self>,
        entered: &Entered,
        charges: &[Charge<'_>],
        outcome: &Result<T, StoreError>,
    ) {
        let Some(heard) = heard(outcome) else { return };
        let now = self.clock.now();
        for (endpoint, ticket) in entered.iter() {
            let pause = pause(self.background.chance());
            let place = self.place(*endpoint);
            if place.with(|circuit| circuit.leave(now, *ticket, heard, pause)) {
                let belongs =
                    |charge: &&Charge<'_>| self.store.endpoint(charge) % MAX_ENDPOINTS == *endpoint;
                // If its keys have moved since, any of the request's tells as much.
                if let Some(example) = charges.iter().find(belongs).or(charges.first()) {
                    self.start_probe(*endpoint, example, pause);
                }
            }
        }
    }

    fn start_probe(self: &Arc<Self>, endpoint: usize, example: &Charge<'_>, pause: Span) {
        let (inner, background) = (Arc::downgrade(self), self.background.clone());
        let work = probe(inner, background, endpoint, Example::of(example), pause);
        self.background.spawn(work);
    }
}

/// Asks an endpoint whether it is back until it is, or nobody wants to know any more.
async fn probe<S: Store>(
    inner: Weak<Inner<S>>,
    background: Background,
    endpoint: usize,
    example: Example,
    first: Span,
) {
    let mut wait = first;
    loop {
        background.sleep(wait).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut decisions = Vec::with_capacity(1);
        let question = [example.question()];
        let asked = inner.store.decide(inner.clock.now(), &question, &mut decisions).await;
        let heard = heard(&asked).unwrap_or(Heard::Silence);
        wait = pause(background.chance());
        let now = inner.clock.now();
        if inner.place(endpoint).with(|circuit| circuit.probed(now, heard, wait)) {
            return;
        }
    }
}

/// What an outcome says of the server, if anything.
const fn heard<T>(outcome: &Result<T, StoreError>) -> Option<Heard> {
    match outcome {
        Ok(_) | Err(StoreError::Misconfigured(..) | StoreError::Protocol(_)) => Some(Heard::Answer),
        Err(StoreError::Timeout | StoreError::Slow(_) | StoreError::Unavailable(_)) => {
            Some(Heard::Silence)
        }
        Err(StoreError::Overloaded | StoreError::Away { .. }) => None,
    }
}

const fn away(retry_after: Span) -> StoreError {
    StoreError::Away { retry_after }
}

impl<S: Store + 'static> Store for Breaker<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let entered = self.0.enter(charges)?;
        let outcome = self.0.store.decide(now, charges, decisions).await;
        self.0.leave(&entered, charges, &outcome);
        outcome
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let entered = self.0.enter(charges)?;
        let outcome = self.0.store.decide_each(now, charges, decisions).await;
        self.0.leave(&entered, charges, &outcome);
        outcome
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        let charges = slice::from_ref(charge);
        let entered = self.0.enter(charges)?;
        let outcome = self.0.store.explain(now, charge).await;
        self.0.leave(&entered, charges, &outcome);
        outcome
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.0.store.endpoint(charge)
    }

    fn ready(&self, _now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.0.ready(charge)
    }

    fn limits_changed(&self) {
        self.0.store.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.0.store.clock(local)
    }
}
