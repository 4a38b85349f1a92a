//! Decides whether states that are impossible under this node's numbers may be repaired.
//!
//! A state that is impossible under this node's numbers may be valid under another node's, and a
//! repair would give that node's units back. A node therefore repairs while all live nodes have its
//! policy and, if they do not, after it has waited for them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::store::DomainRevision;
use crate::store::redis::wire::entry::{MAX_DOMAINS, MAX_NODES};

/// The most policies of other nodes that are remembered; enough for all of one registry.
const MOST_OTHERS: usize = MAX_NODES * MAX_DOMAINS;

/// How long a node waits before it repairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// While other nodes have another policy, or nothing is known about them.
    pub(super) at_most: Duration,
    /// While all live nodes have the same policy: others may be about to register.
    pub(super) agreed: Duration,
}

/// True while impossible states are repaired.
#[derive(Debug)]
pub(super) struct Settling {
    shared: Arc<Shared>,
    /// Limits may be changed from any thread, also outside the runtime.
    runtime: Handle,
}

#[derive(Debug)]
struct Shared {
    waits: Waits,
    settled: Arc<AtomicBool>,
    /// Wakes the registry, so that a change is registered at once.
    changed: Arc<Notify>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the current wait: the end of an older one has no effect.
    wait: u64,
    /// Number of changes of this node's limits.
    change: u64,
    /// Since when all live nodes have had this node's policy.
    agreed_since: Option<Instant>,
    /// Policies of other nodes that the current wait or an earlier one has covered.
    others: BTreeSet<DomainRevision>,
}

impl Settling {
    /// # Panics
    /// Outside a runtime.
    pub(super) fn start(waits: Waits) -> Self {
        let shared = Shared {
            waits,
            settled: Arc::default(),
            changed: Arc::default(),
            state: Mutex::default(),
        };
        let settling = Self { shared: Arc::new(shared), runtime: Handle::current() };
        settling.begin();
        settling
    }

    /// The runtime that the store was started in.
    pub(super) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.settled)
    }

    /// Notified when this node's limits change.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.changed)
    }

    /// Starts a wait because this node's limits have changed.
    pub(super) fn begin(&self) {
        let mut state = self.shared.lock();
        state.change += 1;
        state.others.clear();
        self.wait(&mut state);
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Number of changes of this node's limits, to be passed to [`Settling::compared`].
    pub(super) fn change(&self) -> u64 {
        self.shared.lock().change
    }

    /// Reports that all live nodes have been compared with this one: `others` are policies that
    /// differ from this node's policy as of `change`.
    pub(super) fn compared(&self, change: u64, others: BTreeSet<DomainRevision>) {
        let mut state = self.shared.lock();
        if state.change != change {
            return;
        }
        if others.is_empty() {
            let since = *state.agreed_since.get_or_insert_with(Instant::now);
            state.others.clear();
            if since.elapsed() >= self.shared.waits.agreed {
                state.wait += 1;
                self.shared.settled.store(true, Ordering::Relaxed);
            }
        } else if !others.is_subset(&state.others) {
            // The first comparison after a change finds the policies that the wait has begun for.
            let is_waiting = !self.shared.settled.load(Ordering::Relaxed)
                && state.agreed_since.is_none()
                && state.others.is_empty();
            if state.others.len() + others.len() > MOST_OTHERS {
                state.others.clear();
            }
            state.others.extend(others);
            if !is_waiting {
                self.wait(&mut state);
            }
        }
        if !state.others.is_empty() {
            state.agreed_since = None;
        }
    }

    /// Disables repairs until the longest wait is over.
    fn wait(&self, state: &mut State) {
        let Waits { at_most, .. } = self.shared.waits;
        state.agreed_since = None;
        if at_most.is_zero() {
            self.shared.settled.store(true, Ordering::Relaxed);
            return;
        }
        self.shared.settled.store(false, Ordering::Relaxed);
        state.wait += 1;
        let (shared, wait) = (Arc::downgrade(&self.shared), state.wait);
        self.runtime.spawn(async move {
            sleep(at_most).await;
            let Some(shared) = shared.upgrade() else { return };
            let state = shared.lock();
            if state.wait == wait {
                shared.settled.store(true, Ordering::Relaxed);
            }
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "settling_tests.rs"]
mod tests;
