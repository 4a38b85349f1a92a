//! The state of the daemon: counters, the policy in force, readiness.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tidegate::policy::Revision;
use tidegate::store::StoreError;
use tidegate::{Span, Timestamp};

use crate::observability::access_log::AccessLog;
use crate::observability::hot_keys::{self, HotKey, HotKeys};
use crate::observability::log::Log;
use crate::runtime::accept::Refusal;
use crate::settings::KeyValues;
use crate::transport::Protocol;
use crate::transport::gateway::Upstreams;

/// The state of the daemon, shared by all threads.
#[derive(Debug)]
pub struct Status {
    started: Timestamp,
    is_draining: AtomicBool,
    needs_policy: AtomicBool,
    policy: Mutex<PolicyStatus>,
    threads: Mutex<Vec<Arc<Counters>>>,
    key_values: OnceLock<KeyValues>,
    upstreams: Mutex<Option<Arc<Upstreams>>>,
    log: Log,
    access_log: OnceLock<AccessLog>,
}

/// The policy in force, and the outcomes of loads.
#[derive(Clone, Debug, Default)]
pub struct PolicyStatus {
    /// Identifies the texts of the policy; `None` while there is no policy.
    pub revision: Option<Revision>,
    /// Its files.
    pub files: Vec<String>,
    /// When it was put in force.
    pub loaded_at: Option<Timestamp>,
    /// Number of policies that were put in force.
    pub loaded: u64,
    /// Number of policies that were refused.
    pub refused: u64,
    /// Why the last policy was refused; `None` if it was put in force.
    pub refusal: Option<String>,
}

/// The counters of one thread. No other thread writes to them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    listeners: [ListenerCounts; Protocol::ALL.len()],
    store_errors: [AtomicU64; StoreFailure::ALL.len()],
    /// Time that requests waited for Redis.
    pub(crate) store_times: Histogram,
    unmatched_descriptors: AtomicU64,
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

    /// The name in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Slow => "slow",
            Self::Overloaded => "overloaded",
            Self::Refused => "refused",
        }
    }

    /// The name in the log.
    pub(crate) const fn event(self) -> &'static str {
        match self {
            Self::Unavailable => "store_unavailable",
            Self::Slow => "store_slow",
            Self::Overloaded => "store_overloaded",
            Self::Refused => "store_refused",
        }
    }
}

#[derive(Debug, Default)]
struct ListenerCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// Failed requests that the store gave no decision for.
    undecided: AtomicU64,
    opened: AtomicU64,
    closed: AtomicU64,
    refused: [AtomicU64; Refusal::ALL.len()],
    /// Time from reading a request to its decision.
    times: Histogram,
}

/// The counters of one listener, summed over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListenerTotals {
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) failed: u64,
    /// Failed requests that the store gave no decision for.
    pub(crate) undecided: u64,
    pub(crate) connections: u64,
    pub(crate) open: u64,
    /// Connections closed before they were served, by reason.
    pub(crate) refused: [u64; Refusal::ALL.len()],
}

/// Upper bounds of the buckets, in microseconds.
pub(crate) const BOUNDS: [u64; 11] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

/// A histogram of times.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Span) {
        self.add_many(time, 1);
    }

    /// Adds the same time for several requests, which were answered together.
    pub(crate) fn add_many(&self, time: Span, requests: u64) {
        let micros = time.as_micros();
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.counts[bucket].fetch_add(requests, Ordering::Relaxed);
        self.micros.fetch_add(micros.saturating_mul(requests), Ordering::Relaxed);
    }
}

/// A histogram summed over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// By bucket; the last one has no bound.
    pub(crate) counts: [u64; BOUNDS.len() + 1],
    /// The sum of all times.
    pub(crate) micros: u64,
}

