//! Measures how busy the workers are, for the utilisation shedder.
//!
//! A task reads the utilisation every 10 ms, including its own lateness: a runtime with busy
//! workers runs its timers late. Without a runtime, requests read the utilisation instead.

use std::hash::BuildHasher as _;
use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::Weak;

use foldhash::quality::FixedState;
use tidegate_core::shed::{Class, Selection, UtilisationLevels, UtilisationShedder};
use tidegate_core::{Span, Timestamp};

use super::Shared;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// How often utilisation is read.
const INTERVAL: Span = Span::from_millis(10);

/// A timer that is this late shows a utilisation of 100 %.
#[cfg(feature = "tokio")]
const LAG_TARGET: Span = Span::from_millis(20);

/// The time after which other users are selected.
const HOUR: Span = Span::from_secs(3_600);

/// A hash of a user's identity, the same on every node.
#[doc(hidden)]
pub fn identity(user: &[u8]) -> u64 {
    FixedState::default().hash_one(user)
}

/// The utilisation shedder of a concurrency limiter.
#[derive(Debug)]
pub(super) struct Utilisation {
    shedder: Mutex<UtilisationShedder>,
    /// Whether any class is shed. Usually a request reads only this.
    is_active: AtomicBool,
    /// The last reading, in microseconds.
    read_at: AtomicU64,
    /// Whether a task reads the utilisation.
    is_watched: AtomicBool,
    /// Numbers requests without identity.
    next: AtomicU64,
}

impl Utilisation {
    pub(super) fn new(levels: UtilisationLevels, classes: usize) -> Self {
        Self {
            shedder: Mutex::new(UtilisationShedder::new(levels, classes)),
            is_active: AtomicBool::new(false),
            read_at: AtomicU64::new(0),
            is_watched: AtomicBool::new(false),
            next: AtomicU64::new(0),
        }
    }

    /// Whether any request is shed.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Whether a request is shed.
    pub(super) fn sheds(&self, class: Class, user: Option<u64>, now: Timestamp) -> bool {
        let selection = match user {
            Some(hash) => Selection::Identity { hash, hour: now.as_micros() / HOUR.as_micros() },
            None => Selection::Number(self.next.fetch_add(1, Ordering::Relaxed)),
        };
        lock(&self.shedder).sheds(class, selection)
    }

    fn read(&self, now: Timestamp, thousandths: u64) {
        self.read_at.store(now.as_micros(), Ordering::Relaxed);
        let mut shedder = lock(&self.shedder);
        shedder.observe(now, thousandths);
        let is_active = (1..Class::MAX)
            .any(|rank| shedder.fraction(Class::new(u8::try_from(rank).unwrap_or(u8::MAX))) > 0);
        self.is_active.store(is_active, Ordering::Relaxed);
    }
}

impl Shared {
    /// Requests in progress, in thousandths of the limit.
    fn load(&self) -> u64 {
        let limit = self.thresholds[0].load(Ordering::Relaxed).max(1);
        u64::from(self.in_flight.load(Ordering::Relaxed)) * 1_000 / u64::from(limit)
    }

    /// Reads the utilisation if it is due, or starts the task that does.
    #[inline]
    pub(super) fn observe(self: &Arc<Self>, utilisation: &Utilisation) {
        if !utilisation.is_watched.load(Ordering::Relaxed) {
            self.start_watching(utilisation);
        }
    }

    #[cold]
    fn start_watching(self: &Arc<Self>, utilisation: &Utilisation) {
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            if !utilisation.is_watched.swap(true, Ordering::Relaxed) {
                runtime.spawn(watch(Arc::downgrade(self)));
            }
            return;
        }
        let now = self.clock.now();
        let since = now.as_micros().abs_diff(utilisation.read_at.load(Ordering::Relaxed));
        if since >= INTERVAL.as_micros() {
            utilisation.read(now, self.load());
        }
    }
}

/// Reads the utilisation until the limiter is gone.
#[cfg(feature = "tokio")]
async fn watch(shared: Weak<Shared>) {
    /// Marks the limiter as unwatched when the runtime ends, so that a task of another runtime
    /// takes over.
    struct Watching(Weak<Shared>);

    impl Drop for Watching {
        fn drop(&mut self) {
            if let Some(utilisation) =
                self.0.upgrade().as_ref().and_then(|it| it.utilisation.as_ref())
            {
                utilisation.is_watched.store(false, Ordering::Relaxed);
            }
        }
    }

    let watching = Watching(shared);
    loop {
        let Some(clock) = watching.0.upgrade().map(|shared| shared.clock.clone()) else { return };
        let due = clock.now() + INTERVAL;
        clock.sleep_until(due).await;
        let Some(shared) = watching.0.upgrade() else { return };
        let Some(utilisation) = &shared.utilisation else { return };
        let now = clock.now();
        let lag = now.since(due).as_micros() * 1_000 / LAG_TARGET.as_micros();
        utilisation.read(now, shared.load().max(lag));
    }
}
