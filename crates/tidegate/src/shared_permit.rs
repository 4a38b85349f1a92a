//! Places taken in an in-flight limit that many nodes share.
//!
//! A place is held by a lease, and a lease ends by itself: whoever crashes gives its places back
//! within the time to live. Whoever lives renews its leases three times as often as needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_core::{LeaseId, Limit, Op};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::key::{Key, Scope};
use crate::shared::SharedLimiter;
use crate::store::{Charge, Store, StoreError};
use crate::verdict::Verdict;

/// Leases are renewed this many times before they would end.
const RENEWALS: u32 = 3;

/// The answer to [`SharedLimiter::acquire`].
#[derive(Debug)]
#[must_use = "dropping an admission gives its place back"]
pub enum SharedAdmission<S: Store + 'static> {
    /// Go ahead, and hold the permit while at it.
    Granted(SharedPermit<S>),
    /// Not now.
    Denied(Verdict),
}

impl<S: Store + 'static> SharedAdmission<S> {
    /// The permit, if granted.
    pub fn permit(self) -> Option<SharedPermit<S>> {
        match self {
            Self::Granted(permit) => Some(permit),
            Self::Denied(_) => None,
        }
    }

    /// True if granted.
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }
}

/// A place in every in-flight limit of a shared limiter, kept until it is dropped or released.
#[derive(Debug)]
#[must_use = "dropping a permit gives its place back"]
pub struct SharedPermit<S: Store + 'static> {
    held: Arc<Held<S>>,
    verdict: Verdict,
    renewing: Option<JoinHandle<()>>,
    runtime: Handle,
}

/// One place, and where it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) scope: Scope,
    pub(crate) limit: Limit,
    pub(crate) lease: LeaseId,
}

#[derive(Debug)]
struct Held<S> {
    limiter: SharedLimiter<S>,
    key: Box<[u8]>,
    taken: Vec<Taken>,
    lost: AtomicBool,
}

impl<S: Store + 'static> SharedPermit<S> {
    pub(crate) fn new(
        limiter: SharedLimiter<S>,
        key: &[u8],
        verdict: Verdict,
        taken: Vec<Taken>,
    ) -> Self {
        let runtime = Handle::current();
        let held = Arc::new(Held { limiter, key: key.into(), taken, lost: AtomicBool::new(false) });
        let renewing = held.interval().map(|interval| {
            let held = Arc::clone(&held);
            runtime.spawn(async move { held.keep(interval).await })
        });
        Self { held, verdict, renewing, runtime }
    }

    /// How things stood when the permit was granted.
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// True once a lease has ended, because the store could not be reached for too long: the place
    /// may be another's by now.
    pub fn is_lost(&self) -> bool {
        self.held.lost.load(Ordering::Relaxed)
    }

    /// Gives the place back and waits until it is; dropping the permit does not wait.
    pub async fn release(mut self) -> Result<(), StoreError> {
        self.stop_renewing();
        // Taken apart so that dropping does not release a second time.
        let held = Arc::clone(&self.held);
        self.renewing = None;
        self.held.lost.store(true, Ordering::Relaxed);
        held.each(Op::Release).await.map(|_| ())
    }

    fn stop_renewing(&self) {
        self.renewing.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Store + 'static> Drop for SharedPermit<S> {
    fn drop(&mut self) {
        self.stop_renewing();
        if !self.is_lost() && !self.held.taken.is_empty() {
            let held = Arc::clone(&self.held);
            // If this fails too, the lease ends by itself.
            self.runtime.spawn(async move { held.each(Op::Release).await });
        }
    }
}

impl<S: Store + 'static> Held<S> {
    /// How often the shortest lease has to be renewed; `None` if there is none.
    fn interval(&self) -> Option<Duration> {
        let ttl = |taken: &Taken| match taken.limit {
            Limit::InFlight(in_flight) => Some(Duration::from_micros(in_flight.ttl().as_micros())),
            _ => None,
        };
        self.taken.iter().filter_map(ttl).min().map(|ttl| ttl / RENEWALS)
    }

    async fn keep(&self, interval: Duration) {
        let mut failures = 0;
        while failures < RENEWALS {
            sleep(interval).await;
            match self.each(Op::Renew).await {
                Ok(true) => failures = 0,
                Ok(false) => failures = RENEWALS,
                // A store that is away now may be back in time for the next try.
                Err(_) => failures += 1,
            }
        }
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Does the same to every lease; true if none was denied.
    async fn each(&self, op: impl Fn(LeaseId) -> Op) -> Result<bool, StoreError> {
        let mut allowed = true;
        for taken in &self.taken {
            let key = Key::new(taken.scope, &self.key);
            let charge = Charge { key, limit: &taken.limit, op: op(taken.lease) };
            let decisions = self.limiter.decide(&[charge]).await?;
            allowed &= decisions.iter().all(tidegate_core::Decision::is_allowed);
        }
        Ok(allowed)
    }
}
