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

/// Two counts for each of the last `N` periods of `SECONDS` seconds.
#[derive(Clone, Copy, Debug)]
struct Counts<const N: usize, const SECONDS: u64> {
    periods: [(u64, u64); N],
    /// Number of the newest period since the epoch.
    newest: u64,
}

impl<const N: usize, const SECONDS: u64> Counts<N, SECONDS> {
    const fn new() -> Self {
        Self { periods: [(0, 0); N], newest: 0 }
    }

    /// The counts of the current period. A clock that was set back counts into the newest one.
    fn current(&mut self, now: Timestamp) -> &mut (u64, u64) {
        let period = (now.as_micros() / (SECONDS * 1_000_000)).max(self.newest);
        let gone = usize::try_from(period - self.newest).unwrap_or(N).min(N);
        for past in 1..=gone {
            self.periods[Self::place(self.newest, past)] = (0, 0);
        }
        self.newest = period;
        &mut self.periods[Self::place(period, 0)]
    }

    fn place(period: u64, later: usize) -> usize {
        // The remainder is less than `N`.
        (usize::try_from(period % (N as u64)).unwrap_or(0) + later) % N
    }

    fn totals(&mut self, now: Timestamp) -> (u64, u64) {
        self.current(now);
        self.periods.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }
}
