//! A layer that does something wrong, and passes on the rest.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Poll;

use tidegate::store::lease::{LEASE, LeaseStats};
use tidegate::store::{Charge, DecisionSource, Store, StoreError};
use tidegate::{Explanation, ManualClock};
use tidegate_core::{Algorithm, Decision, Limit, Op, Rate, Span, State, Timestamp};
use tidegate_sim::world::{NodeStack, SimStore};

/// What it does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// Gives back what timed out, although nobody knows whether it was taken.
    Refunds,
    /// Asks again for what timed out, and is charged again.
    AsksAgain,
    /// Lets in what timed out, without a word of any policy.
    LetsIn,
    /// Keeps what timed out waiting, and asks whether the store is back meanwhile.
    Probes,
    /// Asks a store that is away, on behalf of whoever happens to come.
    AsksWhileAway,
    /// Repeats a denial for so long, whatever the limit says.
    Denies(Span),
    /// Books twice.
    Books,
    /// Says that it has booked.
    Forgets,
    /// Lets a second pass for each request, so that every ramp is over.
    Hurries,
    /// Takes it for earlier than it is, so that what has ended has not.
    Dawdles,
    /// Decides by this limit instead of the one it is told.
    Enlarges(Limit),
    /// Goes on with the first numbers that it was told.
    Keeps,
    /// Decides by all that a bucket may hold, once that has become less.
    Unreduces,
    /// Gives back a place as soon as it has it.
    Vacates,
    /// Gives back twice.
    Returns,
    /// Takes what timed out for granted.
    Presumes,
    /// Decides each charge of a request alone, where it is all or nothing.
    Splits,
}

#[derive(Debug)]
pub(crate) struct Layer<S> {
    pub(crate) store: S,
    pub(crate) wire: SimStore,
    pub(crate) wrong: Wrong,
    pub(crate) denied: Mutex<HashMap<Vec<u8>, (Timestamp, Decision)>>,
    first: OnceLock<Limit>,
    hand: ManualClock,
}

impl<S> Layer<S> {
    pub(crate) fn new(store: S, wire: SimStore, wrong: Wrong) -> Self {
        let (denied, first, hand) = (Mutex::default(), OnceLock::new(), ManualClock::new());
        Self { store, wire, wrong, denied, first, hand }
    }

    /// One that moves this clock.
    pub(crate) fn hurried(store: S, wire: SimStore, hand: ManualClock) -> Self {
        Self { hand, ..Self::new(store, wire, Wrong::Hurries) }
    }

    /// What it decides by instead of this limit.
    fn other_limit(&self, limit: &Limit) -> Option<Limit> {
        let first = self.first.get_or_init(|| *limit);
        let capacity =
            |limit: &Limit| if let Limit::Bucket(it) = limit { it.capacity() } else { 0 };
        match self.wrong {
            Wrong::Enlarges(other) => Some(other),
            Wrong::Keeps => Some(*first),
            Wrong::Unreduces if capacity(limit) < capacity(first) => unreduced(limit),
            _ => None,
        }
    }

    fn time(&self, now: Timestamp) -> Timestamp {
        match self.wrong {
            Wrong::Hurries => {
                self.hand.advance(Span::from_secs(1));
                now
            }
            Wrong::Dawdles => now - Span::from_millis(50),
            _ => now,
        }
    }
}

/// A bucket with what leases take off it.
fn unreduced(limit: &Limit) -> Option<Limit> {
    let Limit::Bucket(bucket) = limit else { return None };
    let (one, parts) = (bucket.time_of(1)?, bucket.denominator());
    let time = one.ticks * parts + one.part;
    let held = (LEASE.as_micros() * parts).div_ceil(time);
    let rate = Rate::new(parts, Span::from_micros(time));
    Limit::token_bucket(rate).burst(bucket.capacity() + held).build().ok()
}

impl<S: NodeStack> NodeStack for Layer<S> {
    fn leases(&self) -> LeaseStats {
        self.store.leases()
    }

    async fn close(&self) {
        self.store.close().await;
    }
}

