//! The limiter: resolve → decide → fold.
//!
//! ```text
//!   key, cost ──resolve──▶ charges ──decide──▶ decisions ──fold──▶ verdict
//!              limits.rs             store/               verdict.rs
//! ```

use std::sync::Arc;

use tidegate_core::{Decision, Explanation, Limit, Op};

use crate::builder::Builder;
use crate::clock::Clock;
use crate::limits::{self, Limits, NamedLimit, UnknownLimit};
use crate::permit::{Admission, Held, Permit};
use crate::store::memory::{MemoryStats, MemoryStore};
use crate::verdict::{Details, Verdict};
#[cfg(feature = "tokio")]
use crate::wait::Queues;

/// Decides who may go ahead. Cheap to share: clones are handles to the same limiter.
///
/// ```
/// use tidegate::{Limit, Limiter, Rate};
///
/// let limit = Limit::token_bucket(Rate::per_minute(100)).burst(50).build()?;
/// let limiter = Limiter::new(limit);
/// if limiter.check("user:17").is_allowed() { /* serve */ }
/// # Ok::<(), tidegate::InvalidLimit>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter(Arc<Shared>);

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) limits: Limits,
    pub(crate) store: MemoryStore,
    pub(crate) clock: Clock,
    #[cfg(feature = "tokio")]
    pub(crate) queues: Queues,
}

impl Limiter {
    /// One limit, kept per key. For several limits, a bound or a clock, see [`Limiter::builder`].
    ///
    /// # Panics
    /// If the system refuses to reserve address space; the builder reports that instead.
    pub fn new(limit: Limit) -> Self {
        Self::builder()
            .limit("default", limit)
            .build()
            .expect("address space for the default store")
    }

