//! A request for two keys, when the store is available for one of them only.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use tidegate::store::background::Background;
use tidegate::store::circuits::Endpoints;
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate::{Explanation, Key, ManualClock, Scope};
use tidegate_core::{Algorithm, Decision, Limit, Op, Rate, Span, State, Timestamp};
use tidegate_sim::world::Idle;

const NOW: Timestamp = Timestamp::from_secs(1_000);
const DOWN: &[u8] = b"on a server that is unavailable";
const UP: &[u8] = b"on a server that answers";

/// Two servers. One is unavailable, the other answers as soon as a test sets the state of its key.
#[derive(Debug, Default)]
struct Halves(Mutex<Option<State>>);

impl Store for Halves {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let charges = batch.charges;
        assert!(charges.iter().all(|charge| charge.key.text == UP));
        poll_fn(|_| match &mut *self.0.lock().unwrap() {
            None => Poll::Pending,
            Some(state) => {
                let decide = |it: &Charge<'_>| it.limit.decide(state, now, it.op);
                decisions.extend(charges.iter().map(decide));
                Poll::Ready(Ok(DecisionSource::Store))
            }
        })
        .await
    }

    async fn explain(&self, _: Timestamp, _: &Charge<'_>) -> Result<Explanation, StoreError> {
        Err(StoreError::Timeout)
    }
}

/// One unit of both keys.
fn both(limit: &Limit) -> [Charge<'_>; 2] {
    let key = |text| Key::new(Scope::new("together", limit), text);
    [DOWN, UP].map(|text| Charge::new(key(text), limit, Op::Take(1)))
}

/// Has the store answer a request from this state.
fn answers<F: Future<Output = Result<DecisionSource, StoreError>>>(
    store: &SharedStore<Halves>,
    request: Pin<&mut F>,
    known: &State,
) {
    *store.store().0.lock().unwrap() = Some(known.clone());
    let answered = request.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(answered, Poll::Ready(Ok(_))));
    *store.store().0.lock().unwrap() = None;
}

/// Polls a request until it waits for the store.
fn waits<F: Future>(mut request: Pin<&mut F>) -> Pin<&mut F> {
    assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    request
}

/// Asks for one unit of both keys. Returns the keys with pending debits before the store has answered, whether the
/// request is admitted, and the keys with pending debits after that.
fn asked(
    store: &SharedStore<Halves>,
    now: Timestamp,
    limit: &Limit,
    known: &State,
) -> (usize, bool, usize) {
    let (charges, mut decisions) = (both(limit), Vec::new());
    let waiting = {
        let mut request = pin!(store.decide(now, Batch::together(&charges), &mut decisions));
        let asks = request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        let waiting = store.stats().fallback.owing_keys;
        // The store is not asked for a request that the share denies.
        if asks {
            answers(store, request.as_mut(), known);
        }
        waiting
    };
    (waiting, decisions.iter().all(Decision::is_allowed), store.stats().fallback.owing_keys)
}

/// A single node: its share of twelve units a minute is three, because the other server has not answered yet.
fn node() -> (SharedStore<Halves>, ManualClock, Limit, State) {
    let clock = ManualClock::at(NOW);
    let limit = Limit::token_bucket(Rate::per_minute(12)).burst(12).build().unwrap();
    let endpoints = Endpoints::by(|charge| usize::from(charge.key.text == UP));
    // A denial that is repeated would not wait for the store.
    let options = SharedOptions::default().endpoints(endpoints).refund_staleness(Span::ZERO);
    let background = Background::new(Idle);
    let store = SharedStore::start(Halves::default(), &options, clock.clone().into(), &background);
    let store = store.unwrap();
    store.open_circuit(&both(&limit)[0]);
    let mut empty = State::default();
    limit.decide(&mut empty, NOW, Op::Take(12));
    (store, clock, limit, empty)
}

/// Debits are made while the request waits for the other server, so none may be pending before its answer.
#[test]
fn a_denied_request_leaves_no_pending_debit() {
    let (store, _, limit, empty) = node();
    for _ in 0..5 {
        assert_eq!(asked(&store, NOW, &limit, &empty), (0, false, 0), "and the share gets it back");
    }
    // All three units of the share: a quarter of the limit.
    for _ in 0..3 {
        assert!(asked(&store, NOW, &limit, &State::default()).1);
    }
    assert_eq!(store.stats().fallback.owing_keys, 1);
    // What the share denied is not given back, whatever the store answers.
    for known in [&empty, &State::default(), &empty, &State::default()] {
        assert!(!asked(&store, NOW, &limit, known).1);
    }
}

/// A request that waits for one key holds units of the other, but not for longer.
#[test]
fn an_abandoned_request_leaves_the_share_as_it_was() {
    let (store, _, limit, _) = node();
    for _ in 0..5 {
        let (charges, mut decisions) = (both(&limit), Vec::new());
        waits(pin!(store.decide(NOW, Batch::together(&charges), &mut decisions)));
    }
    let admitted = (0..5).filter(|_| asked(&store, NOW, &limit, &State::default()).1);
    assert_eq!(admitted.count(), 3);
}

/// What the share refilled while the request waited for the other server is not given back as well.
#[test]
fn a_share_is_no_larger_for_a_request_that_is_denied() {
    let (store, clock, limit, empty) = node();
    let charges = both(&limit);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    {
        let mut denied = pin!(store.decide(NOW, Batch::together(&charges), &mut first));
        let denied = waits(denied.as_mut());
        // The share refills one unit.
        clock.advance(Span::from_secs(20));
        let now = NOW + Span::from_secs(20);
        let mut admitted = pin!(store.decide(now, Batch::together(&charges), &mut second));
        let admitted = waits(admitted.as_mut());
        answers(&store, admitted, &State::default());
        answers(&store, denied, &empty);
    }
    assert!(second.iter().all(Decision::is_allowed) && !first.iter().all(Decision::is_allowed));
    let mut more = 0;
    while asked(&store, clock.now(), &limit, &State::default()).1 {
        more += 1;
    }
    assert_eq!(more, 2, "one of three was admitted");
}