impl<S: Store> Layer<S> {
    async fn after_timeout(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let Op::Take(cost) = charges[0].op else { return Err(StoreError::Timeout) };
        let ask = async |op| {
            let asked = [Charge { op, ..charges[0] }];
            self.store.decide(now, &asked, &mut Vec::new()).await
        };
        match self.wrong {
            Wrong::Refunds => {
                // Sent, and not waited for.
                let mut back = pin!(ask(Op::Return(cost)));
                poll_fn(|context| Poll::Ready(back.as_mut().poll(context).is_ready())).await;
            }
            Wrong::AsksAgain => return self.store.decide(now, charges, decisions).await,
            Wrong::LetsIn => return Ok(DecisionSource::Store),
            Wrong::Probes => {
                let _ = ask(Op::Read(0)).await;
            }
            _ => {}
        }
        Err(StoreError::Timeout)
    }

    async fn decide_denied(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
        longest: Span,
    ) -> Result<DecisionSource, StoreError> {
        let text = charges[0].key.text.to_vec();
        let known = self.denied.lock().unwrap_or_else(PoisonError::into_inner).get(&text).copied();
        if let Some((_, denial)) = known.filter(|(at, _)| now.since(*at) < longest) {
            decisions.push(denial);
            return Ok(DecisionSource::Store);
        }
        let decision_source = self.store.decide(now, charges, decisions).await?;
        if let Some(denial) = decisions.last().filter(|decision| !decision.is_allowed()) {
            let mut denied = self.denied.lock().unwrap_or_else(PoisonError::into_inner);
            denied.insert(text, (now, *denial));
        }
        Ok(decision_source)
    }
}

impl<S: Store> Store for Layer<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if let (Wrong::Denies(longest), Op::Take(_)) = (self.wrong, charges[0].op) {
            return self.decide_denied(now, charges, decisions, longest).await;
        }
        if self.wrong == Wrong::Splits {
            return self.store.decide_each(now, charges, decisions).await;
        }
        if let Some(limit) = &self.other_limit(charges[0].limit) {
            let charges: Vec<_> = charges.iter().map(|it| Charge { limit, ..*it }).collect();
            return self.store.decide(now, &charges, decisions).await;
        }
        match (self.wrong, self.store.decide(self.time(now), charges, decisions).await) {
            (Wrong::AsksWhileAway, Err(StoreError::Away { .. })) => {
                self.wire.decide(now, charges, decisions).await
            }
            (Wrong::Vacates, Ok(decision_source)) => {
                if let Some(lease) = decisions.last().and_then(|it| it.lease) {
                    let left = [Charge { op: Op::Release(lease), ..charges[0] }];
                    let _ = self.store.decide(now, &left, &mut Vec::new()).await;
                }
                Ok(decision_source)
            }
            (_, Err(StoreError::Timeout)) => self.after_timeout(now, charges, decisions).await,
            (_, answer) => answer,
        }
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let now = self.time(now);
        let gives_back = matches!(charges[0].op, Op::Return(_));
        let is_granted = |it: &Charge<'_>| it.limit.decide(&mut State::default(), now, it.op);
        match self.wrong {
            Wrong::Books => {
                self.store.decide_each(now, charges, &mut Vec::new()).await?;
            }
            Wrong::Returns if gives_back => {
                self.store.decide_each(now, charges, &mut Vec::new()).await?;
            }
            Wrong::Presumes => {
                let answer = self.store.decide_each(now, charges, decisions).await;
                if answer == Err(StoreError::Timeout) {
                    decisions.extend(charges.iter().map(is_granted));
                    return Ok(DecisionSource::Store);
                }
                return answer;
            }
            Wrong::Forgets => {
                decisions.extend(charges.iter().map(is_granted));
                return Ok(DecisionSource::Store);
            }
            _ => {}
        }
        self.store.decide_each(now, charges, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.store.endpoint(charge)
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        match self.wrong {
            Wrong::AsksWhileAway => Ok(()),
            _ => self.store.ready(self.time(now), charge),
        }
    }

    fn limits_changed(&self) {
        self.store.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}
