//! The verbs over memory, which never wait.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::{Limit, Op};

use super::builder::{BuildError, LimiterBuilder};
use super::permit::{Admission, Leases, MemoryPlace};
use super::{Engine, Limiter, NamedLimit};
use crate::clock::Clock;
use crate::key::to_key::ToKey;
use crate::store::memory::{MemoryStats, MemoryStore};
use crate::verdict::Verdict;

/// Polls a future of a memory store, which is ready at once, and returns its value.
#[inline(always)]
pub(super) fn ready<T>(future: impl Future<Output = Result<T, Infallible>>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(value)) => value,
        Poll::Pending => unreachable!("memory decides without waiting"),
    }
}

impl Limiter {
    /// Creates a limiter with one limit. For several limits, a memory bound or a clock, see
    /// [`Limiter::builder`].
    ///
    /// # Panics
    /// If the system refuses to reserve address space; the builder reports that instead.
    pub fn new(limit: Limit) -> Self {
        let builder = Self::builder().limit("default", limit);
        builder.build().expect("address space for the default store")
    }

    /// Collects limits and options.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    pub(super) fn over_memory(limits: Vec<NamedLimit>, store: MemoryStore, clock: Clock) -> Self {
        Self(Arc::new(Engine::new(limits, store.with_clock(clock.clone()), clock)))
    }

    /// Takes one unit for `key` from every limit, or from none.
    #[must_use = "an unread verdict limits nothing"]
    #[inline(always)]
    pub fn check(&self, key: impl ToKey) -> Verdict {
        let key = key.to_key();
        let (key, Engine { limits, store, .. }) = (&*key, &*self.0);
        if let Some(quick) = limits.unchanged().and_then(|limits| limits.quick.as_ref())
            && let Some(verdict) = quick.check(store, key)
        {
            return verdict;
        }
        let mut verdict = Verdict::UNDECIDED;
        self.check_slowly(key, &mut verdict);
        verdict
    }

    /// Slow path of `check`: limits have changed, or the table needs its general routine.
    #[inline(never)]
    fn check_slowly(&self, key: &[u8], verdict: &mut Verdict) {
        let Engine { limits, store, .. } = &*self.0;
        let quickly = match limits.unchanged() {
            Some(_) => None,
            None => limits.with(|limits| limits.quick.as_ref()?.check(store, key)),
        };
        *verdict = quickly.unwrap_or_else(|| ready(self.0.charge(key, Op::Take(1))));
    }

    /// Takes `cost` units for `key` from every limit, or from none. A cost of 0 takes nothing.
    #[must_use = "an unread verdict limits nothing"]
    pub fn check_cost(&self, key: impl ToKey, cost: u64) -> Verdict {
        ready(self.0.charge(&key.to_key(), Op::Take(cost)))
    }

    /// The verdict of [`Limiter::check_cost`], without taking any units.
    #[must_use = "an unread verdict limits nothing"]
    pub fn peek(&self, key: impl ToKey, cost: u64) -> Verdict {
        ready(self.0.charge(&key.to_key(), Op::Read(cost)))
    }

    /// Returns `units`, at most until the key is full: the work failed, or its cost was lower than
    /// the units taken.
    pub fn refund(&self, key: impl ToKey, units: u64) -> Verdict {
        ready(self.0.give_back(&key.to_key(), Op::Return(units)))
    }

    /// Takes `units` that were already spent, as far as they fit; never denied.
    /// [`Verdict::unbooked`] has the units that did not fit.
    pub fn force(&self, key: impl ToKey, units: u64) -> Verdict {
        ready(self.0.charge(&key.to_key(), Op::Force(units)))
    }

    /// Resets `key` under every limit, as if it had never been seen.
    pub fn reset(&self, key: impl ToKey) -> Verdict {
        ready(self.0.give_back(&key.to_key(), Op::Reset))
    }

    /// Like [`Limiter::check`], with one key for each limit, in the order of the limits: takes one
    /// unit from each limit, or from none. [`ToKey`] turns keys of other types into bytes.
    ///
    /// # Panics
    /// If there are not as many keys as limits.
    #[must_use = "an unread verdict limits nothing"]
    pub fn check_together<K: AsRef<[u8]>>(&self, keys: &[K]) -> Verdict {
        ready(self.0.charge_together(keys, None))
    }

    /// Takes one unit for each of `keys` separately, and appends one verdict each. Faster than
    /// separate calls, because the memory of all keys is fetched together.
    pub fn check_each<K: AsRef<[u8]>>(&self, keys: &[K], verdicts: &mut Vec<Verdict>) {
        let Engine { limits, store, .. } = &*self.0;
        limits.with(|limits| match &limits.quick {
            Some(quick) => quick
                .check_each(store, keys, verdicts, |key| ready(self.0.charge(key, Op::Take(1)))),
            None => ready(self.0.check_each(keys, verdicts)),
        });
    }

    /// Like [`Limiter::check_cost`], with the [parts](Verdict::parts) of the verdict: the decision
    /// of each limit.
    #[must_use = "an unread verdict limits nothing"]
    pub fn report(&self, key: impl ToKey, cost: u64) -> Verdict {
        ready(self.0.report(&key.to_key(), cost))
    }

    /// The verdict of [`Limiter::check`], with the state of `key` under each limit
    /// ([`Part::state`](crate::verdict::Part::state)). Changes nothing.
    pub fn explain(&self, key: impl ToKey) -> Verdict {
        ready(self.0.explain(&key.to_key()))
    }

    /// Takes one unit of every rate limit, and a place in every in-flight limit. Dropping the
    /// permit frees the place.
    ///
    /// ```
    /// use tidegate::{Admission, Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::in_flight(2, tidegate::InFlight::NO_EXPIRY)?);
    /// let first = limiter.acquire("user:17");
    /// let second = limiter.acquire("user:17");
    /// assert!(first.is_granted() && second.is_granted());
    /// assert!(matches!(limiter.acquire("user:17"), Admission::Denied(_)));
    /// drop(first);
    /// assert!(limiter.acquire("user:17").is_granted());
    /// # Ok::<(), tidegate::InvalidLimit>(())
    /// ```
    pub fn acquire(&self, key: impl ToKey) -> Admission {
        let key = key.to_key();
        let (verdict, leases) = ready(self.0.take_places(&key, 1));
        self.admission(&key, verdict, leases)
    }

    pub(super) fn admission(&self, key: &[u8], verdict: Verdict, leases: Leases) -> Admission {
        let engine = Arc::clone(&self.0);
        Admission::new(verdict, || Box::new(MemoryPlace::new(engine, key, leases)))
    }

    /// Replaces the limit called `name` while the limiter runs. State is kept: spent units stay
    /// spent, and no key waits longer than one full refill at the new numbers. If the new limit has
    /// another kind of state (another algorithm family or window length), all keys start afresh.
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
    pub fn set_limit(&self, name: &str, limit: Limit) -> Result<(), BuildError> {
        self.0.set_limit(name, limit)
    }

    /// The name of limit number `number`, as in [`Verdict::binding`] and [`Verdict::denied_by`].
    pub fn limit_name(&self, number: usize) -> Option<Arc<str>> {
        self.0.limits.load().get(number).map(|limit| Arc::clone(&limit.name))
    }

    /// Memory in use, and evictions.
    pub fn stats(&self) -> MemoryStats {
        self.0.store.stats()
    }
}