    /// Collects limits and options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn from_parts(entries: Vec<NamedLimit>, store: MemoryStore, clock: Clock) -> Self {
        let store = store.with_clock(clock.clone());
        Self(Arc::new(Shared {
            limits: Limits::new(entries, &store, &clock),
            store,
            clock,
            #[cfg(feature = "tokio")]
            queues: Queues::default(),
        }))
    }

    /// Takes one unit for `key` from every limit, or from none.
    #[must_use = "a verdict that nobody reads limits nothing"]
    #[inline(always)]
    pub fn check(&self, key: impl AsRef<[u8]>) -> Verdict {
        let (key, shared) = (key.as_ref(), self.shared());
        if let Some(quick) = shared.limits.unchanged().and_then(|limits| limits.quick.as_ref())
            && let Some(verdict) = quick.check(&shared.store, key)
        {
            return verdict;
        }
        let mut verdict = Verdict::UNDECIDED;
        self.take_into(key, &mut verdict);
        verdict
    }

    /// Takes `cost` units for `key` from every limit, or from none. A cost of 0 asks only.
    #[must_use = "a verdict that nobody reads limits nothing"]
    pub fn check_cost(&self, key: impl AsRef<[u8]>, cost: u64) -> Verdict {
        self.charge(key.as_ref(), Op::Take(cost))
    }

    /// Says what [`Limiter::check_cost`] would, and takes nothing.
    #[must_use = "a verdict that nobody reads limits nothing"]
    pub fn peek(&self, key: impl AsRef<[u8]>, cost: u64) -> Verdict {
        self.charge(key.as_ref(), Op::Read(cost))
    }

    /// Gives `units` back, at most to full: the work failed, or cost less than was taken.
    pub fn refund(&self, key: impl AsRef<[u8]>, units: u64) -> Verdict {
        let verdict = self.charge(key.as_ref(), Op::Return(units));
        self.freed(key.as_ref());
        verdict
    }

    /// Books `units` that were already spent, as far as they fit; never denied. What did not fit
    /// is [`Verdict::unbooked`].
    pub fn force(&self, key: impl AsRef<[u8]>, units: u64) -> Verdict {
        self.charge(key.as_ref(), Op::Force(units))
    }

    /// Forgets `key`: it starts afresh under every limit.
    pub fn reset(&self, key: impl AsRef<[u8]>) -> Verdict {
        let verdict = self.charge(key.as_ref(), Op::Reset);
        self.freed(key.as_ref());
        verdict
    }

    /// Takes one unit where the first quick way did not lead.
    #[inline(never)]
    fn take_into(&self, key: &[u8], verdict: &mut Verdict) {
        let shared = self.shared();
        let quickly = match shared.limits.unchanged() {
            Some(_) => None,
            None => shared.limits.with(|limits| limits.quick.as_ref()?.check(&shared.store, key)),
        };
        *verdict = quickly.unwrap_or_else(|| self.charge(key, Op::Take(1)));
    }

    /// The whole flow: resolve the key to charges, decide them, fold the decisions.
    #[inline(never)]
    pub(crate) fn charge(&self, key: &[u8], op: Op) -> Verdict {
        let Shared { limits, store, clock, .. } = self.shared();
        let now = clock.now();
        limits.with(|limits| match &**limits {
            [limit] => Verdict::of_one(now, store.decide(now, &limit.charge(key, op))),
            limits => limits::fold(limits, now, store, |_| (key, op), |_, _| {}),
        })
    }

    /// As [`Limiter::check`], with a key of its own for each limit, in the order they were given:
    /// one unit from each, or from none.
    ///
    /// # Panics
    /// If there are not as many keys as limits.
    #[must_use = "a verdict that nobody reads limits nothing"]
    pub fn check_together<K: AsRef<[u8]>>(&self, keys: &[K]) -> Verdict {
        let Shared { limits, store, clock, .. } = self.shared();
        let now = clock.now();
        limits.with(|limits| {
            assert_eq!(keys.len(), limits.len(), "one key for each limit");
            limits::fold(limits, now, store, |i| (keys[i].as_ref(), Op::Take(1)), |_, _| {})
        })
    }

    /// Takes one unit for each of `keys`, each on its own, and appends one verdict each.
    ///
    /// Faster than asking one by one: the memory of all is fetched together.
    pub fn check_each<K: AsRef<[u8]>>(&self, keys: &[K], verdicts: &mut Vec<Verdict>) {
        let Shared { limits, store, clock, .. } = self.shared();
        limits.with(|limits| match &limits.quick {
            Some(quick) => {
                let otherwise = |key: &[u8]| self.charge(key, Op::Take(1));
                quick.check_each(store, keys, verdicts, otherwise);
            }
            None => limits::each(limits, clock.now(), store, keys, verdicts),
        });
    }

    /// As [`Limiter::check_cost`], with the [parts](Verdict::parts) of the verdict: what every limit said.
    #[must_use = "a verdict that nobody reads limits nothing"]
    pub fn report(&self, key: impl AsRef<[u8]>, cost: u64) -> Verdict {
        let (key, Shared { limits, store, clock, .. }) = (key.as_ref(), self.shared());
        let now = clock.now();
        limits.with(|limits| {
            let mut decisions = Vec::with_capacity(limits.len());
            let each = |_, decision: &Decision| decisions.push(*decision);
            limits::fold(limits, now, store, |_| (key, Op::Take(cost)), each);
            Details::of_limiter(&limits.entries, key, decisions.into_iter()).fold(now)
        })
    }

    /// Takes one unit of every limit, and a place in those that limit what is in flight. The place
    /// is given back when the permit is dropped.
    ///
    /// ```
    /// use tidegate::{Admission, InFlight, Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::in_flight(2, InFlight::NO_EXPIRY)?);
    /// let first = limiter.acquire("user:17");
    /// let second = limiter.acquire("user:17");
    /// assert!(first.is_granted() && second.is_granted());
    /// assert!(matches!(limiter.acquire("user:17"), Admission::Denied(_)));
    /// drop(first);
    /// assert!(limiter.acquire("user:17").is_granted());
    /// # Ok::<(), tidegate::InvalidLimit>(())
    /// ```
    pub fn acquire(&self, key: impl AsRef<[u8]>) -> Admission {
        let (key, Shared { limits, store, clock, .. }) = (key.as_ref(), self.shared());
        let now = clock.now();
        limits.with(|limits| {
            let mut leases = Vec::new();
            let each = |i: usize, decision: &Decision| {
                leases.extend(Held::of(limits[i].scope, limits[i].limit, decision));
            };
            let verdict = limits::fold(limits, now, store, |_| (key, Op::Take(1)), each);
            match verdict.is_allowed() {
                true => Admission::Granted(Permit::new(self.clone(), key, verdict, leases)),
                false => Admission::Denied(verdict),
            }
        })
    }

    /// Replaces the limit called `name` while the limiter runs. Everybody's state is kept: what was
    /// spent stays spent, and nobody waits longer than one full refill at the new numbers. Only
    /// another kind of state (another algorithm family, another window length) starts afresh.
    ///
    /// ```
    /// use tidegate::{Limit, Limiter, Rate};
    ///
    /// let limiter = Limiter::new(Limit::token_bucket(Rate::per_second(10)).build()?);
    /// assert!(limiter.check("user:17").is_allowed());
    /// limiter.set_limit("default", Limit::token_bucket(Rate::per_second(20)).build()?)?;
    /// assert_eq!(limiter.peek("user:17", 1).limit(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_limit(&self, name: &str, limit: Limit) -> Result<(), UnknownLimit> {
        let Shared { limits, store, clock, .. } = self.shared();
        limits.set(name, limit, store, clock)?;
        #[cfg(feature = "tokio")]
        self.shared().queues.freed_all();
        Ok(())
    }

    /// What the state of `key` means under each limit, in words and numbers.
    pub fn explain(&self, key: impl AsRef<[u8]>) -> Vec<(Arc<str>, Explanation)> {
        let Shared { limits, store, clock, .. } = self.shared();
        let now = clock.now();
        limits.with(|limits| {
            let explain = |entry: &NamedLimit| {
                let key = entry.charge(key.as_ref(), Op::Take(0)).key;
                (Arc::clone(&entry.name), store.explain(now, key, &entry.limit))
            };
            limits.iter().map(explain).collect()
        })
    }

    /// The name of limit number `number`, as in [`Verdict::binding`] and [`Verdict::denied_by`].
    pub fn limit_name(&self, number: usize) -> Option<Arc<str>> {
        self.shared().limits.with(|limits| limits.get(number).map(|entry| Arc::clone(&entry.name)))
    }

    /// Memory in use, and what had to be forgotten for want of it.
    pub fn stats(&self) -> MemoryStats {
        self.shared().store.stats()
    }

    #[inline(always)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    /// A permit of `key` was dropped. Its place may have been one that all keys without room share.
    pub(crate) fn freed_by_permit(&self, key: &[u8]) {
        self.freed(key);
        #[cfg(feature = "tokio")]
        if self.shared().store.has_overflowed() {
            self.shared().queues.freed_all();
        }
    }

    /// Units of `key` came back: whoever waits for them may ask again.
    pub(crate) fn freed(&self, key: &[u8]) {
        #[cfg(feature = "tokio")]
        self.shared().queues.freed(key);
        #[cfg(not(feature = "tokio"))]
        let _ = key;
    }
}
