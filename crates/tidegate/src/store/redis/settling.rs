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
