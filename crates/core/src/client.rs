//! Arithmetic of well-behaved clients: when to retry, how often, and when not to send a request at
//! all.
//!
//! | part | decides |
//! |---|---|
//! | [`Throttle`] | whether a client sends a request to a server that rejects most of them |
//! | [`RetryBudget`] | whether there are retries left |
//! | [`Backoff`] | how long to wait before a retry |
//!
//! All three are pure: the time and the random numbers come from the caller.

mod backoff;
mod budget;
mod throttle;

pub use backoff::Backoff;
pub use budget::RetryBudget;
pub use throttle::Throttle;

use crate::time::Timestamp;

/// Number of seconds that are counted.
const SECONDS: usize = 10;

/// Two counts for each of the last [`SECONDS`].
#[derive(Clone, Copy, Debug)]
struct Counts {
    seconds: [(u64, u64); SECONDS],
    /// Number of the newest second since the epoch.
    newest: u64,
}

impl Counts {
    const fn new() -> Self {
        Self { seconds: [(0, 0); SECONDS], newest: 0 }
    }

    /// The counts of the current second. A clock that was set back counts into the newest one.
    fn current(&mut self, now: Timestamp) -> &mut (u64, u64) {
        let second = (now.as_micros() / 1_000_000).max(self.newest);
        let gone = usize::try_from(second - self.newest).unwrap_or(SECONDS).min(SECONDS);
        for past in 1..=gone {
            self.seconds[Self::place(self.newest, past)] = (0, 0);
        }
        self.newest = second;
        &mut self.seconds[Self::place(second, 0)]
    }

    fn place(second: u64, later: usize) -> usize {
        // The remainder is less than `SECONDS`.
        (usize::try_from(second % (SECONDS as u64)).unwrap_or(0) + later) % SECONDS
    }

    fn totals(&mut self, now: Timestamp) -> (u64, u64) {
        self.current(now);
        self.seconds.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }
}
