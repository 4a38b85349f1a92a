//! Collects latencies in atomics, and asks the estimator for a limit when a window is complete.

use std::fmt;
use std::sync::TryLockError;

use tidegate_core::adaptive::{Estimator, WindowStats};
use tidegate_core::shed::retry_spread;
use tidegate_core::window::{Due, Histogram, Window};
use tidegate_core::{Span, Timestamp};

use super::Outcome;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The window that is being measured.
#[derive(Debug)]
pub(super) struct Measure {
    buckets: Box<[AtomicU32]>,
    dropped: AtomicU32,
    /// Requests that had to wait for a permit.
    queued: AtomicU32,
    /// The most requests in progress, noted when requests end: every peak is followed by a release.
    peak: AtomicU32,
    /// When the window was opened, and microseconds after which it may be complete. Kept as two
    /// values, so that after a clock was set back the window is checked at once, and not after a
    /// long time.
    opened: AtomicU64,
    due_after: AtomicU64,
    counts_after: AtomicU64,
    /// Seconds over which to spread the retries of shed requests, from the last window.
    retry_spread: AtomicU32,
    control: Mutex<Control>,
}

struct Control {
    estimator: Box<dyn Estimator>,
    window: Window,
    /// Sheds before this window.
    sheds: u64,
}

impl Measure {
    pub(super) fn new(estimator: Box<dyn Estimator>, now: Timestamp) -> Self {
        let measure = Self {
            buckets: (0..Histogram::BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            dropped: AtomicU32::new(0),
            queued: AtomicU32::new(0),
            peak: AtomicU32::new(0),
            opened: AtomicU64::new(0),
            due_after: AtomicU64::new(0),
            counts_after: AtomicU64::new(0),
            retry_spread: AtomicU32::new(1),
            control: Mutex::new(Control { estimator, window: Window::open(now, None), sheds: 0 }),
        };
        measure.open(now, &Window::open(now, None));
        measure
    }

    /// Notes how many requests were in progress.
    #[inline]
    pub(super) fn saw(&self, in_flight: u32) {
        if in_flight > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(in_flight, Ordering::Relaxed);
        }
    }

    /// Counts a request that has to wait. The estimator treats it as refused, like a shed request.
    #[cfg(feature = "tokio")]
    pub(super) fn queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Records an outcome. True if the window may be complete.
    #[inline]
    pub(super) fn record(&self, now: Timestamp, latency: Span, outcome: Outcome) -> bool {
        let age = now.as_micros().wrapping_sub(self.opened.load(Ordering::Relaxed));
        if age >= self.counts_after.load(Ordering::Relaxed) {
            match outcome {
                Outcome::Success => {
                    // Not one atomic step: two threads may count one sample together, which is
                    // cheaper than the exclusive access that an exact count would need.
                    let bucket = &self.buckets[Histogram::bucket(latency)];
                    let count = bucket.load(Ordering::Relaxed).saturating_add(1);
                    bucket.store(count, Ordering::Relaxed);
                }
                Outcome::Dropped => {
                    self.dropped.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Ignored => {}
            }
        }
        age >= self.due_after.load(Ordering::Relaxed)
    }

    /// Closes the window if it is complete. Returns the limit to apply from now on.
    pub(super) fn close(
        &self,
        now: Timestamp,
        in_flight: u32,
        sheds: u64,
        is_shadow: bool,
    ) -> Option<u32> {
        let mut control = match self.control.try_lock() {
            Ok(control) => control,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is closing the window.
            Err(TryLockError::WouldBlock) => return None,
        };
        let control = &mut *control;
        let histogram = Histogram::from_counts(std::array::from_fn(|index| {
            self.buckets[index].load(Ordering::Relaxed)
        }));
        let dropped = u64::from(self.dropped.load(Ordering::Relaxed));
        if let Due::At(next) = control.window.due(now, &histogram, dropped) {
            let age = next.as_micros().saturating_sub(self.opened.load(Ordering::Relaxed));
            self.due_after.store(age, Ordering::Relaxed);
            return None;
        }
        let shed = sheds.saturating_sub(control.sheds);
        let stats = WindowStats {
            median: histogram.median(),
            samples: histogram.samples(),
            dropped,
            peak: self.peak.load(Ordering::Relaxed).max(in_flight),
            refused: shed + u64::from(self.queued.load(Ordering::Relaxed)),
        };
        let requests = shed + stats.samples + dropped;
        self.retry_spread.store(retry_spread(shed, requests), Ordering::Relaxed);
        control.sheds = sheds;
        let mut step = control.estimator.window(now, &stats);
        while is_shadow && step.probe.is_some() {
            // No request is refused, so a probe would measure the load. Keep the baseline.
            let median = control.estimator.baseline().unwrap_or_default();
            let known = WindowStats { median, samples: Window::SAMPLES, ..stats };
            step = control.estimator.window(now, &known);
        }
        control.window = Window::open(now, step.probe);
        self.open(now, &control.window);
        Some(step.probe.map_or(step.limit, |probe| probe.limit))
    }

    /// Starts to collect for a new window.
    fn open(&self, now: Timestamp, window: &Window) {
        for bucket in &self.buckets {
            if bucket.load(Ordering::Relaxed) > 0 {
                bucket.store(0, Ordering::Relaxed);
            }
        }
        self.dropped.store(0, Ordering::Relaxed);
        self.queued.store(0, Ordering::Relaxed);
        self.peak.store(0, Ordering::Relaxed);
        let counts_after = window.counts_from().since(now).as_micros();
        let due_after = match window.probe() {
            Some(_) => counts_after,
            None => Window::SHORTEST.as_micros(),
        };
        self.opened.store(now.as_micros(), Ordering::Relaxed);
        self.counts_after.store(counts_after, Ordering::Relaxed);
        self.due_after.store(due_after, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn retry_spread(&self) -> u32 {
        self.retry_spread.load(Ordering::Relaxed)
    }

    /// The limit, ignoring probes, and the baseline.
    pub(super) fn estimate(&self) -> (u32, Option<Span>) {
        let control = lock(&self.control);
        (control.estimator.limit(), control.estimator.baseline())
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("limit", &self.estimator.limit()).finish_non_exhaustive()
    }
}
