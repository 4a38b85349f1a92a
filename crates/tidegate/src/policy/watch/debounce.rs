//! Wakes the watching thread, with bursts of events combined.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Changes closer together than this count as one.
const QUIET: Duration = Duration::from_millis(50);

/// Number of [`QUIET`] periods after which files are read although they keep changing.
const MAX_ROUNDS: u32 = 10;

/// Signals file events, requests for a reload and the end of the watch to the thread. It keeps
/// flags and a count instead of a queue, so its memory is constant.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of events, wrapping.
    events: u64,
    /// An event arrived since the last read.
    has_changed: bool,
    is_requested: bool,
    is_over: bool,
}

/// Why the thread woke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// The watch was dropped.
    Ended,
    /// A reload was requested.
    Requested,
    /// Files may have changed.
    Changed,
    /// The timeout passed without a change.
    Quiet,
}

impl Debounce {
    /// Reports that files may have changed. Wakes the thread for the first event of a burst only.
    pub(super) fn change(&self) {
        let mut state = self.lock();
        state.events = state.events.wrapping_add(1);
        if !state.has_changed {
            state.has_changed = true;
            self.rung.notify_all();
        }
    }

    pub(super) fn request_reload(&self) {
        self.lock().is_requested = true;
        self.rung.notify_all();
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.rung.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Called before the files are read, so that later changes wake the thread again. Returns
    /// whether a reload was requested.
    pub(super) fn begin_read(&self) -> bool {
        let mut state = self.lock();
        state.has_changed = false;
        mem::take(&mut state.is_requested)
    }

    /// Waits for a change or a request, at most `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Wake {
        let sleeps =
            |state: &mut State| !state.has_changed && !state.is_requested && !state.is_over;
        let waited = self.rung.wait_timeout_while(self.lock(), limit, sleeps);
        waited.unwrap_or_else(PoisonError::into_inner).0.wake()
    }

    /// After a change: waits until no further change arrives for a while.
    pub(super) fn settle(&self) -> Wake {
        let mut state = self.lock();
        for _ in 0..MAX_ROUNDS {
            let before = state.events;
            let sleeps = |state: &mut State| !state.is_requested && !state.is_over;
            let waited = self.rung.wait_timeout_while(state, QUIET, sleeps);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.is_requested || state.is_over || state.events == before {
                break;
            }
        }
        state.wake()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code can panic while the lock is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&self) -> Wake {
        match self {
            Self { is_over: true, .. } => Wake::Ended,
            Self { is_requested: true, .. } => Wake::Requested,
            Self { has_changed: true, .. } => Wake::Changed,
            Self { .. } => Wake::Quiet,
        }
    }
}
