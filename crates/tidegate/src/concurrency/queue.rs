//! The queue of a concurrency limiter: short, by class, and bounded by deadlines.
//!
//! A waiter joins the queue before it tries once more to take a permit, and a release frees its
//! permit before it looks for waiters. Whichever of the two comes later therefore sees the other,
//! and no waiter is missed.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tidegate_core::shed::{Class, QueueTimeout};
use tidegate_core::{Span, Timestamp};
use tokio::sync::oneshot;

use super::builder::QueueSize;
use super::{ConcurrencyLimiter, Permit, Shared, Shed, ShedReason};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// Waiters by class.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    /// Rank of the most important waiting class; [`EMPTY`] if no request waits.
    first_rank: AtomicU32,
    /// Rank of the most important class that finds the queue full; [`EMPTY`] if the queue has room.
    full_from: AtomicU32,
    percent: u32,
}

const EMPTY: u32 = u32::MAX;

#[derive(Debug)]
struct Waiting {
    classes: [VecDeque<Waiter>; Class::MAX],
    count: usize,
    timeout: QueueTimeout,
    next_id: u64,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    expires: Timestamp,
    /// The reason for shedding the request at its expiry.
    late: ShedReason,
    answer: oneshot::Sender<Answer>,
}

type Answer = Result<Permit, Shed>;

/// The result of joining the queue.
struct Joined {
    id: u64,
    expires: Timestamp,
    answer: oneshot::Receiver<Answer>,
    displaced: Option<(Class, Waiter)>,
}

impl Queue {
    pub(super) fn new(size: QueueSize) -> Self {
        let waiting = Waiting {
            classes: std::array::from_fn(|_| VecDeque::new()),
            count: 0,
            timeout: QueueTimeout::new(size.timeout),
            next_id: 0,
        };
        Self {
            waiting: Mutex::new(waiting),
            first_rank: AtomicU32::new(EMPTY),
            full_from: AtomicU32::new(EMPTY),
            percent: size.percent,
        }
    }

    /// Publishes which classes wait, for requests that do not wait.
    fn publish(&self, waiting: &mut Waiting, size: usize) {
        if waiting.count == 0 {
            waiting.timeout.emptied();
        }
        let first = waiting.classes.iter().position(|class| !class.is_empty());
        let first = first.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(EMPTY);
        self.first_rank.store(first, Ordering::SeqCst);
        // A more important request takes the place of a less important one.
        let last = waiting.classes.iter().rposition(|class| !class.is_empty());
        let last = last.filter(|_| waiting.count >= size);
        let full_from = last.and_then(|rank| u32::try_from(rank).ok()).unwrap_or(EMPTY);
        self.full_from.store(full_from, Ordering::Relaxed);
    }
}

impl Waiting {
    /// Adds a waiter of `class` to a queue of at most `size`. If the queue is full, a less important
    /// waiter makes room.
    fn join(
        &mut self,
        class: Class,
        size: usize,
        now: Timestamp,
        deadline: Timestamp,
    ) -> Result<Joined, ShedReason> {
        if size == 0 {
            return Err(ShedReason::Limit);
        }
        let expires = self.timeout.join(now, Some(deadline)).ok_or(expiry(now, deadline))?;
        let mut displaced = None;
        if self.count >= size {
            displaced = Some(self.displace(class).ok_or(ShedReason::QueueFull)?);
        }
        let (sender, receiver) = oneshot::channel();
        self.next_id += 1;
        let late = expiry(expires, deadline);
        let waiter = Waiter { id: self.next_id, expires, late, answer: sender };
        self.classes[class.rank()].push_back(waiter);
        self.count += 1;
        Ok(Joined { id: self.next_id, expires, answer: receiver, displaced })
    }

    /// The oldest waiter of the least important class below `class`.
    fn displace(&mut self, class: Class) -> Option<(Class, Waiter)> {
        let below = (class.rank() + 1..Class::MAX).rev();
        for rank in below {
            if let Some(waiter) = self.classes[rank].pop_front() {
                self.count -= 1;
                return Some((Class::new(u8::try_from(rank).unwrap_or(u8::MAX)), waiter));
            }
        }
        None
    }

    fn remove(&mut self, class: Class, id: u64) -> bool {
        let queue = &mut self.classes[class.rank()];
        let Some(index) = queue.iter().position(|waiter| waiter.id == id) else { return false };
        queue.remove(index);
        self.count -= 1;
        true
    }
}

/// A place in the queue. Dropping it leaves the queue.
struct QueuePosition<'a> {
    shared: &'a Arc<Shared>,
    class: Class,
    id: u64,
}

