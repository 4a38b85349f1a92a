//! Requests at a constant rate, independent of their answers, and their outcomes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::histogram::Histogram;
use super::node::{Answer, TIMEOUT};

/// Time between two bursts of requests; a slow load has single requests, further apart.
const TICK: Duration = Duration::from_millis(2);
/// Maximum number of requests in flight; beyond it no requests are made.
const MAX_UNDER_WAY: usize = 8_192;
/// Number of kinds of requests with separate counters.
pub(crate) const KINDS: usize = 4;

/// The phase of a case; each has separate counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the fault.
    Before,
    /// The fault has begun, and the breaker has not noticed it yet.
    Unnoticed,
    /// The breaker has noticed the fault.
    Outage,
    /// The cause of the fault is removed.
    Mended,
    /// Everything has recovered.
    After,
}

const PHASES: [Phase; 5] =
    [Phase::Before, Phase::Unnoticed, Phase::Outage, Phase::Mended, Phase::After];

/// The outcome of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) kind: usize,
    pub(crate) answer: Answer,
}

/// The outcomes of all requests of one phase.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) times: Histogram,
    kind_times: [Histogram; KINDS],
    /// Allowed requests by kind.
    pub(crate) allowed: [AtomicU64; KINDS],
    pub(crate) denied: [AtomicU64; KINDS],
    /// Requests that the store has answered.
    pub(crate) by_store: [AtomicU64; KINDS],
    errors: AtomicU64,
    /// Requests that waited for the whole deadline.
    waited: AtomicU64,
}

impl Log {
    /// The time that 99 % of the requests of a kind did not exceed.
    pub(crate) fn times_of(&self, kind: usize) -> Duration {
        self.kind_times[kind].within(990)
    }

    fn add(&self, asked: Asked, took: Duration, deadline: Duration) {
        self.times.add(took);
        self.kind_times[asked.kind].add(took);
        let count = match asked.answer {
            Answer::Allowed(_) => &self.allowed[asked.kind],
            Answer::Denied(_) => &self.denied[asked.kind],
            Answer::Nothing => &self.errors,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if asked.answer.is_by_store() {
            self.by_store[asked.kind].fetch_add(1, Ordering::Relaxed);
        }
        if took >= deadline {
            self.waited.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
struct Shared {
    phase: AtomicUsize,
    logs: [Log; PHASES.len()],
    stops: AtomicBool,
    deadline: Duration,
}

/// A load that runs until it is stopped.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    under_way: Arc<Semaphore>,
    runtime: Handle,
}

impl Load {
    /// Sends this many requests per second to a store with this deadline.
    pub(crate) fn start<A, F>(runtime: &Handle, (rate, deadline): (u32, Duration), ask: A) -> Self
    where
        A: Fn(u64) -> F + Send + Sync + 'static,
        F: Future<Output = Asked> + Send + 'static,
    {
        let (phase, stops) = (AtomicUsize::new(0), AtomicBool::new(false));
        let logs = std::array::from_fn(|_| Log::default());
        let shared = Arc::new(Shared { phase, logs, stops, deadline });
        let under_way = Arc::new(Semaphore::new(MAX_UNDER_WAY));
        let load = Self {
            shared: Arc::clone(&shared),
            under_way: Arc::clone(&under_way),
            runtime: runtime.clone(),
        };
        let tick = TICK.max(Duration::from_secs(1) / rate.max(1));
        let per_tick = (f64::from(rate) * tick.as_secs_f64()).round() as u64;
        runtime.spawn(async move {
            let (mut tick, mut number) = (interval(tick), 0);
            // Missed requests are not made up for, because that would be another load.
            tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while !shared.stops.load(Ordering::Relaxed) {
                tick.tick().await;
                for _ in 0..per_tick {
                    let Ok(place) = Arc::clone(&under_way).try_acquire_owned() else { break };
                    let (asked, shared) = (ask(number), Arc::clone(&shared));
                    tokio::spawn(async move {
                        let phase = shared.phase.load(Ordering::Relaxed);
                        let start = Instant::now();
                        let reply = asked.await;
                        shared.logs[phase].add(reply, start.elapsed(), shared.deadline);
                        drop(place);
                    });
                    number += 1;
                }
            }
        });
        load
    }

    /// Starts a phase; returns its start.
    pub(crate) fn enter(&self, phase: Phase) -> Instant {
        self.shared.phase.store(phase as usize, Ordering::Relaxed);
        Instant::now()
    }

    pub(crate) fn log(&self, phase: Phase) -> &Log {
        &self.shared.logs[phase as usize]
    }

    /// Requests that got an error, in all phases.
    pub(crate) fn errors(&self) -> u64 {
        self.shared.logs.iter().map(|log| log.errors.load(Ordering::Relaxed)).sum()
    }

    /// Requests of some phases that waited for the whole deadline.
    pub(crate) fn waited(&self, phases: &[Phase]) -> u64 {
        phases.iter().map(|phase| self.log(*phase).waited.load(Ordering::Relaxed)).sum()
    }

    /// Admitted requests of a kind, in all phases.
    pub(crate) fn allowed(&self, kind: usize) -> u64 {
        self.shared.logs.iter().map(|log| log.allowed[kind].load(Ordering::Relaxed)).sum()
    }

    /// Stops sending, and waits for all answers.
    pub(crate) fn stop(&self) {
        self.shared.stops.store(true, Ordering::Relaxed);
        let all = self.under_way.acquire_many(MAX_UNDER_WAY as u32);
        let ended =
            self.runtime.block_on(async { tokio::time::timeout(TIMEOUT, all).await.is_ok() });
        assert!(ended, "a request waits for ever");
    }
}

/// The value of a counter.
pub(crate) fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}