impl Counters {
    /// Counts a decision, or a request that has none.
    pub(crate) fn count(&self, listener: Protocol, verdict: Result<bool, ()>) {
        let counts = &self.listeners[listener as usize];
        let counter = match verdict {
            Ok(true) => &counts.allowed,
            Ok(false) => &counts.denied,
            Err(()) => &counts.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Decisions and failures of a listener so far, on this thread.
    pub(crate) fn requests(&self, listener: Protocol) -> u64 {
        let counts = &self.listeners[listener as usize];
        [&counts.allowed, &counts.denied, &counts.failed]
            .into_iter()
            .map(|counter| counter.load(Ordering::Relaxed))
            .fold(0, u64::wrapping_add)
    }

    /// The latency of a listener.
    pub(crate) const fn times(&self, listener: Protocol) -> &Histogram {
        &self.listeners[listener as usize].times
    }

    pub(crate) fn count_unmatched(&self, descriptors: u64) {
        self.unmatched_descriptors.fetch_add(descriptors, Ordering::Relaxed);
    }

    /// Counts a request that the store gave no decision for.
    pub(crate) fn count_store_error(&self, error: &StoreError) {
        let failure = StoreFailure::of(error);
        self.store_errors[failure as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_undecided(&self, listener: Protocol) {
        self.listeners[listener as usize].undecided.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_opened(&self, listener: Protocol) {
        self.listeners[listener as usize].opened.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self, listener: Protocol, refusal: Refusal) {
        self.listeners[listener as usize].refused[refusal as usize].fetch_add(1, Ordering::Relaxed);
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
            upstreams: Mutex::default(),
            log,
            access_log: OnceLock::new(),
        }
    }

    /// The log, for its level.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// The access log of the gateway, if there is one.
    pub(crate) fn access_log(&self) -> Option<&AccessLog> {
        self.access_log.get()
    }

    /// Opens the access log. The first call counts.
    pub(crate) fn open_access_log(&self) -> io::Result<()> {
        let _ = self.access_log.set(AccessLog::start()?);
        Ok(())
    }

    /// Records that a policy was put in force.
    pub fn policy_loaded(&self, revision: Revision, files: Vec<String>, now: Timestamp) {
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        policy.revision = Some(revision);
        policy.files = files;
        policy.loaded_at = Some(now);
        policy.loaded += 1;
        policy.refusal = None;
    }

    /// Records that a policy was refused; the last one stays in force.
    pub fn policy_refused(&self, why: &str) {
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        policy.refused += 1;
        policy.refusal = Some(why.to_owned());
    }

    /// Declares the daemon not ready while it has no policy.
    pub fn needs_policy(&self) {
        self.needs_policy.store(true, Ordering::Relaxed);
    }

    /// The policy in force.
    pub fn policy(&self) -> PolicyStatus {
        self.policy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Declares the daemon not ready, so that load balancers send no more requests.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Whether the daemon is shutting down.
    pub fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// Why the daemon is not ready, apart from its store; `None` if it is ready.
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

    /// Sets how values of keys are shown, for threads that start afterwards. The first call counts.
    pub(crate) fn show_keys(&self, values: KeyValues) {
        let _ = self.key_values.set(values);
    }

    /// Sets where the gateway forwards requests.
    pub(crate) fn forwards_to(&self, upstreams: Option<Arc<Upstreams>>) {
        *self.upstreams.lock().unwrap_or_else(PoisonError::into_inner) = upstreams;
    }

    /// Where the gateway forwards requests; `None` without a gateway.
    pub(crate) fn upstreams(&self) -> Option<Arc<Upstreams>> {
        self.upstreams.lock().unwrap_or_else(PoisonError::into_inner).clone()
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

    /// The counters of a listener.
    pub(crate) fn listener(&self, listener: Protocol) -> ListenerTotals {
        let mut tally = ListenerTotals::default();
        for thread in &*self.lock_threads() {
            let counts = &thread.listeners[listener as usize];
            let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let (opened, closed) = (read(&counts.opened), read(&counts.closed));
            tally.allowed += read(&counts.allowed);
            tally.denied += read(&counts.denied);
            // Counted after `failed`, so it must be read first: it is never the larger one.
            tally.undecided += read(&counts.undecided);
            tally.failed += read(&counts.failed);
            tally.connections += opened;
            tally.open += opened.saturating_sub(closed);
            for (sum, count) in tally.refused.iter_mut().zip(&counts.refused) {
                *sum += read(count);
            }
        }
        tally
    }

    /// Number of requests that the store gave no decision for, by reason.
    pub(crate) fn store_errors(&self) -> [(StoreFailure, u64); StoreFailure::ALL.len()] {
        let threads = self.lock_threads();
        StoreFailure::ALL.map(|failure| {
            let count = |thread: &Arc<Counters>| {
                thread.store_errors[failure as usize].load(Ordering::Relaxed)
            };
            (failure, threads.iter().map(count).sum())
        })
    }

    /// Number of descriptors that no limit applied to.
    pub(crate) fn unmatched_descriptors(&self) -> u64 {
        let count = |thread: &Arc<Counters>| thread.unmatched_descriptors.load(Ordering::Relaxed);
        self.lock_threads().iter().map(count).sum()
    }

    /// A histogram, summed over all threads.
    pub(crate) fn times(&self, which: impl Fn(&Counters) -> &Histogram) -> Times {
        let mut times = Times::default();
        for thread in &*self.lock_threads() {
            let histogram = which(thread);
            for (count, counter) in times.counts.iter_mut().zip(&histogram.counts) {
                *count += counter.load(Ordering::Relaxed);
            }
            times.micros += histogram.micros.load(Ordering::Relaxed);
        }
        times
    }

    /// The keys with most requests, or with most denied requests.
    pub(crate) fn hot_keys(&self, denied: bool) -> Vec<HotKey> {
        let threads = self.lock_threads();
        hot_keys::top(threads.iter().map(|thread| &thread.hot_keys), denied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_threads_are_summed() {
        let status = Status::new(Timestamp::from_secs(0), Log::default());
        for micros in [50, 100, 101, 2_000_000] {
            let thread = status.for_thread();
            thread.count(Protocol::Resp, Ok(micros > 50));
            thread.count(Protocol::Grpc, Err(()));
            thread.count_opened(Protocol::Resp);
            thread.store_times.add(Span::from_micros(micros));
            thread.times(Protocol::Resp).add_many(Span::from_micros(micros), 3);
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
        let sum = |times: &Times| times.counts.iter().sum::<u64>();
        assert_eq!((times.counts[0], times.counts[1], times.counts[11]), (2, 1, 1));
        assert_eq!((sum(&times), times.micros), (4, 2_000_251));
        let times = status.times(|thread| thread.times(Protocol::Resp));
        assert_eq!((times.counts[0], sum(&times), times.micros), (6, 12, 3 * 2_000_251));
    }

    #[test]
    fn the_reason_for_not_being_ready_is_known() {
        let status = Status::new(Timestamp::from_secs(0), Log::default());
        assert_eq!(status.reason(), None);
        status.needs_policy();
        assert_eq!(status.reason(), Some("no policy"));
        status.drain();
        assert_eq!(status.reason(), Some("draining"));
    }
}
