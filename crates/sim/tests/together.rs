//! What one request asks of two keys, when the store can be asked about one of them only.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use tidegate::store::background::Background;
use tidegate::store::fallback::{Fallback, FallbackConfig};
use tidegate::store::{Charge, DecisionSource, Store, StoreError};
use tidegate::{Explanation, Key, ManualClock, Scope};
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
    ) -> Result<DecisionSource, StoreError> {
        assert!(charges.iter().all(|charge| charge.key.text == HERE));
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

    fn ready(&self, _: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        match charge.key.text {
            HERE => Ok(()),
            _ => Err(StoreError::Away { retry_after: Span::from_secs(1) }),
        }
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        usize::from(charge.key.text == HERE)
    }
}

/// One unit of both keys.
fn both(limit: &Limit) -> [Charge<'_>; 2] {
    let key = |text| Key::new(Scope::new("together", limit), text);
    [AWAY, HERE].map(|text| Charge::new(key(text), limit, Op::Take(1)))
}

/// One way or the other the store has answered by what it knows.
fn answers<F: Future<Output = Result<DecisionSource, StoreError>>>(
    store: &Fallback<Halves>,
    request: Pin<&mut F>,
    known: &State,
) {
    *store.store().0.lock().unwrap() = Some(known.clone());
    let answered = request.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(answered, Poll::Ready(Ok(_))));
    *store.store().0.lock().unwrap() = None;
}

/// A request that waits for the store, and goes on when it is polled again.
fn waits<F: Future>(mut request: Pin<&mut F>) -> Pin<&mut F> {
    assert!(request.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    request
}

/// Asks for one unit of both keys. Says whether the node owes something before the store has answered, whether
/// the request is let in, and whether something is owed then.
fn asked(
    store: &Fallback<Halves>,
    now: Timestamp,
    limit: &Limit,
    known: &State,
) -> (usize, bool, usize) {
    let (charges, mut decisions) = (both(limit), Vec::new());
    let waiting = {
        let mut request = pin!(store.decide(now, &charges, &mut decisions));
        let request = waits(request.as_mut());
        let waiting = store.stats().owing_keys;
        answers(store, request, known);
        waiting
    };
    (waiting, decisions.iter().all(Decision::is_allowed), store.stats().owing_keys)
}

/// A node by itself: its share of twelve units a minute is three, because the other server has not answered yet.
fn node() -> (Fallback<Halves>, ManualClock, Limit, State) {
    let clock = ManualClock::at(NOW);
    let (config, background) = (FallbackConfig::default(), Background::new(Idle));
    let store = Fallback::start_on(Halves::default(), config, clock.clone().into(), &background);
    let limit = Limit::token_bucket(Rate::per_minute(12)).burst(12).build().unwrap();
    let mut empty = State::default();
    limit.decide(&mut empty, NOW, Op::Take(12));
    (store.unwrap(), clock, limit, empty)
}

/// F13: what was let in without the store is booked, and nothing else. Somebody books what is owed while the
/// other server is waited for, so nothing may be owed before its answer.
#[test]
fn nothing_is_owed_for_a_request_that_is_denied() {
    let (store, _, limit, empty) = node();
    for _ in 0..5 {
        assert_eq!(asked(&store, NOW, &limit, &empty), (0, false, 0), "and the share has it back");
    }
    // All three of the share: a quarter of the limit.
    for _ in 0..3 {
        assert!(asked(&store, NOW, &limit, &State::default()).1);
    }
    assert_eq!(store.stats().owing_keys, 1);
    // What the share has denied is not given back, whatever the store says.
    for known in [&empty, &State::default(), &empty, &State::default()] {
        assert!(!asked(&store, NOW, &limit, known).1);
    }
}

/// Whoever waits for one key holds units of the other, but not for longer.
#[test]
fn who_gives_up_leaves_the_share_as_it_was() {
    let (store, _, limit, _) = node();
    for _ in 0..5 {
        let (charges, mut decisions) = (both(&limit), Vec::new());
        waits(pin!(store.decide(NOW, &charges, &mut decisions)));
    }
    let let_in = (0..5).filter(|_| asked(&store, NOW, &limit, &State::default()).1);
    assert_eq!(let_in.count(), 3);
}

/// What was refilled while the other server was waited for is not given back besides.
#[test]
fn a_share_is_no_larger_for_a_request_that_is_denied() {
    let (store, clock, limit, empty) = node();
    let charges = both(&limit);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    {
        let mut denied = pin!(store.decide(NOW, &charges, &mut first));
        let denied = waits(denied.as_mut());
        // A unit of the share takes so long.
        clock.advance(Span::from_secs(20));
        let now = NOW + Span::from_secs(20);
        let mut let_in = pin!(store.decide(now, &charges, &mut second));
        let let_in = waits(let_in.as_mut());
        answers(&store, let_in, &State::default());
        answers(&store, denied, &empty);
    }
    assert!(second.iter().all(Decision::is_allowed) && !first.iter().all(Decision::is_allowed));
    let mut more = 0;
    while asked(&store, clock.now(), &limit, &State::default()).1 {
        more += 1;
    }
    assert_eq!(more, 2, "one of three was let in");
}
