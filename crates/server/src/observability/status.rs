//! What the daemon knows about itself: what it counted, which policy is in force, whether it is ready.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tidegate::policy::Revision;
use tidegate::store::StoreError;
use tidegate::{Span, Timestamp};

use crate::observability::hot_keys::{self, HotKey, HotKeys};
use crate::observability::log::{Event, Level, Log};
use crate::settings::KeyValues;
use crate::transport::Protocol;

/// What the daemon knows about itself. Shared by all threads, and by whoever runs it.
#[derive(Debug)]
pub struct Status {
    started: Timestamp,
    is_draining: AtomicBool,
    needs_policy: AtomicBool,
    policy: Mutex<PolicyStatus>,
    threads: Mutex<Vec<Arc<Counters>>>,
    key_values: OnceLock<KeyValues>,
    log: Log,
}

/// Which policy is in force, and how it came to be.
#[derive(Clone, Debug, Default)]
pub struct PolicyStatus {
    /// Names its texts; `None` while there is no policy.
    pub revision: Option<Revision>,
    /// Its files.
    pub files: Vec<String>,
    /// When it was put in force.
    pub loaded_at: Option<Timestamp>,
    /// How often one was.
    pub loaded: u64,
    /// How often one could not be.
    pub refused: u64,
    /// Why the last one could not be; `None` if it could.
    pub refusal: Option<String>,
}

/// What one thread has counted. Nobody else writes to it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    listeners: [ListenerCounts; Protocol::ALL.len()],
    store_errors: [AtomicU64; StoreFailure::ALL.len()],
    /// How long Redis took.
    pub(crate) store_times: Histogram,
    /// How long gRPC calls took.
    pub(crate) grpc_times: Histogram,
    pub(crate) hot_keys: HotKeys,
}

/// Why the store gave no decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreFailure {
    Unavailable,
    Slow,
    Overloaded,
    Refused,
}

impl StoreFailure {
    pub(crate) const ALL: [Self; 4] =
        [Self::Unavailable, Self::Slow, Self::Overloaded, Self::Refused];

    pub(crate) const fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Slow(_) => Self::Slow,
            StoreError::Overloaded => Self::Overloaded,
            error if error.is_outage() => Self::Unavailable,
            _ => Self::Refused,
        }
    }

    /// As metrics spell it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Slow => "slow",
            Self::Overloaded => "overloaded",
            Self::Refused => "refused",
        }
    }
}

#[derive(Debug, Default)]
struct ListenerCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// Those of them that the store gave no decision for.
    undecided: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
}

/// What came through one listener, in all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenerTotals {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) failed: u64,
    /// Those of them that the store gave no decision for.
    pub(crate) undecided: u64,
    pub(crate) connections: u64,
    pub(crate) open: u64,
}

/// Upper bounds of times that are counted together, in microseconds.
pub(crate) const BOUNDS: [u64; 11] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

/// Times, counted by how long they were.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Span) {
        let micros = time.as_micros();
        let place = BOUNDS.partition_point(|bound| *bound < micros);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// Times of all threads: how many were at most each bound, how many in all, and their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) at_most: [u64; BOUNDS.len()],
    pub(crate) count: u64,
    pub(crate) micros: u64,
}

