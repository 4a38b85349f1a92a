//! What one request asks of two keys, when the store can be asked about one of them only.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use tidegate::store::background::Background;
use tidegate::store::fallback::{Fallback, FallbackConfig};
use tidegate::store::{Basis, Charge, Store, StoreError};
use tidegate::{Clock, Explanation, Key, ManualClock, Scope};
use tidegate_core::{Algorithm, Decision, Limit, Op, Rate, Span, State, Timestamp};
use tidegate_sim::world::Idle;

const NOW: Timestamp = Timestamp::from_secs(1_000);
const AWAY: &[u8] = b"on a server that is away";
const HERE: &[u8] = b"on a server that answers";

/// Two servers. One is away, the other answers as soon as somebody says what it knows of its key.
#[derive(Debug, Default)]
struct Halves(Mutex<Option<State>>);

impl Store for Halves {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<Basis, StoreError> {
        assert!(charges.iter().all(|charge| charge.key.text == HERE));
        poll_fn(|_| match &mut *self.0.lock().unwrap() {
            None => Poll::Pending,
            Some(state) => {
                let decide = |it: &Charge<'_>| it.limit.decide(state, now, it.op);
                decisions.extend(charges.iter().map(decide));
                Poll::Ready(Ok(Basis::Store))
            }
        })
        .await
    }

    async fn explain(&self, _: Timestamp, _: &Charge<'_>) -> Result<Explanation, StoreError> {
        Err(StoreError::Timeout)
    }

    fn ready(&self, _: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        match charge.key.text {
            HERE => Ok(()),
            _ => Err(StoreError::Away { retry_after: Span::from_secs(1) }),
        }
    }
}

/// Asks for one unit of both keys. Says whether the node owes something before the store has answered, whether
/// the request is let in, and whether something is owed then.
fn asked(store: &Fallback<Halves>, limit: &Limit, known: &State) -> (usize, bool, usize) {
    let key = |text| Key::new(Scope::new("together", limit), text);
    let charges = [AWAY, HERE].map(|text| Charge::new(key(text), limit, Op::Take(1)));
    let mut decisions = Vec::new();
    let waiting = {
        let mut request = pin!(store.decide(NOW, &charges, &mut decisions));
        let mut context = Context::from_waker(Waker::noop());
        assert!(request.as_mut().poll(&mut context).is_pending());
        let waiting = store.stats().owing_keys;
        *store.store().0.lock().unwrap() = Some(known.clone());
        assert!(matches!(request.as_mut().poll(&mut context), Poll::Ready(Ok(_))));
        waiting
    };
    *store.store().0.lock().unwrap() = None;
    (waiting, decisions.iter().all(Decision::is_allowed), store.stats().owing_keys)
}

/// F13, FM-03: what was let in without the store is booked, and nothing else. Somebody books what is owed while the
/// other server is waited for, so nothing may be owed before its answer.
#[test]
fn nothing_is_owed_for_a_request_that_is_denied() {
    let clock = Clock::from(ManualClock::at(NOW));
    let config = FallbackConfig::default();
    let store =
        Fallback::start_on(Halves::default(), config, clock, &Background::new(Idle)).unwrap();
    let limit = Limit::token_bucket(Rate::per_minute(2)).burst(2).build().unwrap();
    let mut empty = State::default();
    limit.decide(&mut empty, NOW, Op::Take(2));
    for _ in 0..5 {
        assert_eq!(asked(&store, &limit, &empty), (0, false, 0), "and the share has it back");
    }
    // All three of the share: one and a half times the limit.
    for _ in 0..3 {
        assert!(asked(&store, &limit, &State::default()).1);
    }
    assert_eq!(store.stats().owing_keys, 1);
    // What the share has denied is not given back, whatever the store says.
    for known in [&empty, &State::default(), &empty, &State::default()] {
        assert!(!asked(&store, &limit, known).1);
    }
}
