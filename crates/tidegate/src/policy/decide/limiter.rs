//! The limiter of a policy: resolve → decide → fold.
//!
//! ```text
//!   request ──resolve──▶ matched limits ──decide──▶ decisions ──fold──▶ verdict
//!          matched_limits.rs             store/              verdict/fold.rs
//! ```
//!
//! # What is decided together
//! Limits in Tidegate's form are charged all or nothing, and limits in envoyproxy/ratelimit's form
//! separately, unless the domain sets `charge`. Shadow limits and quotas are always charged
//! separately.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tidegate_core::{Decision, Span, Timestamp};

use crate::clock::Clock;
use crate::concurrency::ConcurrencyStats;
use crate::key::Hashing;
use crate::limiter::permit::Admission;
use crate::policy::Policy;
use crate::policy::decide::check_error::CheckError;
use crate::policy::decide::control::Controls;
use crate::policy::decide::dry_run::dry_run;
use crate::policy::decide::reason::reasons;
use crate::policy::decide::settle::SettleCounters;
use crate::policy::decide::stats::StatsRegistry;
use crate::policy::matching::intent::Intent;
use crate::policy::matching::matched_limits::{MatchInput, MatchedLimits};
use crate::policy::model::descriptor::{MAX_DESCRIPTORS, Request};
use crate::policy::model::rule::Domain;
use crate::store::memory::MemoryStore;
use crate::store::undo::{Answered, undo};
use crate::store::{Batch, Charge, LimitsRevision, MAX_TOGETHER, Store, StoreError};
use crate::verdict::{Details, Origin, Record, Standing, Verdict};

/// Decides requests by a policy. Clones are handles to the same limiter.
///
/// ```
/// use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
///
/// let file = "
/// domain: api
/// descriptors:
///   - key: user
///     rate: 2/min
/// ";
/// let loaded = Policy::load(&[("policy.yaml", file)], Merging::Refuse);
/// let limiter = PolicyLimiter::in_memory(loaded.policy.expect("no errors"))?;
///
/// let entries = [Entry { key: "user", value: "bob" }];
/// let descriptors = [Descriptor::new(&entries)];
/// let request = Request { domain: "api", descriptors: &descriptors, hits: None };
/// assert!(limiter.check_now(&request)?.is_allowed());
/// assert!(limiter.check_now(&request)?.is_allowed());
/// assert!(!limiter.check_now(&request)?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PolicyLimiter<S>(pub(in crate::policy) Arc<Shared<S>>);

#[derive(Debug)]
pub(in crate::policy) struct Shared<S> {
    pub(in crate::policy) policy: ArcSwap<Policy>,
    /// Temporary changes by operators.
    pub(in crate::policy) controls: ArcSwap<Controls>,
    pub(in crate::policy) store: S,
    /// Incremented whenever limits get other numbers.
    pub(in crate::policy) revision: LimitsRevision,
    pub(in crate::policy) clock: Clock,
    pub(in crate::policy) stats_registry: StatsRegistry,
    pub(in crate::policy) settle_counters: SettleCounters,
}

impl<S> Clone for PolicyLimiter<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl PolicyLimiter<MemoryStore> {
    /// A limiter with state in this process, bounded by [`MemoryStore::DEFAULT_BYTES`].
    pub fn in_memory(policy: Policy) -> std::io::Result<Self> {
        let clock = Clock::default();
        let store = MemoryStore::new(MemoryStore::DEFAULT_BYTES, Hashing::Fast)?;
        Ok(Self::new(policy, store.with_clock(clock.clone()), clock))
    }

    /// Like [`PolicyLimiter::check`], but synchronous: a memory store never waits.
    pub fn check_now(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        ready(self.check(request))
    }

    /// Like [`PolicyLimiter::acquire`], but synchronous.
    pub fn acquire_now(&self, request: &Request<'_>) -> Result<Admission, CheckError> {
        ready(self.acquire(request))
    }

