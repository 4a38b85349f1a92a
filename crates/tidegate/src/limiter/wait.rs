//! Waits for units instead of denying, in the order of arrival.
//!
//! Waiters on one key form a queue; only the first waiter checks, sleeps for the reported wait, and
//! checks again. Nothing is reserved, so a waiter that gives up (its future is dropped) has spent
//! nothing and the next one moves up. Callers that do not wait are not delayed by waiters.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tidegate_core::Op;
use tokio::sync::Notify;

use super::backend::Backend;
use super::permit::{Admission, Leases};
#[cfg(feature = "redis")]
use super::shared::Shared;
use super::{Engine, Limiter};
use crate::key::to_key::ToKey;
#[cfg(feature = "redis")]
use crate::store::{Store, StoreError};
use crate::verdict::Verdict;

/// The most waiters of one limiter; further calls return at once.
#[doc(hidden)]
pub const MAX_WAITING: usize = 65_536;

/// The queues of a limiter, one for each key with waiters.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: Mutex<Waiting>,
    /// Notified when a limit gets new numbers.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    queues: HashMap<Box<[u8]>, (Arc<Queue>, usize)>,
    count: usize,
}

#[derive(Debug, Default)]
struct Queue {
    /// A fair lock, held by the first waiter.
    turn: tokio::sync::Mutex<()>,
    /// Notified when units are freed early: a dropped permit, a refund, a reset, a changed limit.
    freed: Notify,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self, key: &[u8]) -> bool {
        !self.lock().queues.contains_key(key)
    }

    /// Joins the queue of `key`; `None` if there are too many waiters.
    fn join<'a>(&'a self, key: &'a [u8]) -> Option<QueueEntry<'a>> {
        let mut waiting = self.lock();
        if waiting.count >= MAX_WAITING {
            return None;
        }
        waiting.count += 1;
        if let Some((queue, length)) = waiting.queues.get_mut(key) {
            *length += 1;
            return Some(QueueEntry { queues: self, key, queue: Arc::clone(queue) });
        }
        let queue = Arc::<Queue>::default();
        waiting.queues.insert(key.into(), (Arc::clone(&queue), 1));
        Some(QueueEntry { queues: self, key, queue })
    }

    /// Lets the first waiter of `key` check again now.
    pub(super) fn freed(&self, key: &[u8]) {
        // Release the map first: a woken waiter may lock it at once.
        let queue = self.lock().queues.get(key).map(|(queue, _)| Arc::clone(queue));
        if let Some(queue) = queue {
            queue.freed.notify_waiters();
        }
    }

    /// Lets the first waiter of every queue check again now.
    pub(super) fn freed_all(&self) {
        let queues: Vec<_> =
            self.lock().queues.values().map(|(queue, _)| Arc::clone(queue)).collect();
        queues.iter().for_each(|queue| queue.freed.notify_waiters());
        self.changed.notify_waiters();
    }
}

/// Membership in a queue. Dropping it leaves the queue, and the last member removes the queue.
struct QueueEntry<'a> {
    queues: &'a Queues,
    key: &'a [u8],
    queue: Arc<Queue>,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let mut waiting = self.queues.lock();
        waiting.count -= 1;
        if let Some((_, length)) = waiting.queues.get_mut(self.key) {
            *length -= 1;
            if *length == 0 {
                waiting.queues.remove(self.key);
            }
        }
    }
}

impl Limiter {
    /// Waits until one unit for `key` is taken. Waiters are served in order of arrival; dropping
    /// the future leaves the queue and takes nothing.
    ///
    /// The verdict is a denial only if no wait helps ([`Verdict::is_never`]) or [`MAX_WAITING`]
    /// requests wait already. With a leaky bucket, the delay has passed when this returns; if the future
    /// is dropped during the delay, its slot stays taken, because later requests have later slots.
    ///
    /// ```
    /// # use tidegate::{Limit, Limiter, Rate};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let limiter = Limiter::new(Limit::gcra(Rate::per_second(1_000)).build()?);
    /// for _ in 0..3 {
    ///     limiter.until_ready("user:17").await; // a millisecond apart
    /// }
    /// # Ok::<(), tidegate::InvalidLimit>(()) }).unwrap();
    /// ```
    pub async fn until_ready(&self, key: impl ToKey) -> Verdict {
        self.until_ready_cost(key, 1).await
    }

