//! In-flight limits of a policy, whose places a request holds until its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use tidegate_core::{Decision, Op, Timestamp};
#[cfg(feature = "tokio")]
use tokio::{runtime::Handle, task::JoinHandle, time::sleep};

use crate::limiter::permit::{Admission, HeldPlaces};
use crate::policy::decide::check_error::CheckError;
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::decide::settle::{RequestOutcome, Settlement};
use crate::policy::decide::token::leases::Leases;
use crate::policy::decide::token::reservations::Reservations;
use crate::policy::matching::intent::Intent;
use crate::policy::matching::matched_limits::MatchedLimits;
use crate::policy::model::descriptor::Request;
use crate::store::{Batch, Store, StoreError};
use crate::verdict::{Details, Verdict};

/// Leases are renewed this many times before they would end.
#[cfg(feature = "tokio")]
const RENEWALS: u32 = 3;

/// The verdict of a request, and the places and reservations of an allowed request.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Granted {
    /// The verdict.
    pub verdict: Verdict,
    /// The request's places in in-flight limits.
    pub leases: Leases,
    /// The request's reservations under limits that are settled after the response.
    pub reservations: Reservations,
}

impl<S: Store> PolicyLimiter<S> {
    /// Decides a request and charges it, in-flight limits included. The caller has to
    /// [release](PolicyLimiter::release) the places and to [renew](PolicyLimiter::renew) them in
    /// time; the permit of [`PolicyLimiter::acquire`] does both. A denied request holds no place.
    #[doc(hidden)]
    pub async fn acquire_leases(&self, request: &Request<'_>) -> Result<Granted, CheckError> {
        let (details, matched, now) = self.decide(request, Intent::Acquire).await?;
        Ok(self.keep(details, &matched, now).await)
    }

    /// Folds the verdict of a decided request and collects its places and reservations. A denied
    /// request does not run: the places that separately charged limits have granted are released,
    /// and reservations are cancelled.
    pub(in crate::policy) async fn keep(
        &self,
        details: Box<Details>,
        matched: &MatchedLimits,
        now: Timestamp,
    ) -> Granted {
        let leases = Leases::granted(matched, &details);
        let reservations = Reservations::opened(matched, &details, now);
        let verdict = details.fold(now);
        if verdict.is_allowed() {
            return Granted { verdict, leases, reservations };
        }
        if !leases.is_empty() {
            // If the release fails, the leases expire.
            let _ = self.release(&leases).await;
        }
        if !reservations.is_empty() {
            // If the cancellation fails, the units stay taken.
            let _ = self.settle(&reservations, &RequestOutcome::cancelled()).await;
        }
        Granted { verdict, leases: Leases::default(), reservations: Reservations::default() }
    }

    /// Frees the places of a request. Releasing twice, or after a lease has ended, changes nothing.
    #[doc(hidden)]
    pub async fn release(&self, leases: &Leases) -> Result<(), StoreError> {
        self.each(leases, Op::Release).await.map(drop)
    }

    /// Renews the places of a request for another time to live. False if a lease has expired, so
    /// that another request may hold the place.
    #[doc(hidden)]
    pub async fn renew(&self, leases: &Leases) -> Result<bool, StoreError> {
        self.each(leases, Op::Renew).await
    }

    /// Runs an operation on every lease; true if none was denied.
    async fn each(
        &self,
        leases: &Leases,
        op: fn(tidegate_core::LeaseId) -> Op,
    ) -> Result<bool, StoreError> {
        let charges = leases.charges(op);
        let mut decisions = Vec::with_capacity(charges.len());
        let batch = Batch::each(&charges).revision(self.0.revision.current());
        self.0.store.decide(self.0.clock.now(), batch, &mut decisions).await?;
        Ok(decisions.iter().all(Decision::is_allowed))
    }
}

impl<S: Store + 'static> PolicyLimiter<S> {
    /// Decides a request and charges it, in-flight limits included. The permit holds the request's
    /// place in every in-flight limit until it is dropped; units of rates stay spent.
    ///
    /// With the feature `tokio` and inside a runtime, the permit renews its leases. Otherwise they
    /// end after their `ttl`, also while the permit is held.
    ///
    /// Limits with `count`, `refund` or `actual` are settled by the permit's
    /// [`Settlement`](crate::policy::Settlement).
    ///
    /// ```
    /// use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
    ///
    /// let file = "{domain: api, descriptors: [{key: user, in_flight: 1, ttl: 60s}]}";
    /// let policy = Policy::load(&[("policy.yaml", file)], Merging::Refuse).policy.expect("no errors");
    /// let limiter = PolicyLimiter::in_memory(policy)?;
    /// let entries = [Entry { key: "user", value: "bob" }];
    /// let descriptors = [Descriptor::new(&entries)];
    /// let request = Request { domain: "api", descriptors: &descriptors, hits: None };
    ///
    /// let permit = limiter.acquire_now(&request)?.permit().expect("the place is free");
    /// assert!(!limiter.acquire_now(&request)?.is_granted());
    /// drop(permit);
    /// assert!(limiter.acquire_now(&request)?.is_granted());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn acquire(&self, request: &Request<'_>) -> Result<Admission, CheckError> {
        let asked_at = self.0.clock.now();
        let granted = self.acquire_leases(request).await?;
        Ok(self.admission(granted, asked_at))
    }

    /// The result of `acquire` for a request whose leases end no earlier than their time to live
    /// after `asked_at`.
    pub(in crate::policy) fn admission(&self, granted: Granted, asked_at: Timestamp) -> Admission {
        let Granted { verdict, leases, reservations } = granted;
        let settlement = Settlement::new(reservations, self);
        Admission::new(verdict, || Box::new(PolicyPlace::new(self.clone(), leases, asked_at)))
            .settled_by(settlement)
    }
}