    /// Like [`PolicyLimiter::check_http`], but synchronous.
    #[cfg(feature = "http")]
    pub fn check_http_now(
        &self,
        domain: &str,
        parts: &http::request::Parts,
    ) -> Result<Verdict, CheckError> {
        ready(self.check_http(domain, parts))
    }

    /// Like [`PolicyLimiter::explain`], but synchronous.
    #[doc(hidden)]
    pub fn explain_now(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        ready(self.explain(request))
    }
}

/// Polls a future that never waits, and returns its value.
fn ready<T>(future: impl Future<Output = Result<T, CheckError>>) -> Result<T, CheckError> {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => Err(CheckError::Store(StoreError::Timeout)),
    }
}

impl<S: Store> PolicyLimiter<S> {
    /// A limiter with state in `store`, on the time of `clock`.
    pub fn new(policy: Policy, store: S, clock: Clock) -> Self {
        let (policy, controls) = (ArcSwap::from_pointee(policy), ArcSwap::default());
        Self(Arc::new(Shared {
            policy,
            controls,
            store,
            revision: LimitsRevision::default(),
            clock,
            stats_registry: StatsRegistry::default(),
            settle_counters: SettleCounters::default(),
        }))
    }

    /// The policy in force.
    #[doc(hidden)]
    pub fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    /// Puts another policy in force. Every request is decided entirely by the old or the new
    /// policy. Limits that exist in both keep their state, and shadow limits keep their counts.
    pub fn replace(&self, policy: Policy) {
        let old = self.0.policy.load_full();
        let policy = policy.continuing(&old);
        let has_other_numbers = policy.has_other_numbers(&old);
        if has_other_numbers {
            // Changed before any request is decided with the new numbers.
            self.0.revision.change();
        }
        self.0.policy.store(Arc::new(policy));
        if has_other_numbers {
            // Changed again, because the store may have registered the old policy in between.
            self.0.revision.change();
        }
    }

    #[cfg(feature = "http")]
    pub(in crate::policy) fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    /// The store that keeps the state.
    #[doc(hidden)]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// The domain, the name and the state of every concurrency limiter that has had a request, for
    /// metrics.
    #[doc(hidden)]
    pub fn protection_stats(&self) -> Vec<(Box<str>, Box<str>, ConcurrencyStats)> {
        let policy = self.policy();
        let mut all = Vec::new();
        for domain in policy.domains() {
            let used = domain.protections().iter().filter_map(|it| Some((it.name(), it.stats()?)));
            all.extend(used.map(|(name, stats)| (domain.name().into(), name.into(), stats)));
        }
        all.sort_unstable_by(|(one, a, _), (other, b, _)| (one, a).cmp(&(other, b)));
        all
    }

    /// Decides a request and charges it. In-flight limits are skipped, because this call has no
    /// release; [`PolicyLimiter::acquire`] decides them too.
    pub async fn check(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.decided(request, Intent::Take).await
    }

    /// The verdict of [`PolicyLimiter::acquire`], without charging. If no in-flight limit applies,
    /// this is also the verdict of [`PolicyLimiter::check`].
    pub async fn peek(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.decided(request, Intent::Read).await
    }

    /// Returns the units that a request was charged.
    pub async fn refund(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.decided(request, Intent::Return).await
    }

