//! Places taken in an in-flight limit that many nodes share.
//!
//! A place is held by a lease, and a lease ends by itself: whoever crashes gives its places back
//! within the time to live. Whoever lives renews its leases three times as often as needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{LeaseId, Limit, Op, Span, Timestamp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

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
    released: bool,
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
    /// When the first lease ends for sure, by the limiter's own clock.
    ends: AtomicU64,
    lost: AtomicBool,
}

impl<S: Store + 'static> SharedPermit<S> {
    /// Keeps what was taken in answer to a request sent no earlier than `asked_at`.
    pub(crate) fn new(
        limiter: SharedLimiter<S>,
        asked_at: Timestamp,
        key: &[u8],
        verdict: Verdict,
        taken: Vec<Taken>,
    ) -> Self {
        let runtime = Handle::current();
        let (key, ends, lost) = (key.into(), AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let held = Arc::new(Held { limiter, key, taken, ends, lost });
        let renewing = shortest(&held.taken).map(|ttl| {
            held.lasts(asked_at, ttl);
            let held = Arc::clone(&held);
            runtime.spawn(async move { held.keep().await })
        });
        Self { held, verdict, renewing, released: false, runtime }
    }

    /// How things stood when the permit was granted.
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// True once a lease has ended, because the store could not be reached or this process did not
    /// run for too long: the place may be another's by now. Known at once, without asking.
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Gives the place back and waits until it is; dropping the permit does not wait. If that
    /// fails, it is tried once more in the background.
    pub async fn release(mut self) -> Result<(), StoreError> {
        self.stop_renewing();
        self.held.each(&self.held.taken, Op::Release).await?;
        self.released = true;
        Ok(())
    }

    fn stop_renewing(&self) {
        self.renewing.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Store + 'static> Drop for SharedPermit<S> {
    fn drop(&mut self) {
        self.stop_renewing();
        // One lease may be lost and another not, so what is lost is released too: that frees
        // nobody else's place.
        if !self.released && !self.held.taken.is_empty() {
            let held = Arc::clone(&self.held);
            // If this fails, the leases end by themselves.
            self.runtime.spawn(async move { held.each(&held.taken, Op::Release).await });
        }
    }
}

impl<S: Store + 'static> Held<S> {
    /// What was taken, by the numbers that are in force now.
    fn renumbered(&self) -> Vec<Taken> {
        let renumbered = |taken: &Taken| {
            let limit = self.limiter.limit(taken.scope).unwrap_or(taken.limit);
            Taken { limit, ..*taken }
        };
        self.taken.iter().map(renumbered).collect()
    }

    fn now(&self) -> Timestamp {
        self.limiter.0.clock.now()
    }

    /// Leases were taken or renewed after `asked_at`, and so end later than it says here.
    fn lasts(&self, asked_at: Timestamp, ttl: Span) {
        self.ends.store((asked_at + ttl).as_micros(), Ordering::Relaxed);
    }

    /// A process that was stopped learns from its own clock what no renewal could tell it.
    fn is_lost(&self) -> bool {
        let ended = self.now().as_micros() >= self.ends.load(Ordering::Relaxed);
        ended || self.lost.load(Ordering::Relaxed)
    }

    async fn keep(&self) {
        let mut failures = 0;
        while failures < RENEWALS {
            // From here on no change is missed.
            let changed = self.limiter.0.changed.notified();
            let Some(ttl) = shortest(&self.renumbered()) else { return };
            let interval = Duration::from_micros(ttl.as_micros()) / RENEWALS;
            // Where leases have become shorter, one that is longer is cut to what others have: it
            // has to be renewed by then, and not when it would have ended.
            let is_due = timeout(interval, changed).await.is_err();
            let (asked_at, taken) = (self.now(), self.renumbered());
            let Some(ttl) = shortest(&taken) else { return };
            match self.each(&taken, Op::Renew).await {
                Ok(true) => {
                    self.lasts(asked_at, ttl);
                    failures = 0;
                }
                Ok(false) => failures = RENEWALS,
                // A store that is away now may be back in time for the next try.
                Err(_) => failures += u32::from(is_due),
            }
        }
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Does the same to every lease, to the others too if one fails; true if none was denied.
    async fn each(&self, taken: &[Taken], op: impl Fn(LeaseId) -> Op) -> Result<bool, StoreError> {
        let mut allowed = Ok(true);
        for taken in taken {
            let key = Key::new(taken.scope, &self.key);
            let charge = Charge::new(key, &taken.limit, op(taken.lease));
            match self.limiter.decide(&[charge]).await {
                Ok((decisions, _)) => {
                    let renewed = decisions.iter().all(tidegate_core::Decision::is_allowed);
                    allowed = allowed.map(|allowed| allowed && renewed);
                }
                Err(error) => allowed = Err(error),
            }
        }
        allowed
    }
}

/// How long the shortest lease lives; `None` if there is none.
fn shortest(taken: &[Taken]) -> Option<Span> {
    let ttl = |taken: &Taken| match taken.limit {
        Limit::InFlight(in_flight) => Some(in_flight.ttl()),
        _ => None,
    };
    taken.iter().filter_map(ttl).min()
}
