//! A limiter whose state many nodes share: resolve → decide → fold, as in one process, but deciding
//! takes a network's time and may fail.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_core::{Decision, Explanation, Limit, Op, Timestamp};
use tokio::sync::Notify;

use crate::builder::{BuildError, check_lease};
use crate::clock::Clock;
use crate::key::{Key, Scope};
use crate::limits::{NamedLimit, UnknownLimit};
use crate::shared_permit::{SharedAdmission, SharedPermit, Taken};
use crate::store::{Charge, Store, StoreError};
use crate::verdict::{Details, Verdict};

/// Decides who may go ahead, together with every other node that has the same limits on the same
/// store. Cheap to share: clones are handles to the same limiter.
///
/// A denial is a verdict; an error means that the store gave none, and says whether it is away or
/// set up wrongly ([`StoreError::is_outage`]).
///
/// ```no_run
/// use tidegate::store::redis::{RedisConfig, RedisStore};
/// use tidegate::{Limit, Limiter, Rate};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect(RedisConfig::new("redis://127.0.0.1:6379")?).await?;
/// let limit = Limit::token_bucket(Rate::per_minute(100)).burst(50).build()?;
/// let limiter = Limiter::builder().limit("per user", limit).shared(store)?;
/// match limiter.check("user:17").await {
///     Ok(verdict) if verdict.is_allowed() => { /* serve */ }
///     Ok(verdict) => { /* 429, try again after verdict.retry_after() */ }
///     Err(error) => { /* the store is away: serve or refuse, as you choose */ }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SharedLimiter<S>(pub(crate) Arc<Shared<S>>);

#[derive(Debug)]
pub(crate) struct Shared<S> {
    limits: ArcSwap<Arc<[NamedLimit]>>,
    pub(crate) store: S,
    pub(crate) clock: Clock,
    /// Some limit has new numbers.
    pub(crate) changed: Notify,
}