    /// Returns the units of a request that was allowed with `verdict` and then not served. The
    /// limits are those of the policy that allowed it. Units that were refilled since, and a slot
    /// of a leaky bucket with later slots behind it, are not returned.
    ///
    /// # Errors
    /// If the store is unavailable: the units stay taken.
    #[doc(hidden)]
    pub async fn cancel(&self, request: &Request<'_>, verdict: &Verdict) -> Result<(), CheckError> {
        let Shared { controls, store, clock, .. } = &*self.0;
        let Some(details) = verdict.details() else { return Ok(()) };
        let Origin::Domain(domain) = &details.origin else { return Ok(()) };
        // Reservations are cancelled instead of returned, so that they cannot be settled later.
        let is_reserved = |record: &Record| {
            let limit = details.rule(record);
            details.reserves && limit.is_some_and(|(_, limit)| limit.settling().is_some())
        };
        let local = clock.now();
        let (mut matched, mut records) =
            (MatchedLimits::with_room(request.descriptors.len()), Vec::new());
        matched.resolve(MatchInput {
            domain,
            controls: &controls.load(),
            request,
            intent: Intent::Take,
            now: store.clock(local),
            records: &mut records,
        });
        let (at, mut undone) = (verdict.at(), Ok(()));
        for one in matched.iter().filter(|one| !is_reserved(&records[one.record])) {
            // Not by its number: in-flight limits, which are skipped here, may have had several records.
            let taken = details.records.iter().find(|taken| taken.is_of(&records[one.record]));
            let taken = taken.filter(|it| one.in_front || it.numbers == Some(one.numbers));
            let Some(decision) = taken.and_then(|taken| taken.decision.as_ref()) else { continue };
            let answered = Answered { decision, at };
            undone = undo(store, local, &matched.charge(one), answered).await.and(undone);
        }
        undone.map_err(CheckError::Store)
    }

    /// Resets the keys of the request under every limit that applies.
    pub async fn reset(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        self.decided(request, Intent::Reset).await
    }

    /// Blocks the keys of the request for this long, at most 30 days, under every limit with `block_for`
    /// that applies; zero lifts their blocks. Returns the number of limits.
    #[doc(hidden)]
    pub async fn block(
        &self,
        request: &Request<'_>,
        time: impl Into<Span>,
    ) -> Result<usize, CheckError> {
        let (details, ..) = self.decide(request, Intent::Block(time.into())).await?;
        Ok(details.records.iter().filter(|record| record.decision.is_some()).count())
    }

    /// The verdict of [`PolicyLimiter::acquire`], with the reason and the state of every limit
    /// ([`Part::reason`](crate::verdict::Part::reason)). Changes nothing.
    pub async fn explain(&self, request: &Request<'_>) -> Result<Verdict, CheckError> {
        let (mut details, matched, now) = self.decide(request, Intent::Read).await?;
        if let Origin::Domain(domain) = &details.origin {
            let reasons = reasons((&details, now), domain, &self.0.controls.load(), request);
            details.explained = reasons.into_iter().map(|reason| (Some(reason), None)).collect();
        }
        for one in matched.iter().filter(|one| !one.in_front) {
            let state = self.0.store.explain(now, &matched.charge(one)).await?;
            details.explained[one.record].1 = Some(state);
        }
        Ok(details.fold(now))
    }

    async fn decided(&self, request: &Request<'_>, intent: Intent) -> Result<Verdict, CheckError> {
        let (details, _, now) = self.decide(request, intent).await?;
        Ok(details.fold(now))
    }

    /// Resolves the request to limits and decides them.
    pub(in crate::policy) async fn decide(
        &self,
        request: &Request<'_>,
        intent: Intent,
    ) -> Result<Decided, CheckError> {
        request.verify()?;
        let Shared { policy, clock, stats_registry, .. } = &*self.0;
        let domain = policy.load().shared_domain(request.domain);
        if let Some(domain) = domain {
            return self.decide_in(domain, request, intent).await;
        }
        if intent.charges() {
            stats_registry.count_unknown(request.domain);
        }
        Ok((Box::default(), MatchedLimits::with_room(0), clock.now()))
    }

