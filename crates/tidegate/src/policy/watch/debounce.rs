//! What wakes the watching thread.

use std::mem;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Changes that come closer together than this are one change.
const QUIET: Duration = Duration::from_millis(50);

/// After so many times [`QUIET`] files that never rest are read all the same.
const MAX_ROUNDS: u32 = 10;

/// Rung by file events, by whoever wants a reload, and by the end of the watch. It counts instead of
/// queueing, so a million events take no more room than one.
#[derive(Debug, Default)]
pub(super) struct Debounce {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Events so far; wraps.
    events: u64,
    /// There was an event since the last look.
    has_changed: bool,
    is_asked: bool,
    is_over: bool,
}

/// Why the thread goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// The watch was dropped.
    Over,
    /// Somebody wants a reload now.
    Asked,
    /// Files may have changed.
    Changed,
    /// Nothing happened for the whole time.
    Quiet,
}

impl Debounce {
    /// Files may have changed. Wakes the thread for the first of many events only.
    pub(super) fn change(&self) {
        let mut state = self.lock();
        state.events = state.events.wrapping_add(1);
        if !state.has_changed {
            state.has_changed = true;
            self.rung.notify_all();
        }
    }

    pub(super) fn ask(&self) {
        self.lock().is_asked = true;
        self.rung.notify_all();
    }

    pub(super) fn end(&self) {
        self.lock().is_over = true;
        self.rung.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// To be called before the files are looked at: what changes from here on wakes again.
    /// Says whether somebody asked for it.
    pub(super) fn begin_look(&self) -> bool {
        let mut state = self.lock();
        state.has_changed = false;
        mem::take(&mut state.is_asked)
    }

    /// Waits for anything to happen, but no longer than `limit`.
    pub(super) fn wait(&self, limit: Duration) -> Wake {
        let sleeps = |state: &mut State| !state.has_changed && !state.is_asked && !state.is_over;
        let waited = self.rung.wait_timeout_while(self.lock(), limit, sleeps);
        waited.unwrap_or_else(PoisonError::into_inner).0.wake()
    }

    /// After a change: waits until no other has come for a while.
    pub(super) fn settle(&self) -> Wake {
        let mut state = self.lock();
        for _ in 0..MAX_ROUNDS {
            let before = state.events;
            let sleeps = |state: &mut State| !state.is_asked && !state.is_over;
            let waited = self.rung.wait_timeout_while(state, QUIET, sleeps);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.is_asked || state.is_over || state.events == before {
                break;
            }
        }
        state.wake()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing can panic while it is held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wake(&self) -> Wake {
        match self {
            Self { is_over: true, .. } => Wake::Over,
            Self { is_asked: true, .. } => Wake::Asked,
            Self { has_changed: true, .. } => Wake::Changed,
            Self { .. } => Wake::Quiet,
        }
    }
}