/// The places of a permit.
struct PolicyPlace<S> {
    held: Arc<Held<S>>,
    #[cfg(feature = "tokio")]
    renewing: Option<JoinHandle<()>>,
    #[cfg(feature = "tokio")]
    runtime: Option<Handle>,
}

struct Held<S> {
    limiter: PolicyLimiter<S>,
    leases: Leases,
    /// The earliest end of a lease, by the limiter's own clock.
    ends: AtomicU64,
    lost: AtomicBool,
}

impl<S: Store + 'static> PolicyPlace<S> {
    fn new(limiter: PolicyLimiter<S>, leases: Leases, asked_at: Timestamp) -> Self {
        let held =
            Held { limiter, leases, ends: AtomicU64::new(u64::MAX), lost: AtomicBool::new(false) };
        held.last_from(asked_at);
        let held = Arc::new(held);
        #[cfg(feature = "tokio")]
        {
            let runtime = Handle::try_current().ok();
            let renewing = runtime.as_ref().filter(|_| !held.leases.is_empty()).map(|runtime| {
                let held = Arc::clone(&held);
                runtime.spawn(async move { held.keep().await })
            });
            Self { held, renewing, runtime }
        }
        #[cfg(not(feature = "tokio"))]
        Self { held }
    }

    fn stop_renewing(&self) {
        #[cfg(feature = "tokio")]
        self.renewing.iter().for_each(JoinHandle::abort);
    }
}

impl<S: Store + 'static> HeldPlaces for PolicyPlace<S> {
    fn is_lost(&self) -> bool {
        let held = &self.held;
        let ended = held.limiter.0.clock.now().as_micros() >= held.ends.load(Ordering::Relaxed);
        ended || held.lost.load(Ordering::Relaxed)
    }

    fn is_held(&self) -> bool {
        !self.held.leases.is_empty()
    }

    fn free(&mut self) {
        self.stop_renewing();
        if self.held.leases.is_empty() {
            return;
        }
        let held = Arc::clone(&self.held);
        // If the release fails, the leases expire.
        let mut release = Box::pin(async move {
            let _ = held.limiter.release(&held.leases).await;
        });
        #[cfg(feature = "tokio")]
        let _context = self.runtime.as_ref().map(Handle::enter);
        // The memory store never waits. A store that waits continues in the background.
        let first = release.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        #[cfg(feature = "tokio")]
        if let Some(runtime) = self.runtime.as_ref().filter(|_| first.is_pending()) {
            runtime.spawn(release);
        }
        #[cfg(not(feature = "tokio"))]
        let _ = first;
    }

    fn release(&mut self) -> Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + '_>> {
        self.stop_renewing();
        Box::pin(self.held.limiter.release(&self.held.leases))
    }
}

impl<S: Store + 'static> Held<S> {
    /// Records that the leases were taken or renewed after `asked_at`, and therefore end later than
    /// `asked_at` plus their time to live.
    fn last_from(&self, asked_at: Timestamp) {
        if let Some(ttl) = self.leases.ttl() {
            self.ends.store((asked_at + ttl).as_micros(), Ordering::Relaxed);
        }
    }

    #[cfg(feature = "tokio")]
    async fn keep(&self) {
        let Some(ttl) = self.leases.ttl() else { return };
        let interval = std::time::Duration::from(ttl) / RENEWALS;
        let mut failures = 0;
        while failures < RENEWALS {
            sleep(interval).await;
            let asked_at = self.limiter.0.clock.now();
            match self.limiter.renew(&self.leases).await {
                Ok(true) => {
                    self.last_from(asked_at);
                    failures = 0;
                }
                Ok(false) => failures = RENEWALS,
                // An unavailable store may be available again for the next attempt.
                Err(_) => failures += 1,
            }
        }
        self.lost.store(true, Ordering::Relaxed);
    }
}
