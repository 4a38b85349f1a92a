//! The verbs over a store that several nodes share: a decision takes a round trip and may fail.

use std::sync::Arc;

use tidegate_core::algorithm::inflight::InFlight;
use tidegate_core::{Decision, Explanation, Limit, Op, Timestamp};

use super::backend::{Backend, Charges, Fold};
use super::builder::BuildError;
use super::limits::NamedLimit;
use super::permit::{Admission, Leases};
use super::quick::Quick;
use super::renewal::SharedPlace;
use super::{Engine, Limiter};
use crate::clock::Clock;
use crate::key::to_key::ToKey;
use crate::store::{Batch, Charge, DecisionSource, LimitsRevision, Store, StoreError};
use crate::verdict::Verdict;

/// A store that several nodes share.
#[derive(Debug)]
pub struct Shared<S> {
    store: S,
    revision: LimitsRevision,
}

impl<S: Store> Shared<S> {
    /// Decides one charge.
    pub(super) async fn decide_one(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let batch = Batch::one(charge).revision(self.revision.current());
        self.store.decide(now, batch, decisions).await
    }
}

/// A limiter whose state several nodes share. Its verbs are those of [`Limiter`], but `async` and
/// fallible. A denial is a verdict; an error means that the store gave no decision.
/// [`StoreError::is_outage`] distinguishes outages from misconfigurations.
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
///     Ok(verdict) => { /* 429, retry after verdict.retry_after() */ }
///     Err(error) => { /* the store is unavailable: serve or refuse, as you choose */ }
/// }
/// # Ok(())
/// # }
/// ```
pub type SharedLimiter<S> = Limiter<Shared<S>>;

impl<S: Store + 'static> Limiter<Shared<S>> {
    pub(super) fn over_shared(limits: Vec<NamedLimit>, store: S, clock: Clock) -> Self {
        let store = Shared { store, revision: LimitsRevision::default() };
        Self(Arc::new(Engine::new(limits, store, clock)))
    }

    /// Like [`Limiter::check`](Limiter::<crate::store::memory::MemoryStore>::check).
    pub async fn check(&self, key: impl ToKey) -> Result<Verdict, StoreError> {
        self.0.charge(&key.to_key(), Op::Take(1)).await
    }

    /// Takes `cost` units for `key` from every limit, or from none. A cost of 0 takes nothing.
    pub async fn check_cost(&self, key: impl ToKey, cost: u64) -> Result<Verdict, StoreError> {
        self.0.charge(&key.to_key(), Op::Take(cost)).await
    }

    /// The verdict of `check_cost`, without taking any units.
    pub async fn peek(&self, key: impl ToKey, cost: u64) -> Result<Verdict, StoreError> {
        self.0.charge(&key.to_key(), Op::Read(cost)).await
    }

    /// Returns `units`, at most to full.
    pub async fn refund(&self, key: impl ToKey, units: u64) -> Result<Verdict, StoreError> {
        self.0.give_back(&key.to_key(), Op::Return(units)).await
    }

    /// Takes `units` that were already spent, as far as they fit; never denied.
    pub async fn force(&self, key: impl ToKey, units: u64) -> Result<Verdict, StoreError> {
        self.0.charge(&key.to_key(), Op::Force(units)).await
    }

    /// Resets `key` under every limit, as if it had never been seen.
    pub async fn reset(&self, key: impl ToKey) -> Result<Verdict, StoreError> {
        self.0.give_back(&key.to_key(), Op::Reset).await
    }

    /// Like `check`, with one key for each limit, in the order of the limits. On a cluster, keys of
    /// different slots are reserved one after the other.
    ///
    /// # Panics
    /// If there are not as many keys as limits.
    pub async fn check_together<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
    ) -> Result<Verdict, StoreError> {
        self.0.charge_together(keys, None).await
    }

    /// Like `check_together`, with a tag: a cluster keeps keys with the same tag in one slot, so
    /// one command decides all of them. A key has a separate state for each tag, so always use the
    /// same tag with a key.
    ///
    /// # Panics
    /// If there are not as many keys as limits.
    #[doc(hidden)]
    pub async fn check_together_in<K: AsRef<[u8]> + Sync>(
        &self,
        tag: impl ToKey,
        keys: &[K],
    ) -> Result<Verdict, StoreError> {
        self.0.charge_together(keys, Some(&tag.to_key())).await
    }

    /// Takes one unit for each of `keys` separately, and appends one verdict each. With one limit,
    /// all keys are sent to the store at once.
    ///
    /// # Errors
    /// Some keys may have been charged by then.
    pub async fn check_each<K: AsRef<[u8]> + Sync>(
        &self,
        keys: &[K],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), StoreError> {
        self.0.check_each(keys, verdicts).await
    }

    /// Like `check_cost`, with the [parts](Verdict::parts) of the verdict: the decision of each
    /// limit.
    pub async fn report(&self, key: impl ToKey, cost: u64) -> Result<Verdict, StoreError> {
        self.0.report(&key.to_key(), cost).await
    }

    /// The verdict of `check`, with the state of `key` under each limit. Changes nothing.
    pub async fn explain(&self, key: impl ToKey) -> Result<Verdict, StoreError> {
        self.0.explain(&key.to_key()).await
    }

    /// Takes one unit of every rate limit, and a place in every in-flight limit. The permit renews
    /// the lease of the place and frees the place when it is dropped; if this process crashes, the
    /// lease expires.
    pub async fn acquire(&self, key: impl ToKey) -> Result<Admission, StoreError> {
        let key = key.to_key();
        let (verdict, leases) = self.0.take_places(&key, 1).await?;
        Ok(self.admission(&key, verdict, leases))
    }

    pub(super) fn admission(&self, key: &[u8], verdict: Verdict, leases: Leases) -> Admission {
        let engine = Arc::clone(&self.0);
        Admission::new(verdict, || Box::new(SharedPlace::new(engine, key, leases)))
    }

    /// Replaces the limit called `name` while the limiter runs; state is kept. Permits renew their
    /// leases under the new limit at once.
    pub fn set_limit(&self, name: &str, limit: Limit) -> Result<(), BuildError> {
        self.0.set_limit(name, limit)
    }

    pub(super) fn accepts(&self, name: &str, limit: &Limit) -> Result<(), BuildError> {
        self.0.store.accepts(name, limit)
    }

    /// The store that keeps the state.
    #[doc(hidden)]
    pub fn store(&self) -> &S {
        &self.0.store.store
    }
}

