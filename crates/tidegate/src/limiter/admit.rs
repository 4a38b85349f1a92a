//! Admission of requests whose permit lasts until their end, and its reversal for requests that are
//! not served.

use std::convert::Infallible;
use std::sync::Arc;

use tidegate_core::{Op, Timestamp};

use super::backend::{Backend, Fold, Keys};
use super::limits::LimitSet;
#[cfg(feature = "redis")]
use super::permit::Admission;
use super::permit::{Leases, Permit};
#[cfg(feature = "redis")]
use super::shared::Shared;
use super::{Engine, Limiter};
use crate::key::to_key::ToKey;
use crate::store::undo::{Answered, undo};
use crate::store::{Store, StoreError};
#[cfg(feature = "http")]
use crate::verdict::AdmissionFields;
use crate::verdict::Verdict;

/// When a verdict on an admitted request lists its [parts](Verdict::parts). A denial always lists
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Listing {
    /// Always: for header fields on every response.
    Always,
    /// Only if the request is delayed or has several limits. An admission in memory then does not
    /// allocate.
    Denials,
}

impl Limiter {
    /// Takes `cost` units of every limit, and a place in every in-flight limit, which the permit
    /// holds. There is no permit without in-flight limits. If the request is then not served,
    /// return its units with [`Limiter::cancel`].
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, Listing, Rate};
    ///
    /// let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(2)).build()?);
    /// let (verdict, permit) = limiter.admit("user:17", 2, Listing::Denials);
    /// assert!(verdict.is_allowed() && permit.is_none());
    /// limiter.cancel("user:17", 2, &verdict);
    /// assert_eq!(limiter.peek("user:17", 1).remaining(), 2);
    /// # Ok::<(), tidegate::InvalidLimit>(())
    /// ```
    #[inline]
    #[doc(hidden)]
    pub fn admit(&self, key: impl ToKey, cost: u64, listing: Listing) -> (Verdict, Option<Permit>) {
        let key = key.to_key();
        if listing == Listing::Denials
            && let Some((verdict, _)) = self.admit_quickly(&key, cost)
        {
            return (verdict, None);
        }
        let (verdict, leases) = super::memory::ready(self.0.admit(&key, cost, listing));
        self.held(&key, verdict, leases)
    }

    /// Like [`Limiter::admit`] with every listing. If the verdict needs its parts for header fields
    /// only, the values of the fields replace the parts.
    #[cfg(feature = "http")]
    #[inline]
    #[doc(hidden)]
    pub fn admit_with_fields(
        &self,
        key: impl ToKey,
        cost: u64,
    ) -> (Verdict, Option<Permit>, Option<AdmissionFields>) {
        let key = key.to_key();
        if let Some((verdict, set)) = self.admit_quickly(&key, cost) {
            let fields = match (&set.fields, &*set.entries) {
                (Some(fields), [only]) if verdict.details().is_none() => {
                    Some(fields.of(only, &key, verdict.at(), verdict.decision()))
                }
                _ => None,
            };
            return (verdict, None, fields);
        }
        let (verdict, leases) = super::memory::ready(self.0.admit(&key, cost, Listing::Always));
        let (verdict, permit) = self.held(&key, verdict, leases);
        (verdict, permit, None)
    }

    /// Takes one unit on the quick path, and lists the parts only if the request is delayed or
    /// denied.
    #[inline(always)]
    fn admit_quickly(&self, key: &[u8], cost: u64) -> Option<(Verdict, &LimitSet)> {
        let Engine { limits, store, .. } = &*self.0;
        let set = limits.unchanged().filter(|_| cost == 1)?;
        let verdict = set.quick.as_ref()?.check(store, key)?;
        let is_listed = verdict.is_denied() || !verdict.decision().delay().is_zero();
        let verdict = if is_listed { verdict.listed(&set.entries, key) } else { verdict };
        Some((verdict, set))
    }

    fn held(&self, key: &[u8], verdict: Verdict, leases: Leases) -> (Verdict, Option<Permit>) {
        if leases.is_empty() {
            return (verdict, None);
        }
        let permit = self.admission(key, verdict.clone(), leases).permit();
        (verdict, permit)
    }

    /// Returns the units that [`Limiter::admit`] took for a request that was then not served. Units
    /// that were refilled since, and a slot of a leaky bucket with later slots behind it, are not
    /// returned.
    #[doc(hidden)]
    pub fn cancel(&self, key: impl ToKey, cost: u64, verdict: &Verdict) {
        let now = self.0.clock.now();
        let key = key.to_key();
        let undone = self.0.cancel(&self.0.store, now, (&key, cost), verdict);
        // A memory store does not fail.
        super::memory::ready(async { Ok::<_, Infallible>(undone.await) }).unwrap_or_default();
    }
}

