//! Layers that mishandle callers who give up.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate::Explanation;
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate_core::{Decision, Op, Timestamp};
use tidegate_sim::world::NodeStack;

/// What an abandoned request leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// A lock, which all other requests wait for.
    Lock,
    /// A refund, although its command may not have been carried out.
    Refund,
}

#[derive(Debug)]
pub(crate) struct Abandoned<S> {
    store: S,
    left: Left,
    /// Whether a request holds the lock, and which ones wait for it.
    lock: Mutex<(bool, Vec<Waker>)>,
}

impl<S> Abandoned<S> {
    pub(crate) fn new(store: S, left: Left) -> Self {
        Self { store, left, lock: Mutex::default() }
    }
}

impl<S: NodeStack> NodeStack for Abandoned<S> {}

/// Returns the units of a request that was dropped before its answer.
struct RefundOnDrop<'a, S: Store> {
    store: &'a S,
    now: Timestamp,
    charge: Option<Charge<'a>>,
}

impl<S: Store> Drop for RefundOnDrop<'_, S> {
    fn drop(&mut self) {
        let Some(charge) = self.charge.take() else { return };
        let Op::Take(cost) = charge.op else { return };
        let back = Charge { op: Op::Return(cost), ..charge };
        let mut said = Vec::new();
        // Sent, and not waited for.
        let mut sent = pin!(self.store.decide(self.now, Batch::one(&back), &mut said));
        let _ = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

impl<S: Store> Store for Abandoned<S> {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if self.left == Left::Refund {
            let mut refund =
                RefundOnDrop { store: &self.store, now, charge: Some(batch.charges[0]) };
            let answer = self.store.decide(now, batch, decisions).await;
            refund.charge = None;
            return answer;
        }
        poll_fn(|context| {
            let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            if std::mem::replace(&mut lock.0, true) {
                lock.1.push(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(())
        })
        .await;
        let answer = self.store.decide(now, batch, decisions).await;
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        lock.0 = false;
        lock.1.drain(..).for_each(Waker::wake);
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
