//! State that all clients share: rate, progress, problems.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of problems that are kept; the first one ends the load.
const MAX_REPORTED: usize = 10;

/// State that all clients share.
#[derive(Default)]
pub(crate) struct Load {
    /// Decisions by transport.
    pub(crate) resp: AtomicU64,
    pub(crate) http: AtomicU64,
    pub(crate) grpc: AtomicU64,
    /// Clients that have disconnected in the middle of a request.
    pub(crate) vanished: AtomicU64,
    is_over: AtomicBool,
    wrong: Mutex<Vec<String>>,
    /// Decisions per second of one client.
    rate: u64,
}

/// Number of clients that share the rate.
const CLIENTS: u64 = 4;

impl Load {
    /// A load of this many decisions per second in total.
    pub(crate) fn new(rate: u64) -> Self {
        Self { rate: rate.div_ceil(CLIENTS), ..Self::default() }
    }

    /// True until the time is over or a problem occurs.
    pub(crate) fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Records a problem, and ends the load.
    pub(crate) fn tell(&self, problem: &impl ToString) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() < MAX_REPORTED {
            wrong.push(problem.to_string());
        }
        self.end();
    }

    /// All problems.
    pub(crate) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until as many decisions are due as have been made.
    pub(crate) fn pace(&self, start: Instant, made: u64) {
        let due = Duration::from_micros(made.saturating_mul(1_000_000) / self.rate);
        // A spurious wake-up only polls earlier.
        thread::park_timeout(due.saturating_sub(start.elapsed()));
    }
}

#[expect(clippy::disallowed_methods, reason = "the daemon keeps its own time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