impl QueuePosition<'_> {
    /// Leaves the queue; false if the waiter was answered already.
    fn leave(&self) -> bool {
        let queue = &self.shared.queue;
        let mut waiting = lock(&queue.waiting);
        let was_waiting = waiting.remove(self.class, self.id);
        if was_waiting {
            queue.publish(&mut waiting, self.shared.queue_size());
        }
        was_waiting
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl ConcurrencyLimiter {
    /// Takes a permit, waiting for one if there is none. Dropping the future leaves the queue.
    ///
    /// # Errors
    /// If the queue is full of requests that are at least as important, if a more important request
    /// takes this one's place, or after the queue timeout.
    ///
    /// ```
    /// # use tidegate::concurrency::{Class, ConcurrencyLimiter, Outcome};
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// let limiter = ConcurrencyLimiter::adaptive().build();
    /// let permit = limiter.acquire(Class::CRITICAL).await?;
    /// permit.finish(Outcome::Success);
    /// # Ok::<(), tidegate::concurrency::Shed>(()) }).unwrap();
    /// ```
    pub async fn acquire(&self, class: Class) -> Result<Permit, Shed> {
        self.acquire_before(class, Timestamp::MAX).await
    }

    /// Like [`ConcurrencyLimiter::acquire`], but sheds the request at `deadline`.
    ///
    /// # Errors
    /// As [`ConcurrencyLimiter::acquire`], and at the deadline.
    #[doc(hidden)]
    pub async fn acquire_before(&self, class: Class, deadline: Timestamp) -> Result<Permit, Shed> {
        if let Some(permit) = self.take(class) {
            return Ok(permit);
        }
        let (shared, class) = (&self.shared, self.shared.shares.known(class));
        let now = shared.clock.now();
        let Joined { id, expires, mut answer, .. } = self.join(class, now, deadline)?;
        let place = QueuePosition { shared, class, id };
        shared.admit_waiting(|| now);
        let mut time = pin!(shared.clock.sleep_until(expires));
        let mut answer = pin!(&mut answer);
        let early = std::future::poll_fn(|context| {
            if let Poll::Ready(answered) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(answered));
            }
            time.as_mut().poll(context).map(|()| None)
        });
        let answered = match early.await {
            Some(answered) => answered,
            None if place.leave() => {
                return Err(shared.shed(class, expiry(expires, deadline)));
            }
            // The waiter was answered at this moment.
            None => answer.await,
        };
        // The sender answers before it is dropped.
        answered.unwrap_or_else(|_| Err(shared.shed(class, ShedReason::QueueTimeout)))
    }

    /// Like [`ConcurrencyLimiter::acquire`], but sheds the request after `time`.
    ///
    /// # Errors
    /// As [`ConcurrencyLimiter::acquire_before`].
    pub async fn acquire_within(&self, class: Class, time: Duration) -> Result<Permit, Shed> {
        self.acquire_before(class, self.shared.clock.now() + Span::from(time)).await
    }

    /// Joins the queue.
    fn join(&self, class: Class, now: Timestamp, deadline: Timestamp) -> Result<Joined, Shed> {
        let (shared, queue) = (&self.shared, &self.shared.queue);
        let mut waiting = lock(&queue.waiting);
        let size = shared.queue_size();
        let joined = waiting.join(class, size, now, deadline);
        queue.publish(&mut waiting, size);
        drop(waiting);
        let mut joined = joined.map_err(|reason| shared.shed(class, reason))?;
        shared.measure.queued();
        if let Some((class, waiter)) = joined.displaced.take() {
            drop(waiter.answer.send(Err(shared.shed(class, ShedReason::Displaced))));
        }
        Ok(joined)
    }
}

/// The reason for shedding a waiter that was not admitted before `expires`.
fn expiry(expires: Timestamp, deadline: Timestamp) -> ShedReason {
    if expires >= deadline { ShedReason::Deadline } else { ShedReason::QueueTimeout }
}

impl Shared {
    /// True if a request at least as important as `class` waits.
    #[inline]
    pub(super) fn waits_behind(&self, class: Class) -> bool {
        class.rank() >= self.queue.first_rank.load(Ordering::SeqCst) as usize
    }

    /// Gives free permits to waiters, most important first.
    #[inline]
    pub(super) fn admit_waiting(self: &Arc<Self>, now: impl FnOnce() -> Timestamp) {
        if self.queue.first_rank.load(Ordering::SeqCst) != EMPTY {
            self.admit_all(now());
        }
    }

    #[cold]
    fn admit_all(self: &Arc<Self>, now: Timestamp) {
        // A waiter is answered after the lock is released. If the waiter is gone, its permit comes
        // back through this loop.
        while let Some((class, waiter)) = self.admit_one(now) {
            let limiter = ConcurrencyLimiter { shared: Arc::clone(self) };
            let answer = match class {
                None => Ok(Permit::new(limiter, now)),
                Some(class) => Err(self.shed(class, waiter.late)),
            };
            drop(waiter.answer.send(answer));
        }
    }

    /// The next waiter to answer: with a permit, or with its class if it has waited for too long.
    fn admit_one(&self, now: Timestamp) -> Option<(Option<Class>, Waiter)> {
        let queue = &self.queue;
        let mut waiting = lock(&queue.waiting);
        let rank = waiting.classes.iter().position(|class| !class.is_empty())?;
        let class = Class::new(u8::try_from(rank).unwrap_or(u8::MAX));
        let is_newest_first = waiting.timeout.is_overloaded(now);
        let waiters = &mut waiting.classes[rank];
        let next = if is_newest_first { waiters.back() } else { waiters.front() };
        let is_late = next.is_some_and(|waiter| waiter.expires <= now);
        // Thresholds fall with importance, so no other class could be admitted instead.
        if !is_late && !self.take(class) {
            return None;
        }
        let waiter = if is_newest_first { waiters.pop_back() } else { waiters.pop_front() };
        waiting.count -= 1;
        queue.publish(&mut waiting, self.queue_size());
        waiter.map(|waiter| (is_late.then_some(class), waiter))
    }

    /// Number of requests that may wait.
    fn queue_size(&self) -> usize {
        let limit = u64::from(self.thresholds[0].load(Ordering::Relaxed));
        usize::try_from(limit * u64::from(self.queue.percent) / 100).unwrap_or(usize::MAX)
    }

    /// The reason for shedding a request of `class` early; `None` if the request might be admitted
    /// or wait.
    pub(super) fn early_reason(&self, class: Class) -> Option<ShedReason> {
        if self.queue.percent == 0 {
            return self.is_full(class).then_some(ShedReason::Limit);
        }
        let is_full = class.rank() >= self.queue.full_from.load(Ordering::Relaxed) as usize;
        is_full.then_some(ShedReason::QueueFull)
    }

    pub(super) fn queued(&self) -> usize {
        lock(&self.queue.waiting).count
    }
}
