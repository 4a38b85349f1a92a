//! Layers that do not reckon with callers who give up.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate::Explanation;
use tidegate::store::{Charge, DecisionSource, Store, StoreError};
use tidegate_core::{Decision, Op, Timestamp};
use tidegate_sim::world::NodeStack;

/// What is left of a request that nobody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Its turn, for which all others wait.
    Turn,
    /// A refund, although nobody knows whether anything was taken.
    Refund,
}

#[derive(Debug)]
pub(crate) struct Unfinished<S> {
    store: S,
    left: Left,
    turn: Mutex<(bool, Vec<Waker>)>,
}

impl<S> Unfinished<S> {
    pub(crate) fn new(store: S, left: Left) -> Self {
        Self { store, left, turn: Mutex::default() }
    }
}

impl<S: NodeStack> NodeStack for Unfinished<S> {}

/// Gives back what a request would have taken, unless that has come to an end.
struct Regret<'a, S: Store> {
    store: &'a S,
    now: Timestamp,
    charge: Option<Charge<'a>>,
}

impl<S: Store> Drop for Regret<'_, S> {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        let Op::Take(cost) = charge.op else { return };
        let back = [Charge { op: Op::Return(cost), ..charge }];
        let mut said = Vec::new();
        // Sent, and not waited for.
        let mut sent = pin!(self.store.decide(self.now, &back, &mut said));
        let _ = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl<S: Store> Store for Unfinished<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if self.left == Left::Refund {
            let mut regret = Regret { store: &self.store, now, charge: Some(charges[0]) };
            let answer = self.store.decide(now, charges, decisions).await;
            regret.charge = None;
            return answer;
        }
        poll_fn(|context| {
            let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut turn.0, true) {
                turn.1.push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let answer = self.store.decide(now, charges, decisions).await;
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.0 = false;
        turn.1.drain(..).for_each(Waker::wake);
        answer
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }
}
