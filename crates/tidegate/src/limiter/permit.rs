//! Permits: places in in-flight limits, freed on drop.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

#[cfg(feature = "redis")]
use tidegate_core::Timestamp;
use tidegate_core::{LeaseId, Limit, Op};

use super::backend::{Backend, Fold, Keys};
use super::{Engine, NamedLimit};
use crate::key::{Key, Scope};
#[cfg(feature = "policy")]
use crate::policy::Settlement;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, StoreError};
use crate::verdict::Verdict;

/// The result of `acquire`.
#[derive(Debug)]
#[must_use = "dropping an admission frees its place"]
pub enum Admission {
    /// The request may go ahead while it holds the permit.
    Granted(Permit),
    /// The request is denied.
    Denied(Verdict),
}

impl Admission {
    pub(crate) fn new(verdict: Verdict, place: impl FnOnce() -> Box<dyn HeldPlaces>) -> Self {
        match verdict.is_allowed() {
            true => Self::Granted(Permit {
                verdict,
                place: Some(place()),
                #[cfg(feature = "policy")]
                settlement: None,
            }),
            false => Self::Denied(verdict),
        }
    }

    /// Adds the settlement of a granted request.
    #[cfg(feature = "policy")]
    pub(crate) fn settled_by(mut self, settlement: Option<Settlement>) -> Self {
        if let Self::Granted(permit) = &mut self {
            permit.settlement = settlement;
        }
        self
    }

    /// The permit, if granted.
    pub fn permit(self) -> Option<Permit> {
        match self {
            Self::Granted(permit) => Some(permit),
            Self::Denied(_) => None,
        }
    }

    /// True if granted.
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    /// The verdict either way.
    pub const fn verdict(&self) -> &Verdict {
        match self {
            Self::Granted(permit) => &permit.verdict,
            Self::Denied(verdict) => verdict,
        }
    }
}

/// A place in every in-flight limit of a limiter. Dropping it frees the place; units of rate limits
/// taken along with it stay spent.
///
/// Over a shared store, the permit renews its leases while it is held. If the process dies, the
/// leases expire.
#[must_use = "dropping a permit frees its place"]
pub struct Permit {
    verdict: Verdict,
    /// `None` once released.
    place: Option<Box<dyn HeldPlaces>>,
    #[cfg(feature = "policy")]
    settlement: Option<Settlement>,
}

/// The store of a permit's places.
pub(crate) trait HeldPlaces: Send + Sync {
    /// Whether a lease has ended.
    fn is_lost(&self) -> bool;

    /// Whether the permit holds a place.
    fn is_held(&self) -> bool {
        true
    }

    /// Frees the places without waiting.
    fn free(&mut self);

    /// Frees the places, and waits until they are free.
    fn release(&mut self) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>>;
}

impl Permit {
    /// The verdict that granted it.
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Takes the settlement of limits with `count`, `refund` or `actual`; `None` if the request has
    /// no such limit, or if the settlement was taken before. Only permits of a policy have one.
    #[cfg(feature = "policy")]
    pub const fn take_settlement(&mut self) -> Option<Settlement> {
        self.settlement.take()
    }

    /// Whether the permit holds a place. A permit of a policy may have a settlement only.
    #[doc(hidden)]
    pub fn holds_places(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_held())
    }

    /// True once a lease has ended, because the shared store was unreachable or this process did
    /// not run for too long: another request may hold the place. Decided by this process's clock.
    /// Always false for permits of a [`Limiter`](crate::Limiter) over memory.
    pub fn is_lost(&self) -> bool {
        self.place.as_ref().is_some_and(|place| place.is_lost())
    }

    /// Frees the place and waits until it is free; dropping the permit does not wait. If the
    /// release fails, it is tried once more in the background.
    pub async fn release(mut self) -> Result<(), StoreError> {
        if let Some(place) = &mut self.place {
            place.release().await?;
        }
        self.place = None;
        Ok(())
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("verdict", &self.verdict).finish_non_exhaustive()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(place) = &mut self.place {
            place.free();
        }
    }
}

/// One place, and the limit that it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) scope: Scope,
    pub(super) limit: Limit,
    pub(super) id: LeaseId,
}

impl Lease {
    /// An operation on the lease, whose key is `key`.
    pub(super) fn charge<'a>(&'a self, key: &'a [u8], op: impl Fn(LeaseId) -> Op) -> Charge<'a> {
        Charge::new(Key::new(self.scope, key), &self.limit, op(self.id))
    }
}

/// The places of one request.
#[derive(Debug)]
pub(super) struct Leases {
    /// Time before the request was sent. No lease ends earlier than its time to live after this
    /// instant.
    #[cfg(feature = "redis")]
    pub(super) asked_at: Timestamp,
    pub(super) leases: Vec<Lease>,
}

impl Leases {
    /// The places in these decisions.
    pub(super) fn of(limits: &[NamedLimit], fold: &Fold) -> Self {
        let decisions = fold.decisions.iter().flatten();
        let leases = limits.iter().zip(decisions).filter_map(|(limit, decision)| {
            let (scope, limit) = (limit.scope, limit.limit);
            decision.lease.map(|id| Lease { scope, limit, id })
        });
        Self {
            #[cfg(feature = "redis")]
            asked_at: fold.now,
            leases: leases.collect(),
        }
    }

    /// True if no decision has a place.
    pub(super) const fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }
}

impl<S: Backend> Engine<S> {
    /// Takes `cost` units of every limit, and returns the leases of the in-flight limits.
    pub(super) async fn take_places(
        &self,
        key: &[u8],
        cost: u64,
    ) -> Result<(Verdict, Leases), S::Error> {
        let limits = self.limits.load();
        let fold = Fold::listing(self.clock.now(), limits.len());
        let fold = self.decide(Keys::Same(key), Op::Take(cost), fold).await?;
        let leases = Leases::of(&limits, &fold);
        Ok((fold.verdict(), leases))
    }
}

/// Places in memory.
#[derive(Debug)]
pub(super) struct MemoryPlace {
    engine: Arc<Engine<MemoryStore>>,
    key: Box<[u8]>,
    leases: Vec<Lease>,
}

impl MemoryPlace {
    pub(super) fn new(engine: Arc<Engine<MemoryStore>>, key: &[u8], leases: Leases) -> Self {
        Self { engine, key: key.into(), leases: leases.leases }
    }
}

impl HeldPlaces for MemoryPlace {
    fn is_lost(&self) -> bool {
        false
    }

    fn free(&mut self) {
        let now = self.engine.clock.now();
        for lease in self.leases.drain(..) {
            self.engine.store.decide(now, &lease.charge(&self.key, Op::Release));
        }
        self.engine.freed(&self.key);
        #[cfg(feature = "tokio")]
        // The place may be on the overflow state, which all keys without room share.
        if self.engine.store.has_overflowed() {
            self.engine.queues.freed_all();
        }
    }

    fn release(&mut self) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        self.free();
        Box::pin(std::future::ready(Ok(())))
    }
}