    /// Resolves a request to limits of this domain and decides them.
    pub(in crate::policy) async fn decide_in(
        &self,
        domain: Arc<Domain>,
        request: &Request<'_>,
        intent: Intent,
    ) -> Result<Decided, CheckError> {
        let Shared { controls, store, clock, stats_registry, .. } = &*self.0;
        let local = clock.now();
        let (mut matched, mut details) =
            (MatchedLimits::with_room(request.descriptors.len()), Box::<Details>::default());
        let now = store.clock(local);
        details.origin = Origin::Domain(Arc::clone(&domain));
        details.reserves = intent.reserves();
        details.records.reserve_exact(request.descriptors.len());
        matched.resolve(MatchInput {
            domain: &domain,
            controls: &controls.load(),
            request,
            intent,
            now,
            records: &mut details.records,
        });
        matched.order(&details.records);
        if matched.split().0.len() > MAX_TOGETHER {
            return Err(CheckError::TooManyTogether);
        }
        if intent == Intent::Acquire && !matched.fits_leases() {
            return Err(CheckError::TooManyLeases);
        }
        if !matched.fits_reservations(&details) {
            return Err(CheckError::TooManyReservations);
        }
        if intent == Intent::Read {
            dry_run(store, local, &matched, &mut details).await?;
            return Ok((details, matched, now));
        }
        // Read after the limits, so that the revision is at least theirs.
        let revision = self.0.revision.current();
        charge((store, revision), local, &matched, &mut details).await?;
        if intent.charges() {
            spread_retries(&mut details, now);
            count_shadows(&details);
            stats_registry.count(&domain, &details, &matched, request);
        }
        Ok((details, matched, now))
    }
}

/// The decisions, the limits that were decided, and the instant.
pub(in crate::policy) type Decided = (Box<Details>, MatchedLimits, Timestamp);

/// Decides quotas, then the limits that are charged together, then all other limits separately.
async fn charge<S: Store>(
    (store, revision): (&S, u64),
    local: Timestamp,
    matched: &MatchedLimits,
    details: &mut Details,
) -> Result<(), StoreError> {
    let (together, quotas, others) = matched.split();
    let mut decisions: Vec<Decision> = Vec::with_capacity(matched.len());
    for (limits, is_group) in [(quotas, false), (together, true), (others, false)] {
        if limits.is_empty() {
            continue;
        }
        // A request that quotas deny is not charged.
        let is_denied = is_group && details.exhausted_quota().is_some();
        let charge = |one| if is_denied { matched.read(one) } else { matched.charge(one) };
        let (one, several): (_, Vec<Charge<'_>>);
        let charges = match limits {
            [only] => {
                one = [charge(only)];
                &one[..]
            }
            _ => {
                several = limits.iter().map(charge).collect();
                &several[..]
            }
        };
        let batch = if is_group { Batch::together(charges) } else { Batch::each(charges) };
        let source = store.decide(local, batch.revision(revision), &mut decisions).await?;
        details.source = details.source.max(source);
        for (one, decision) in limits.iter().zip(decisions.drain(..)) {
            one.record_in(&mut details.records[one.record], decision);
        }
    }
    Ok(())
}

/// Sets the retry time of clients that are denied to protect the server.
fn spread_retries(details: &mut Details, now: Timestamp) {
    for number in 0..details.records.len() {
        let record = &details.records[number];
        let sheds = details.rule(record).and_then(|(_, limit)| limit.sheds.as_ref());
        if let (Some(spread), true) = (sheds, record.decision.is_some() && record.counts()) {
            let retry = spread.count(now, record.denies());
            details.records[number].retry = retry;
        }
    }
}

/// Counts how often limits and their shadow limits agreed.
fn count_shadows(details: &Details) {
    for (live, beside) in details.records.iter().zip(details.records.iter().skip(1)) {
        let Some(variant) = details.rule(beside).and_then(|(_, limit)| limit.shadow()) else {
            continue;
        };
        if beside.standing == Standing::Beside && live.decision.is_some() {
            variant.count(!live.denies(), !beside.denies());
        }
    }
}

impl Request<'_> {
    /// Checks the bounds that hold for every transport.
    fn verify(&self) -> Result<(), CheckError> {
        match self.descriptors.len() {
            _ if self.domain.is_empty() => Err(CheckError::NoDomain),
            0 => Err(CheckError::NoDescriptors),
            1..=MAX_DESCRIPTORS => Ok(()),
            _ => Err(CheckError::TooManyDescriptors),
        }
    }
}

#[cfg(test)]
#[path = "limiter_tests.rs"]
mod tests;