impl<S> Clone for SharedLimiter<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Store + 'static> SharedLimiter<S> {
    pub(crate) fn from_parts(entries: Vec<NamedLimit>, store: S, clock: Clock) -> Self {
        let (limits, changed) = (ArcSwap::from_pointee(entries.into()), Notify::new());
        Self(Arc::new(Shared { limits, store, clock, changed }))
    }

    /// Takes one unit for `key` from every limit, or from none.
    pub async fn check(&self, key: impl AsRef<[u8]>) -> Result<Verdict, StoreError> {
        self.charge(key.as_ref(), Op::Take(1)).await
    }

    /// Takes `cost` units for `key` from every limit, or from none. A cost of 0 asks only.
    pub async fn check_cost(
        &self,
        key: impl AsRef<[u8]>,
        cost: u64,
    ) -> Result<Verdict, StoreError> {
        self.charge(key.as_ref(), Op::Take(cost)).await
    }

    /// Says what [`SharedLimiter::check_cost`] would, and takes nothing.
    pub async fn peek(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Verdict, StoreError> {
        self.charge(key.as_ref(), Op::Read(cost)).await
    }

    /// Gives `units` back, at most to full.
    pub async fn refund(&self, key: impl AsRef<[u8]>, units: u64) -> Result<Verdict, StoreError> {
        self.charge(key.as_ref(), Op::Return(units)).await
    }

    /// Books `units` that were already spent, as far as they fit; never denied.
    pub async fn force(&self, key: impl AsRef<[u8]>, units: u64) -> Result<Verdict, StoreError> {
        self.charge(key.as_ref(), Op::Force(units)).await
    }

    /// Forgets `key`: it starts afresh under every limit.
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<Verdict, StoreError> {
        self.charge(key.as_ref(), Op::Reset).await
    }

    /// As [`SharedLimiter::check`], with a key of its own for each limit, in the order they were
    /// given. On a cluster, keys of different slots are reserved one after the other; `tag` keeps
    /// them together, so that one command decides them all.
    ///
    /// # Panics
    /// If there are not as many keys as limits.
    pub async fn check_together<K: AsRef<[u8]> + Sync>(
        &self,
        tag: impl AsRef<[u8]>,
        keys: &[K],
    ) -> Result<Verdict, StoreError> {
        let (limits, tag) = (self.0.limits.load_full(), tag.as_ref());
        assert_eq!(keys.len(), limits.len(), "one key for each limit");
        let charges: Vec<Charge<'_>> = limits
            .iter()
            .zip(keys)
            .map(|(entry, key)| {
                let key = Key::new(entry.scope, key.as_ref()).tagged(tag);
                Charge::new(key, &entry.limit, Op::Take(1))
            })
            .collect();
        self.decide(&charges).await.map(|(decisions, at)| fold(at, &decisions))
    }

    /// As [`SharedLimiter::check_cost`], with the [parts](Verdict::parts) of the verdict.
    pub async fn report(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Verdict, StoreError> {
        let (limits, key) = (self.0.limits.load_full(), key.as_ref());
        let (decisions, at) = self.decide(&charges(&limits, key, Op::Take(cost))).await?;
        Ok(Details::of_limiter(&limits, key, decisions.into_iter()).fold(at))
    }

    /// Takes one unit of every limit, and a place in those that limit what is in flight. The permit
    /// keeps the place by renewing its lease, and gives it back when it is dropped; if this process
    /// dies, the place comes back when the lease ends.
    pub async fn acquire(&self, key: impl AsRef<[u8]>) -> Result<SharedAdmission<S>, StoreError> {
        let (limits, asked_at) = (self.0.limits.load_full(), self.0.clock.now());
        let (decisions, at) = self.decide(&charges(&limits, key.as_ref(), Op::Take(1))).await?;
        let verdict = fold(at, &decisions);
        if verdict.is_denied() {
            return Ok(SharedAdmission::Denied(verdict));
        }
        let taken = limits.iter().zip(&decisions).filter_map(|(entry, decision)| {
            let (scope, limit) = (entry.scope, entry.limit);
            decision.lease.map(|lease| Taken { scope, limit, lease })
        });
        let taken: Vec<Taken> = taken.collect();
        let permit = SharedPermit::new(self.clone(), asked_at, key.as_ref(), verdict, taken);
        Ok(SharedAdmission::Granted(permit))
    }

    /// Replaces the limit called `name` while the limiter runs; everybody's state is kept. Permits
    /// renew their leases by the new numbers at once.
    pub fn set_limit(&self, name: &str, limit: Limit) -> Result<(), BuildError> {
        if !self.0.limits.load().iter().any(|entry| &*entry.name == name) {
            return Err(BuildError::UnknownLimit(UnknownLimit::new(name)));
        }
        check_lease(name, &limit)?;
        // Before anybody decides by the new numbers.
        self.0.store.limits_changed();
        self.0.limits.rcu(|limits| {
            let mut limits = limits.to_vec();
            for entry in limits.iter_mut().filter(|entry| &*entry.name == name) {
                *entry = NamedLimit::new(name, limit);
            }
            Arc::<[NamedLimit]>::from(limits)
        });
        self.0.changed.notify_waiters();
        Ok(())
    }

    /// The numbers that are in force for this scope.
    pub(crate) fn limit(&self, scope: Scope) -> Option<Limit> {
        let limits = self.0.limits.load();
        limits.iter().find(|entry| entry.scope == scope).map(|entry| entry.limit)
    }

    /// What the state of `key` means under each limit, in words and numbers. Changes nothing.
    pub async fn explain(
        &self,
        key: impl AsRef<[u8]>,
    ) -> Result<Vec<(Arc<str>, Explanation)>, StoreError> {
        let (limits, now) = (self.0.limits.load_full(), self.0.clock.now());
        let mut explanations = Vec::with_capacity(limits.len());
        for entry in limits.iter() {
            let charge = entry.charge(key.as_ref(), Op::Read(0));
            let explanation = self.0.store.explain(now, &charge).await?;
            explanations.push((Arc::clone(&entry.name), explanation));
        }
        Ok(explanations)
    }

    /// The store that keeps the state.
    pub fn store(&self) -> &S {
        &self.0.store
    }

    async fn charge(&self, key: &[u8], op: Op) -> Result<Verdict, StoreError> {
        let limits = self.0.limits.load_full();
        self.decide(&charges(&limits, key, op)).await.map(|(decisions, at)| fold(at, &decisions))
    }

    pub(crate) async fn decide(
        &self,
        charges: &[Charge<'_>],
    ) -> Result<(Vec<Decision>, Timestamp), StoreError> {
        let (now, mut decisions) = (self.0.clock.now(), Vec::with_capacity(charges.len()));
        self.0.store.decide(now, charges, &mut decisions).await?;
        Ok((decisions, self.0.store.clock(now)))
    }
}

fn charges<'a>(limits: &'a [NamedLimit], key: &'a [u8], op: Op) -> Vec<Charge<'a>> {
    limits.iter().map(|entry| entry.charge(key, op)).collect()
}

fn fold(at: Timestamp, decisions: &[Decision]) -> Verdict {
    let mut verdict = Verdict::unlimited(at);
    decisions.iter().enumerate().for_each(|(number, decision)| verdict.fold(number, *decision));
    verdict
}
