//! Concurrency limits: how many requests a server works on at once.
//!
//! A rate limit protects users from each other. A concurrency limit protects the server from all
//! users together: it *sheds* requests beyond the server's capacity, least important first, instead
//! of delaying every request.
//!
//! ```
//! use tidegate::concurrency::{Class, ConcurrencyLimiter, Outcome};
//!
//! let limiter = ConcurrencyLimiter::adaptive().min_limit(8).build();
//! match limiter.try_acquire(Class::CRITICAL) {
//!     Ok(permit) => permit.finish(Outcome::Success), // after the work
//!     Err(shed) => assert!(shed.retry_after().as_secs() > 0), // answer 503
//! }
//! ```
//!
//! # Scope
//! Use one limiter per group of routes that share a backend and take about equally long, and let
//! all requests to that backend pass through it. Do not count health checks.

mod builder;
mod measure;
mod permit;
#[cfg(feature = "tokio")]
mod queue;
mod shed;
mod stats;
mod utilisation;

pub use self::{
    shed::{Shed, ShedReason},
    stats::ConcurrencyStats,
};
pub use builder::ConcurrencyBuilder;
pub use permit::{Outcome, Permit};
pub use tidegate_core::shed::{Class, InvalidShares, Shares, UtilisationLevels};
#[doc(hidden)]
pub use utilisation::identity;

use std::sync::{Arc, OnceLock, Weak};

use tidegate_core::{Span, Timestamp};

use crate::clock::Clock;
use crate::sync::{AtomicU32, Ordering};
use measure::Measure;
use stats::ShedCounts;
use utilisation::Utilisation;

/// Limits requests in progress. Clones share one count.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimiter {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Requests that hold a permit. A limiter and its successor share the count.
    in_flight: Arc<AtomicU32>,
    /// The limiter that has replaced this one. Permits that are released here may go to its
    /// waiters.
    successor: OnceLock<Weak<Self>>,
    /// Requests in progress at which each class is refused.
    thresholds: [AtomicU32; Class::MAX],
    shares: Shares,
    is_shadow: bool,
    /// Latency above which a request counts as dropped.
    slow_after: Span,
    sheds: ShedCounts,
    utilisation: Option<Utilisation>,
    measure: Measure,
    clock: Clock,
    #[cfg(feature = "tokio")]
    queue: queue::Queue,
}

impl ConcurrencyLimiter {
    /// A limit that follows the server's capacity; the right choice for most services.
    pub fn adaptive() -> ConcurrencyBuilder {
        ConcurrencyBuilder::new(builder::Kind::Adaptive)
    }

    /// A constant limit.
    pub fn fixed(limit: u32) -> ConcurrencyBuilder {
        ConcurrencyBuilder::new(builder::Kind::Fixed(limit))
    }

    /// A limit that shrinks when requests are [dropped](Outcome::Dropped) and grows otherwise. It
    /// ignores latency.
    pub fn aimd() -> ConcurrencyBuilder {
        ConcurrencyBuilder::new(builder::Kind::Aimd)
    }

    /// Netflix's Gradient2. Under sustained overload its limit drifts to the maximum.
    #[doc(hidden)]
    pub fn gradient2() -> ConcurrencyBuilder {
        ConcurrencyBuilder::new(builder::Kind::Gradient2)
    }

    /// Takes a permit, or sheds the request at once.
    ///
    /// # Errors
    /// If all requests in progress together fill the share of `class`, or if a request that is at
    /// least as important waits.
    #[inline]
    pub fn try_acquire(&self, class: Class) -> Result<Permit, Shed> {
        self.take(class).ok_or_else(|| self.shared.shed(class, ShedReason::Limit))
    }

    /// Sheds a request of `class` that would be refused, or would find the queue full, before any
    /// other work is done for it. A request that passes this check may still be shed later.
    ///
    /// # Errors
    /// If the share of the class is full, and the queue is full of requests that are at least as
    /// important.
    #[doc(hidden)]
    pub fn shed_early(&self, class: Class) -> Result<(), Shed> {
        let shared = &*self.shared;
        let class = shared.shares.known(class);
        match shared.early_reason(class) {
            Some(reason) if !shared.is_shadow => Err(shared.shed(class, reason)),
            _ => Ok(()),
        }
    }

    /// Sheds a request if the utilisation shedder selects its class or part of its class. `user` is
    /// a hash of the user, so that either all requests of a user are served or none.
    ///
    /// # Errors
    /// If the request is selected.
    #[inline]
    #[doc(hidden)]
    pub fn shed_busy(&self, class: Class, user: impl FnOnce() -> Option<u64>) -> Result<(), Shed> {
        let shared = &self.shared;
        let Some(utilisation) = &shared.utilisation else { return Ok(()) };
        shared.observe(utilisation);
        let class = shared.shares.known(class);
        if !utilisation.is_active() || !utilisation.sheds(class, user(), shared.clock.now()) {
            return Ok(());
        }
        let shed = shared.shed(class, ShedReason::Busy);
        if shared.is_shadow { Ok(()) } else { Err(shed) }
    }

