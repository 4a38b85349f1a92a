//! Waits for units instead of denying, in the order of arrival.
//!
//! Waiters on one key form a queue; only the first one asks, sleeps for the reported wait, and asks
//! again. Nothing is reserved, so a waiter that gives up (its future is dropped) has spent nothing
//! and the next one moves up. Callers that do not wait are not delayed by those that do.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tidegate_core::{Op, Span};
use tokio::sync::Notify;

use crate::limiter::Limiter;
use crate::permit::Admission;
use crate::verdict::Verdict;

/// The most waiters of one limiter; further calls return at once.
pub const MAX_WAITING: usize = 65_536;

/// The queues of a limiter, one for each key with waiters.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: Mutex<Waiting>,
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

    /// Wakes the first waiter of `key`.
    pub(crate) fn freed(&self, key: &[u8]) {
        // Drops the lock on the map first, because the woken waiter may need it at once.
        let queue = self.lock().queues.get(key).map(|(queue, _)| Arc::clone(queue));
        if let Some(queue) = queue {
            queue.freed.notify_waiters();
        }
    }

    /// Wakes the first waiter of every queue.
    pub(crate) fn freed_all(&self) {
        let queues: Vec<_> =
            self.lock().queues.values().map(|(queue, _)| Arc::clone(queue)).collect();
        queues.iter().for_each(|queue| queue.freed.notify_waiters());
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
    /// Waits until one unit for `key` is taken. Waiters are served in the order of arrival;
    /// dropping the future leaves the queue and takes nothing.
    ///
    /// The verdict is a denial only if no wait helps ([`Verdict::is_never`]) or [`MAX_WAITING`]
    /// others already wait. For a leaky bucket, the delay has passed when this returns; a future
    /// dropped during that delay has taken its slot, because later waiters already have their
    /// delays.
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
    pub async fn until_ready(&self, key: impl AsRef<[u8]>) -> Verdict {
        self.until_ready_cost(key, 1).await
    }

    /// Like [`Limiter::until_ready`], for `cost` units.
    pub async fn until_ready_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Verdict {
        let key = key.as_ref();
        let ask = || {
            let verdict = self.charge(key, Op::Take(cost));
            (verdict, verdict)
        };
        let verdict = self.wait_for(key, cost, ask).await;
        self.hold_back(verdict.delay()).await;
        verdict
    }

    /// Waits until a unit is free, and holds it. Order, dropping and the delay of a leaky bucket
    /// are as in [`Limiter::until_ready`].
    pub async fn acquire_ready(&self, key: impl AsRef<[u8]>) -> Admission {
        let key = key.as_ref();
        let ask = || {
            let admission = self.acquire(key);
            (*admission.verdict(), admission)
        };
        let admission = self.wait_for(key, 1, ask).await;
        self.hold_back(admission.verdict().delay()).await;
        admission
    }

    async fn hold_back(&self, delay: Span) {
        if delay > Span::ZERO {
            let clock = &self.shared().clock;
            clock.sleep_until(clock.now() + delay).await;
        }
    }

    async fn wait_for<T>(&self, key: &[u8], cost: u64, ask: impl Fn() -> (Verdict, T)) -> T {
        let shared = self.shared();
        if shared.queues.is_empty(key) {
            let (verdict, answer) = ask();
            if verdict.retry_after().is_none() {
                return answer;
            }
        } else if self.peek(key, cost).is_never() {
            return ask().1;
        }
        let Some(place) = shared.queues.join(key) else { return ask().1 };
        let _turn = place.queue.turn.lock().await;
        loop {
            // Registers before asking, so that units freed in between are not missed.
            let mut freed = pin!(place.queue.freed.notified());
            freed.as_mut().enable();
            let asked_at = shared.clock.now();
            let (verdict, answer) = ask();
            let Some(wait) = verdict.retry_after() else { return answer };
            let mut time = pin!(shared.clock.sleep_until(asked_at + wait));
            std::future::poll_fn(|context| {
                let woken = freed.as_mut().poll(context).is_ready()
                    || time.as_mut().poll(context).is_ready();
                if woken { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}
