//! Whether the present numbers have been in force long enough to repair states by them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

/// True once nothing has changed for a while.
#[derive(Debug)]
pub(super) struct Settling {
    delay: Duration,
    settled: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
    /// Limits are changed from anywhere, also from threads that no runtime knows.
    runtime: Handle,
}

impl Settling {
    /// # Panics
    /// Outside a runtime.
    pub(super) fn start(delay: Duration) -> Self {
        let (settled, changes, runtime) = (Arc::default(), Arc::default(), Handle::current());
        let settling = Self { delay, settled, changes, runtime };
        settling.begin();
        settling
    }

    /// The runtime that the store was started in.
    pub(super) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.settled)
    }

    /// The numbers have just changed.
    pub(super) fn begin(&self) {
        if self.delay.is_zero() {
            self.settled.store(true, Ordering::Relaxed);
            return;
        }
        self.settled.store(false, Ordering::Relaxed);
        let change = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        let (changes, settled) = (Arc::downgrade(&self.changes), Arc::clone(&self.settled));
        let delay = self.delay;
        self.runtime.spawn(async move {
            sleep(delay).await;
            let unchanged = |changes: Arc<AtomicU64>| changes.load(Ordering::Relaxed) == change;
            if changes.upgrade().is_some_and(unchanged) {
                settled.store(true, Ordering::Relaxed);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    const DELAY: Duration = Duration::from_secs(10);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    /// Lets time pass, and those who waited for it run.
    fn pass(runtime: &Runtime, time: Duration) {
        runtime.block_on(async {
            yield_now().await;
            advance(time).await;
            yield_now().await;
        });
    }

    /// Also from threads that know no runtime, as this one.
    #[test]
    fn every_change_starts_over() {
        let runtime = runtime();
        let settling = runtime.block_on(async { Settling::start(DELAY) });
        let settled = settling.flag();
        pass(&runtime, DELAY / 2);
        settling.begin();
        pass(&runtime, DELAY / 2 + Duration::from_millis(10));
        assert!(!settled.load(Ordering::Relaxed), "the numbers are half as old");
        pass(&runtime, DELAY / 2);
        assert!(settled.load(Ordering::Relaxed));
        settling.begin();
        assert!(!settled.load(Ordering::Relaxed));
    }

    #[test]
    fn without_a_delay_it_is_settled_at_once() {
        let settling = runtime().block_on(async { Settling::start(Duration::ZERO) });
        settling.begin();
        assert!(settling.flag().load(Ordering::Relaxed));
    }
}