    /// The state for metrics.
    pub fn stats(&self) -> ConcurrencyStats {
        self.shared.stats()
    }

    /// Takes a permit if one is free. Does not count a refusal as shed, so that the caller may wait
    /// instead.
    #[inline]
    #[doc(hidden)]
    pub fn take(&self, class: Class) -> Option<Permit> {
        let shared = &*self.shared;
        let class = shared.shares.known(class);
        let is_taken = if shared.is_shadow {
            shared.take_in_shadow(class);
            true
        } else {
            !shared.waits_behind(class) && shared.take(class)
        };
        is_taken.then(|| Permit::new(self.clone(), shared.clock.now()))
    }
}

impl Shared {
    /// Counts one more request in progress if the share of `class` has room.
    #[inline]
    fn take(&self, class: Class) -> bool {
        let threshold = self.thresholds[class.rank()].load(Ordering::SeqCst);
        let mut in_flight = self.in_flight.load(Ordering::SeqCst);
        while in_flight < threshold {
            let more = in_flight + 1;
            let taken = self.in_flight.compare_exchange_weak(
                in_flight,
                more,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            match taken {
                Ok(_) => return true,
                Err(actual) => in_flight = actual,
            }
        }
        false
    }

    /// Whether the share of `class` is full.
    fn is_full(&self, class: Class) -> bool {
        let threshold = self.thresholds[class.rank()].load(Ordering::Relaxed);
        self.in_flight.load(Ordering::Relaxed) >= threshold
    }

    /// Counts one more request in progress in any case, and a shed request if the limit would have
    /// refused it.
    fn take_in_shadow(&self, class: Class) {
        let before = self.in_flight.fetch_add(1, Ordering::SeqCst);
        if before >= self.thresholds[class.rank()].load(Ordering::Relaxed) {
            self.sheds.add(class, ShedReason::Limit);
        }
    }

    /// Counts one request less in progress, and admits a waiter in its place.
    #[inline]
    fn release(self: &Arc<Self>, now: impl FnOnce() -> Timestamp) {
        let before = self.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.measure.saw(before);
        if let Some(successor) = self.successor.get() {
            Self::admit_waiting_in(successor);
        }
        self.admit_waiting(now);
    }

    /// Admits waiters of the limiters that have replaced this one.
    #[cold]
    fn admit_waiting_in(successor: &Weak<Self>) {
        let mut next = successor.upgrade();
        while let Some(successor) = next {
            successor.admit_waiting(|| successor.clock.now());
            next = successor.successor.get().and_then(Weak::upgrade);
        }
    }

    #[inline]
    fn shed(&self, class: Class, reason: ShedReason) -> Shed {
        let ticket = self.sheds.add(self.shares.known(class), reason);
        Shed::new(class, reason, ticket, self.measure.retry_spread())
    }

    /// Applies a new limit to all classes.
    fn set_limit(&self, limit: u32) {
        for (threshold, value) in self.thresholds.iter().zip(self.shares.thresholds(limit)) {
            threshold.store(value, Ordering::SeqCst);
        }
    }

    /// Records an outcome, and closes the window if it is complete.
    #[inline]
    fn record(self: &Arc<Self>, latency: Span, outcome: Outcome, now: Timestamp) {
        let outcome = if latency > self.slow_after { Outcome::Dropped } else { outcome };
        if self.measure.record(now, latency, outcome) {
            self.close_window(now);
        }
    }

    #[cold]
    fn close_window(self: &Arc<Self>, now: Timestamp) {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let sheds = self.sheds.total();
        if let Some(limit) = self.measure.close(now, in_flight, sheds, self.is_shadow) {
            self.set_limit(limit);
            self.admit_waiting(|| now);
        }
    }
}

/// Without a runtime there is no queue.
#[cfg(not(feature = "tokio"))]
impl Shared {
    #[inline]
    fn waits_behind(&self, _class: Class) -> bool {
        false
    }

    #[inline]
    fn admit_waiting(self: &Arc<Self>, _now: impl FnOnce() -> Timestamp) {}

    fn queued(&self) -> usize {
        0
    }

    fn early_reason(&self, class: Class) -> Option<ShedReason> {
        self.is_full(class).then_some(ShedReason::Limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ov_04_lowering_the_limit_evicts_no_request() {
        let limiter = ConcurrencyLimiter::fixed(10).build();
        let mut held: Vec<_> = (0..9).map(|_| limiter.try_acquire(Class::CRITICAL)).collect();
        limiter.shared.set_limit(4);
        assert_eq!(limiter.stats().in_flight, 9);
        while held.len() > 4 {
            assert!(limiter.try_acquire(Class::CRITICAL).is_err());
            held.pop();
        }
        assert!(limiter.try_acquire(Class::CRITICAL).is_err());
        held.pop();
        assert!(limiter.try_acquire(Class::CRITICAL).is_ok());
    }
}