impl<S: Store + 'static> Backend for Shared<S> {
    type Error = StoreError;

    async fn decide(
        &self,
        now: Timestamp,
        charges: &Charges<'_>,
        fold: &mut Fold,
    ) -> Result<DecisionSource, StoreError> {
        let charges: Vec<Charge<'_>> = (0..charges.len()).map(|i| charges.get(i)).collect();
        let mut decisions = Vec::with_capacity(charges.len());
        let batch = Batch::together(&charges).revision(self.revision.current());
        let source = self.store.decide(now, batch, &mut decisions).await?;
        decisions.into_iter().for_each(|decision| fold.push(decision));
        Ok(source)
    }

    async fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), StoreError> {
        let mut decisions = Vec::with_capacity(charges.len());
        let batch = Batch::each(charges).revision(self.revision.current());
        let source = self.store.decide(now, batch, &mut decisions).await?;
        let at = self.store.clock(now);
        let verdict = |decision| Verdict::of_one(at, decision).decided_by(source);
        verdicts.extend(decisions.into_iter().map(verdict));
        Ok(())
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn clock(&self, now: Timestamp) -> Timestamp {
        self.store.clock(now)
    }

    /// After a crash of a lease's holder, the place stays taken until the lease ends.
    fn accepts(&self, name: &str, limit: &Limit) -> Result<(), BuildError> {
        match limit {
            Limit::InFlight(it) if it.ttl() > InFlight::MAX_SHARED_TTL => {
                Err(BuildError::LeaseTooLong { name: name.to_owned(), ttl: it.ttl().into() })
            }
            _ => Ok(()),
        }
    }

    fn prepare(&self, _: &[NamedLimit], _: &Clock) -> Option<Quick> {
        // Called before any request is decided with the new numbers.
        self.revision.change();
        None
    }
}
