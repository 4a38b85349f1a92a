//! Waiting for conditions, never for a fixed time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Short enough for the tests, long enough to leave the processor to the servers.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Polls until `condition` holds; panics with `what` after `limit`, so that no test hangs.
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    assert!(comes_true(limit, condition), "waited {limit:?} in vain until {what}");
}

/// Whether `condition` becomes true before `limit` has passed; checked at least once.
pub fn comes_true(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        // A spurious wake-up only polls earlier.
        thread::park_timeout(BETWEEN_LOOKS);
    }
}

/// Set on drop, so that threads of a scope also end if the test panics. Otherwise the panic would
/// wait for them forever.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The current instant, for durations of real servers.
#[expect(clippy::disallowed_methods, reason = "other processes keep their own time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