    /// Like [`Limiter::until_ready`], for `cost` units.
    pub async fn until_ready_cost(&self, key: impl ToKey, cost: u64) -> Verdict {
        let Ok(verdict) = self.0.until_ready(&key.to_key(), cost).await;
        verdict
    }

    /// Waits until a place is free, and holds it. Order of arrival, dropping and leaky buckets are
    /// as in [`Limiter::until_ready`].
    pub async fn acquire_ready(&self, key: impl ToKey) -> Admission {
        let key = key.to_key();
        let Ok((verdict, leases)) = self.0.wait_in_line(&key, 1).await;
        let (delay, admission) = (verdict.delay(), self.admission(&key, verdict, leases));
        self.0.sit_out(delay).await;
        admission
    }
}

#[cfg(feature = "redis")]
impl<S: Store + 'static> Limiter<Shared<S>> {
    /// Waits until one unit for `key` is taken, like
    /// [`Limiter::until_ready`](Limiter::<crate::store::memory::MemoryStore>::until_ready).
    /// Requests of this node are served in order of arrival. Units that other nodes return are
    /// noticed when the wait that the store reported is over.
    ///
    /// # Errors
    /// At once if the store gives no decision.
    pub async fn until_ready(&self, key: impl ToKey) -> Result<Verdict, StoreError> {
        self.until_ready_cost(key, 1).await
    }

    /// Like `until_ready`, for `cost` units.
    pub async fn until_ready_cost(
        &self,
        key: impl ToKey,
        cost: u64,
    ) -> Result<Verdict, StoreError> {
        self.0.until_ready(&key.to_key(), cost).await
    }

    /// Waits until a place is free, and holds it.
    pub async fn acquire_ready(&self, key: impl ToKey) -> Result<Admission, StoreError> {
        let key = key.to_key();
        let (verdict, leases) = self.0.wait_in_line(&key, 1).await?;
        let (delay, admission) = (verdict.delay(), self.admission(&key, verdict, leases));
        self.0.sit_out(delay).await;
        Ok(admission)
    }
}

impl<S: Backend> Engine<S> {
    async fn until_ready(&self, key: &[u8], cost: u64) -> Result<Verdict, S::Error> {
        let (verdict, _) = self.wait_in_line(key, cost).await?;
        self.sit_out(verdict.delay()).await;
        Ok(verdict)
    }

    /// Waits for the delay of a leaky bucket.
    async fn sit_out(&self, delay: Duration) {
        if !delay.is_zero() {
            self.clock.sleep_until(self.clock.now() + delay.into()).await;
        }
    }

    /// Checks in order of arrival, until the verdict is an admission or a denial that no wait
    /// changes.
    async fn wait_in_line(&self, key: &[u8], cost: u64) -> Result<(Verdict, Leases), S::Error> {
        if self.queues.is_empty(key) {
            let answer = self.take_places(key, cost).await?;
            if answer.0.retry_after().is_none() {
                return Ok(answer);
            }
        } else if self.charge(key, Op::Read(cost)).await?.is_never() {
            return self.take_places(key, cost).await;
        }
        let Some(place) = self.queues.join(key) else { return self.take_places(key, cost).await };
        let _turn = place.queue.turn.lock().await;
        loop {
            // Listen before the check. Otherwise units freed in between would be missed.
            let mut freed = pin!(place.queue.freed.notified());
            freed.as_mut().enable();
            let asked_at = self.clock.now();
            let (verdict, leases) = self.take_places(key, cost).await?;
            let Some(wait) = verdict.retry_after() else { return Ok((verdict, leases)) };
            let mut time = pin!(self.clock.sleep_until(asked_at + wait.into()));
            std::future::poll_fn(|context| {
                let woken = freed.as_mut().poll(context).is_ready()
                    || time.as_mut().poll(context).is_ready();
                if woken { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}
