//! Waiting on a condition, never on time alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Often enough that no test notices, seldom enough that two cores have time for the servers.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Looks until `condition` holds; panics with `what` after `limit`, so that no test hangs.
pub fn wait_until(what: &str, limit: Duration, condition: impl FnMut() -> bool) {
    assert!(comes_true(limit, condition), "waited {limit:?} in vain until {what}");
}

/// Whether `condition` holds before `limit` has passed; it is looked at least once.
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

/// Set when it is dropped: threads of a scope that work until then end also if the test panics, which would
/// otherwise wait for them for ever.
#[derive(Debug)]
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The instant, to measure how long real servers take.
#[expect(clippy::disallowed_methods, reason = "other processes keep their own time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