impl Counters {
    /// Counts an answer of the policy, or that there was none.
    pub(crate) fn count(&self, listener: Protocol, verdict: Result<bool, ()>) {
        let counts = &self.listeners[listener as usize];
        let counter = match verdict {
            Ok(true) => &counts.allowed,
            Ok(false) => &counts.denied,
            Err(()) => &counts.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_undecided(&self, listener: Protocol) {
        self.listeners[listener as usize].undecided.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_opened(&self, listener: Protocol) {
        self.listeners[listener as usize].opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_closed(&self, listener: Protocol) {
        self.listeners[listener as usize].closed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Status {
    pub(crate) fn new(started: Timestamp, log: Log) -> Self {
        Self {
            started,
            is_draining: AtomicBool::new(false),
            needs_policy: AtomicBool::new(false),
            policy: Mutex::default(),
            threads: Mutex::default(),
            key_values: OnceLock::new(),
            log,
        }
    }

    /// Where the daemon says what happens.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// A policy was put in force.
    pub fn policy_loaded(&self, revision: Revision, files: Vec<String>, now: Timestamp) {
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        policy.revision = Some(revision);
        policy.files = files;
        policy.loaded_at = Some(now);
        policy.loaded += 1;
        policy.refusal = None;
    }

    /// A policy could not be put in force; the last one stays.
    pub fn policy_refused(&self, why: &str) {
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        policy.refused += 1;
        policy.refusal = Some(why.to_owned());
    }

    /// Without a policy the daemon is not ready.
    pub fn needs_policy(&self) {
        self.needs_policy.store(true, Ordering::Relaxed);
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyStatus {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// From now on the daemon is not ready, so that nobody sends more to it.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Whether the daemon is about to end.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Why the daemon is not ready, whatever its store says; `None` if it is.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        let needs_policy = self.needs_policy.load(Ordering::Relaxed);
        if self.is_draining() {
            Some("draining")
        } else if needs_policy && self.policy().revision.is_none() {
            Some("no policy")
        } else {
            None
        }
    }

    /// When the daemon started.
    pub(crate) const fn started(&self) -> Timestamp {
        self.started
    }

    /// Sets how values of keys are shown. Counts for threads that start afterwards; the first call counts.
    pub(crate) fn show_keys(&self, values: KeyValues) {
        let _ = self.key_values.set(values);
    }

    /// How values of keys are shown.
    pub(crate) fn key_values(&self) -> KeyValues {
        self.key_values.get().copied().unwrap_or_default()
    }

    /// Counters of one more thread.
    pub(crate) fn for_thread(&self) -> Arc<Counters> {
        let hot_keys = HotKeys::showing(self.key_values());
        let counters = Arc::new(Counters { hot_keys, ..Counters::default() });
        self.lock_threads().push(Arc::clone(&counters));
        counters
    }

    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Counters>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a store that gave no decision.
    pub(crate) fn store_failed(&self, counters: &Counters, error: &StoreError) {
        let failure = StoreFailure::of(error);
        counters.store_errors[failure as usize].fetch_add(1, Ordering::Relaxed);
        self.log_store_failure(error);
    }

    /// Logs why the store gives no decision.
    pub(crate) fn log_store_failure(&self, error: &StoreError) {
        let (level, event) = match StoreFailure::of(error) {
            StoreFailure::Unavailable => (Level::Warn, Event::StoreUnavailable),
            StoreFailure::Slow => (Level::Warn, Event::StoreSlow),
            StoreFailure::Overloaded => (Level::Warn, Event::StoreOverloaded),
            StoreFailure::Refused => (Level::Error, Event::StoreRefuses),
        };
        self.log.say(level, event, error);
    }

    /// What came through a listener.
    pub(crate) fn listener(&self, listener: Protocol) -> ListenerTotals {
        let mut tally = ListenerTotals::default();
        for thread in &*self.lock_threads() {
            let counts = &thread.listeners[listener as usize];
            let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (opened, closed) = (read(&counts.opened), read(&counts.closed));
            tally.allowed += read(&counts.allowed);
            tally.denied += read(&counts.denied);
            // In this order, lest there be more of these than of those.
            tally.undecided += read(&counts.undecided);
            tally.failed += read(&counts.failed);
            tally.connections += opened;
            tally.open += opened.saturating_sub(closed);
        }
        tally
    }

    /// How many requests the store gave no decision for, by reason.
    pub(crate) fn store_errors(&self) -> [(StoreFailure, u64); StoreFailure::ALL.len()] {
        let threads = self.lock_threads();
        StoreFailure::ALL.map(|failure| {
            let count = |thread: &Arc<Counters>| {
                thread.store_errors[failure as usize].load(Ordering::Relaxed)
            };
            (failure, threads.iter().map(count).sum())
        })
    }

    /// Times of all threads.
    pub(crate) fn times(&self, which: fn(&Counters) -> &Histogram) -> Times {
        let mut times = Times::default();
        for thread in &*self.lock_threads() {
            let histogram = which(thread);
            for (place, counter) in histogram.counts.iter().enumerate() {
                let count = counter.load(Ordering::Relaxed);
                times.count += count;
                for at_most in times.at_most.iter_mut().skip(place) {
                    *at_most += count;
                }
            }
            times.micros += histogram.micros.load(Ordering::Relaxed);
        }
        times
    }

    /// The keys that came most, or were denied most.
    pub(crate) fn hot_keys(&self, denied: bool) -> Vec<HotKey> {
        let threads = self.lock_threads();
        hot_keys::top(threads.iter().map(|thread| &thread.hot_keys), denied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_together() {
        let status = Status::new(Timestamp::from_secs(0), Log::default());
        for micros in [50, 100, 101, 2_000_000] {
            let thread = status.for_thread();
            thread.count(Protocol::Resp, Ok(micros > 50));
            thread.count(Protocol::Grpc, Err(()));
            thread.count_opened(Protocol::Resp);
            thread.store_times.add(Span::from_micros(micros));
        }
        let listener = status.listener(Protocol::Resp);
        let expected = ListenerTotals {
            allowed: 3,
            denied: 1,
            connections: 4,
            open: 4,
            ..ListenerTotals::default()
        };
        assert_eq!((listener, status.listener(Protocol::Grpc).failed), (expected, 4));
        let times = status.times(|thread| &thread.store_times);
        assert_eq!((times.at_most[0], times.at_most[1], times.at_most[10]), (2, 3, 3));
        assert_eq!((times.count, times.micros), (4, 2_000_251));
    }

    #[test]
    fn what_hinders_is_told() {
        let status = Status::new(Timestamp::from_secs(0), Log::default());
        assert_eq!(status.reason(), None);
        status.needs_policy();
        assert_eq!(status.reason(), Some("no policy"));
        status.drain();
        assert_eq!(status.reason(), Some("draining"));
    }
}