#[cfg(feature = "redis")]
impl<S: Store + 'static> Limiter<Shared<S>> {
    /// Like [`Limiter::admit`](Limiter::<crate::store::memory::MemoryStore>::admit); always lists
    /// the parts.
    ///
    /// # Errors
    /// If the store gives no decision.
    #[doc(hidden)]
    pub async fn admit(
        &self,
        key: impl ToKey,
        cost: u64,
    ) -> Result<(Verdict, Option<Permit>), StoreError> {
        let key = key.to_key();
        let (verdict, leases) = self.0.admit(&key, cost, Listing::Always).await?;
        if leases.is_empty() {
            return Ok((verdict, None));
        }
        let admission: Admission = self.admission(&key, verdict.clone(), leases);
        Ok((verdict, admission.permit()))
    }

    /// Like [`Limiter::cancel`](Limiter::<crate::store::memory::MemoryStore>::cancel).
    ///
    /// # Errors
    /// If the store is unavailable: the units stay taken.
    #[doc(hidden)]
    pub async fn cancel(
        &self,
        key: impl ToKey,
        cost: u64,
        verdict: &Verdict,
    ) -> Result<(), StoreError> {
        let now = self.0.clock.now();
        self.0.cancel(self.store(), now, (&key.to_key(), cost), verdict).await
    }
}

impl<B: Backend> Engine<B> {
    async fn admit(
        &self,
        key: &[u8],
        cost: u64,
        listing: Listing,
    ) -> Result<(Verdict, Leases), B::Error> {
        let (limits, asked_at) = (self.limits.load(), self.clock.now());
        let fold = Fold::listing(asked_at, limits.len());
        let fold = self.decide(Keys::Same(key), Op::Take(cost), fold).await?;
        let leases = Leases::of(&limits, &fold);
        let is_listed = listing == Listing::Always || fold.is_notable();
        let verdict = match is_listed {
            true => fold.details(&limits.entries, key).fold(self.store.clock(asked_at)),
            false => fold.verdict(),
        };
        Ok((verdict, leases))
    }

    /// Returns the units that `verdict` charged. Limits whose numbers were changed since are
    /// skipped.
    async fn cancel<S: Store>(
        &self,
        store: &S,
        local: Timestamp,
        (key, cost): (&[u8], u64),
        verdict: &Verdict,
    ) -> Result<(), StoreError> {
        let (limits, at) = (self.limits.load(), verdict.at());
        let mut undone = Ok(());
        for (number, limit) in limits.iter().enumerate() {
            let decision = match verdict.parts().nth(number) {
                Some(part) if part.numbers == Some(&limit.limit) => part.decision,
                None if limits.len() == 1 => Some(verdict.decision()),
                _ => None,
            };
            let Some(decision) = decision else { continue };
            let charge = limit.charge(key, Op::Take(cost));
            undone = undo(store, local, &charge, Answered { decision, at }).await.and(undone);
        }
        self.freed(key);
        undone
    }
}

impl Verdict {
    /// The same verdict, with the part of its only limit.
    fn listed(self, limits: &Arc<[super::NamedLimit]>, key: &[u8]) -> Self {
        let decisions = [*self.decision()];
        let mut details = crate::verdict::Details::of_limiter(limits, key, &decisions);
        details.source = self.source();
        details.fold(self.at())
    }
}
