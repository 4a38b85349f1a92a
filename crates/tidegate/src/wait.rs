//! Waiting instead of being denied, in the order of arrival.
//!
//! Waiters on one key queue up; only the first asks, sleeps for as long as the limiter said, and
//! asks again. Nothing is taken ahead of time, so a waiter that gives up (its future is dropped)
//! has spent nothing and the next one moves up. Callers who do not wait are not held back by those
//! who do.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tidegate_core::Op;
use tokio::sync::Notify;

use crate::limiter::Limiter;
use crate::permit::Admission;
use crate::verdict::Verdict;

/// The most that may wait on one limiter; further ones are answered at once.
pub const MAX_WAITING: usize = 65_536;

/// The queues of a limiter, one for each key that somebody waits on.
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
    /// Fair: held by whoever is first.
    turn: tokio::sync::Mutex<()>,
    /// Units came back before their time: a permit was dropped, a refund, a reset, a change.
    freed: Notify,
}

impl Queues {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_empty(&self, key: &[u8]) -> bool {
        !self.lock().queues.contains_key(key)
    }

    /// A place in the queue of `key`; `None` if too many wait already.
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

    /// Lets the first in the queue of `key` ask again now.
    pub(crate) fn freed(&self, key: &[u8]) {
        // Let go of the map first: whoever is woken may want it at once.
        let queue = self.lock().queues.get(key).map(|(queue, _)| Arc::clone(queue));
        if let Some(queue) = queue {
            queue.freed.notify_waiters();
        }
    }

    /// Lets the first of every queue ask again now.
    pub(crate) fn freed_all(&self) {
        let queues: Vec<_> =
            self.lock().queues.values().map(|(queue, _)| Arc::clone(queue)).collect();
        queues.iter().for_each(|queue| queue.freed.notify_waiters());
    }
}

/// Standing in a queue. Dropping it leaves the queue, and the last to leave takes it away.
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
    /// Waits until one unit for `key` is taken. Waiters are served in the order they came; dropping
    /// the future leaves the queue and takes nothing.
    ///
    /// The verdict is a denial only if no wait helps ([`Verdict::is_never`]) or [`MAX_WAITING`]
    /// others wait already. Of a leaky bucket, the delay has passed when this returns; a future
    /// dropped during that delay has taken its slot, because those behind it were told theirs.
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

    /// As [`Limiter::until_ready`], for `cost` units.
    pub async fn until_ready_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Verdict {
        let key = key.as_ref();
        let ask = || {
            let verdict = self.charge(key, Op::Take(cost));
            (verdict.clone(), verdict)
        };
        let verdict = self.wait_for(key, cost, ask).await;
        self.hold_back(verdict.delay()).await;
        verdict
    }

    /// Waits until a place is free, and holds it. The order, dropping and the delay of a leaky
    /// bucket as in [`Limiter::until_ready`].
    pub async fn acquire_ready(&self, key: impl AsRef<[u8]>) -> Admission {
        let key = key.as_ref();
        let ask = || {
            let admission = self.acquire(key);
            (admission.verdict().clone(), admission)
        };
        let admission = self.wait_for(key, 1, ask).await;
        self.hold_back(admission.verdict().delay()).await;
        admission
    }

    async fn hold_back(&self, delay: Duration) {
        if !delay.is_zero() {
            let clock = &self.shared().clock;
            clock.sleep_until(clock.now() + delay.into()).await;
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
            // Listen before asking, or what is freed in between would be missed.
            let mut freed = pin!(place.queue.freed.notified());
            freed.as_mut().enable();
            let asked_at = shared.clock.now();
            let (verdict, answer) = ask();
            let Some(wait) = verdict.retry_after() else { return answer };
            let mut time = pin!(shared.clock.sleep_until(asked_at + wait.into()));
            std::future::poll_fn(|context| {
                let woken = freed.as_mut().poll(context).is_ready()
                    || time.as_mut().poll(context).is_ready();
                if woken { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}
