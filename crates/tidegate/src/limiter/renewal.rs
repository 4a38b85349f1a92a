//! Leases of a shared store, renewed while a permit is held.
//!
//! Leases expire, so the places of a crashed process become free after the time to live. A running
//! process renews its leases three times as often as needed.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Decision, LeaseId, Limit, Op, Span, Timestamp};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::Engine;
use super::permit::{HeldPlaces, Lease, Leases};
use super::shared::Shared;
use crate::store::{Store, StoreError};

/// Leases are renewed this many times before they would end.
const RENEWALS: u32 = 3;

/// Places in a shared store.
#[derive(Debug)]
pub(super) struct SharedPlace<S> {
    held: Arc<Held<S>>,
    renewing: Option<JoinHandle<()>>,
    runtime: Handle,
}

#[derive(Debug)]
struct Held<S> {
    engine: Arc<Engine<Shared<S>>>,
    key: Box<[u8]>,
    leases: Vec<Lease>,
    /// The earliest end of a lease, by the limiter's own clock.
    ends: AtomicU64,
    lost: AtomicBool,
}

impl<S: Store + 'static> SharedPlace<S> {
    /// Renews leases that were just granted.
    pub(super) fn new(engine: Arc<Engine<Shared<S>>>, key: &[u8], leases: Leases) -> Self {
        let Leases { asked_at, leases } = leases;
        let runtime = Handle::current();
        let (key, ends, lost) = (key.into(), AtomicU64::new(u64::MAX), AtomicBool::new(false));
        let held = Arc::new(Held { engine, key, leases, ends, lost });
        let renewing = shortest(&held.leases).map(|ttl| {
            held.lasts(asked_at, ttl);
            let held = Arc::clone(&held);
            runtime.spawn(async move { held.keep().await })
        });
        Self { held, renewing, runtime }
    }

    fn stop_renewing(&self) {
        self.renewing.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Store + 'static> HeldPlaces for SharedPlace<S> {
    fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    fn free(&mut self) {
        self.stop_renewing();
        // If one lease is lost, the others may not be. Lost leases are released too, which frees no
        // other holder's place.
        if !self.held.leases.is_empty() {
            let held = Arc::clone(&self.held);
            // If the release fails, the leases expire.
            self.runtime.spawn(async move { held.release().await });
        }
    }

    fn release(&mut self) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        self.stop_renewing();
        Box::pin(async { self.held.release().await })
    }
}

impl<S: Store + 'static> Held<S> {
    async fn release(&self) -> Result<(), StoreError> {
        self.each(&self.leases, Op::Release).await?;
        self.engine.freed(&self.key);
        Ok(())
    }

    /// The leases, with the limits in force now.
    fn renumbered(&self) -> Vec<Lease> {
        let limits = self.engine.limits.load();
        let renumbered = |lease: &Lease| {
            let limit = limits.iter().find(|limit| limit.scope == lease.scope);
            Lease { limit: limit.map_or(lease.limit, |limit| limit.limit), ..*lease }
        };
        self.leases.iter().map(renumbered).collect()
    }

    fn now(&self) -> Timestamp {
        self.engine.clock.now()
    }

    /// Records that leases were taken or renewed after `asked_at`, and therefore end later than
    /// `asked_at + ttl`.
    fn lasts(&self, asked_at: Timestamp, ttl: Span) {
        self.ends.store((asked_at + ttl).as_micros(), Ordering::Relaxed);
    }

    /// A process that was stopped can notice an expired lease only by its own clock.
    fn is_lost(&self) -> bool {
        let ended = self.now().as_micros() >= self.ends.load(Ordering::Relaxed);
        ended || self.lost.load(Ordering::Relaxed)
    }

    async fn keep(&self) {
        let mut failures = 0;
        while failures < RENEWALS {
            // From here on no change is missed.
            let changed = self.engine.queues.changed.notified();
            let Some(ttl) = shortest(&self.renumbered()) else { return };
            let interval = Duration::from(ttl) / RENEWALS;
            // If some leases have become shorter, a longer lease is cut to the same length, so it
            // must be renewed within that length.
            let is_due = timeout(interval, changed).await.is_err();
            let (asked_at, leases) = (self.now(), self.renumbered());
            let Some(ttl) = shortest(&leases) else { return };
            match self.each(&leases, Op::Renew).await {
                Ok(true) => {
                    self.lasts(asked_at, ttl);
                    failures = 0;
                }
                Ok(false) => failures = RENEWALS,
                // An unavailable store may be available again for the next attempt.
                Err(_) => failures += u32::from(is_due),
            }
        }
        self.lost.store(true, Ordering::Relaxed);
    }

    /// Runs an operation on every lease, also after one has failed; true if none was denied.
    async fn each(&self, leases: &[Lease], op: fn(LeaseId) -> Op) -> Result<bool, StoreError> {
        let mut allowed = Ok(true);
        for lease in leases {
            let mut decisions = Vec::with_capacity(1);
            let charge = lease.charge(&self.key, op);
            match self.engine.store.decide_one(self.now(), &charge, &mut decisions).await {
                Ok(_) => {
                    let renewed = decisions.iter().all(Decision::is_allowed);
                    allowed = allowed.map(|allowed| allowed && renewed);
                }
                Err(error) => allowed = Err(error),
            }
        }
        allowed
    }
}

/// The shortest time to live of the leases; `None` without leases.
fn shortest(leases: &[Lease]) -> Option<Span> {
    let ttl = |lease: &Lease| match lease.limit {
        Limit::InFlight(in_flight) => Some(in_flight.ttl()),
        _ => None,
    };
    leases.iter().filter_map(ttl).min()
}
