//! Runs futures one at a time, in the order in which they were woken.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

/// Locks a value that only one thread uses; it has a lock because stores have to be `Sync`.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Tasks by number. Numbers are not reused, so waking a task that has ended does nothing.
pub(crate) struct Executor<T> {
    tasks: Vec<Option<Task<T>>>,
    /// Tasks that were woken and not polled yet; a task may be listed more than once.
    ready: Arc<Mutex<VecDeque<usize>>>,
}

struct Task<T> {
    work: Work<T>,
    waker: Waker,
}

struct Alarm {
    task: usize,
    ready: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        lock(&self.ready).push_back(self.task);
    }
}

impl<T> fmt::Debug for Executor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("tasks", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl<T> Default for Executor<T> {
    fn default() -> Self {
        Self { tasks: Vec::new(), ready: Arc::default() }
    }
}

impl<T> Executor<T> {
    /// Adds a task and wakes it.
    pub(crate) fn spawn(&mut self, work: Work<T>) -> usize {
        let task = self.tasks.len();
        let waker = Waker::from(Arc::new(Alarm { task, ready: Arc::clone(&self.ready) }));
        self.tasks.push(Some(Task { work, waker }));
        lock(&self.ready).push_back(task);
        task
    }

    /// The next task that has been woken.
    pub(crate) fn woken(&self) -> Option<usize> {
        lock(&self.ready).pop_front()
    }

    /// Polls a task; returns its result if it has ended.
    pub(crate) fn poll(&mut self, number: usize) -> Option<T> {
        let slot = self.tasks.get_mut(number)?;
        let task = slot.as_mut()?;
        let mut context = Context::from_waker(&task.waker);
        match task.work.as_mut().poll(&mut context) {
            Poll::Pending => None,
            Poll::Ready(value) => {
                *slot = None;
                Some(value)
            }
        }
    }

    /// Drops a task; false if it had ended.
    pub(crate) fn drop_task(&mut self, number: usize) -> bool {
        self.tasks.get_mut(number).and_then(Option::take).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_in_the_order_they_were_woken_in() {
        let mut executor = Executor::default();
        for number in 0..3 {
            let mut is_second = false;
            executor.spawn(Box::pin(std::future::poll_fn(move |context| {
                if std::mem::replace(&mut is_second, true) {
                    return Poll::Ready(number);
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })));
        }
        assert!(executor.drop_task(1) && !executor.drop_task(1));
        let mut ended = Vec::new();
        while let Some(task) = executor.woken() {
            ended.extend(executor.poll(task));
        }
        assert_eq!(ended, [0, 2]);
    }
}
