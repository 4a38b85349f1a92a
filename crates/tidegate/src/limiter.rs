//! The limiter: resolve → decide → fold.
//!
//! ```text
//!   key, cost ──resolve──▶ charges ──decide──▶ decisions ──fold──▶ verdict
//!              limits.rs            backend.rs           verdict/fold.rs
//! ```
//!
//! One [`Engine`] has every verb. A [`Limiter`] over memory runs it without waiting; a limiter over
//! a shared store awaits the store.

pub(crate) mod admit;
mod backend;
pub(crate) mod builder;
mod explain;
mod limits;
mod memory;
pub(crate) mod permit;
mod quick;
#[cfg(feature = "redis")]
mod renewal;
#[cfg(feature = "redis")]
pub(crate) mod shared;
#[cfg(feature = "tokio")]
pub(crate) mod wait;

use std::sync::Arc;

use tidegate_core::{Limit, Op, Timestamp};

use self::backend::{Backend, Charges, Fold, Keys};
use self::limits::Limits;
#[cfg(feature = "tokio")]
use self::wait::Queues;
use crate::clock::Clock;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, MAX_TOGETHER};
use crate::verdict::{Details, Verdict};

use self::builder::BuildError;
pub(crate) use self::limits::NamedLimit;

/// Decides whether requests may go ahead. Clones are handles to the same limiter.
///
/// Over memory, the default, every verb returns at once. Over a shared store ([`SharedLimiter`](crate::SharedLimiter), made
/// by [`LimiterBuilder::shared`](crate::LimiterBuilder::shared)) the same verbs are `async` and may fail.
///
/// ```
/// use tidegate::{Limit, Limiter, Rate};
///
/// let limit = Limit::token_bucket(Rate::per_minute(100)).burst(50).build()?;
/// let limiter = Limiter::new(limit);
/// if limiter.check("user:17").is_allowed() { /* serve */ }
/// # Ok::<(), tidegate::InvalidLimit>(())
/// ```
#[derive(Debug)]
pub struct Limiter<S = MemoryStore>(Arc<Engine<S>>);

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// The verbs, for every store.
#[derive(Debug)]
pub(crate) struct Engine<S> {
    limits: Limits,
    store: S,
    clock: Clock,
    #[cfg(feature = "tokio")]
    queues: Queues,
}

impl<S: Backend> Engine<S> {
    fn new(entries: Vec<NamedLimit>, store: S, clock: Clock) -> Self {
        Self {
            limits: Limits::new(entries, &store, &clock),
            store,
            clock,
            #[cfg(feature = "tokio")]
            queues: Queues::default(),
        }
    }

    /// The whole flow: resolves the keys to charges, decides them, folds the decisions.
    async fn decide(&self, keys: Keys<'_>, op: Op, mut fold: Fold) -> Result<Fold, S::Error> {
        let limits = self.limits.load();
        let charges = Charges { limits: &limits, keys, op };
        fold.source = self.store.decide(fold.now, &charges, &mut fold).await?;
        Ok(fold)
    }

    async fn charge(&self, key: &[u8], op: Op) -> Result<Verdict, S::Error> {
        let fold = Fold::new(self.clock.now());
        Ok(self.decide(Keys::Same(key), op, fold).await?.verdict())
    }

    /// Like [`Engine::charge`], with one key for each limit, and an optional tag that keeps the
    /// keys in one slot.
    async fn charge_together<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        tag: Option<&[u8]>,
    ) -> Result<Verdict, S::Error> {
        assert_eq!(keys.len(), self.limits.load().len(), "one key for each limit");
        let texts: [&[u8]; MAX_TOGETHER] =
            std::array::from_fn(|i| keys.get(i).map_or(&[][..], AsRef::as_ref));
        let (keys, fold) = (Keys::Each(&texts[..keys.len()], tag), Fold::new(self.clock.now()));
        Ok(self.decide(keys, Op::Take(1), fold).await?.verdict())
    }

    /// Like [`Engine::charge`], with the parts of the verdict.
    async fn details(&self, key: &[u8], op: Op) -> Result<(Box<Details>, Timestamp), S::Error> {
        let limits = self.limits.load();
        let fold = Fold::listing(self.clock.now(), limits.len());
        let fold = self.decide(Keys::Same(key), op, fold).await?;
        Ok((fold.details(&limits.entries, key), fold.now))
    }

    async fn report(&self, key: &[u8], cost: u64) -> Result<Verdict, S::Error> {
        let (details, now) = self.details(key, Op::Take(cost)).await?;
        Ok(details.fold(self.store.clock(now)))
    }

    async fn check_each<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        verdicts: &mut Vec<Verdict>,
    ) -> Result<(), S::Error> {
        let limits = self.limits.load();
        let [only] = &limits[..] else {
            for key in keys {
                verdicts.push(self.charge(key.as_ref(), Op::Take(1)).await?);
            }
            return Ok(());
        };
        for keys in keys.chunks(MAX_TOGETHER) {
            let now = self.clock.now();
            let charges: [Charge<'_>; MAX_TOGETHER] = std::array::from_fn(|i| {
                only.charge(keys[i.min(keys.len() - 1)].as_ref(), Op::Take(1))
            });
            self.store.decide_each(now, &charges[..keys.len()], verdicts).await?;
        }
        Ok(())
    }

    /// Returns units, and wakes the waiters of the key.
    async fn give_back(&self, key: &[u8], op: Op) -> Result<Verdict, S::Error> {
        let verdict = self.charge(key, op).await?;
        self.freed(key);
        Ok(verdict)
    }

    fn set_limit(&self, name: &str, limit: Limit) -> Result<(), BuildError> {
        self.store.accepts(name, &limit)?;
        self.limits.set(name, limit, &self.store, &self.clock)?;
        #[cfg(feature = "tokio")]
        self.queues.freed_all();
        Ok(())
    }

    /// Wakes the waiters of `key`, because units were returned.
    fn freed(&self, key: &[u8]) {
        #[cfg(feature = "tokio")]
        self.queues.freed(key);
        #[cfg(not(feature = "tokio"))]
        let _ = key;
    }
}
