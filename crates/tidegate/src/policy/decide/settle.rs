//! Settles limits after the response: by its status, or by the actual cost of the request.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Op;

use crate::policy::decide::check_error::CheckError;
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::decide::token::reservations::{Reservation, Reservations, was_open};
use crate::policy::matching::intent::Intent;
use crate::policy::model::descriptor::Request;
use crate::policy::model::settling::{ActualSource, ByStatus};
use crate::store::{Batch, Charge, Store, StoreError};
use crate::verdict::Verdict;

/// The outcome of a request, as far as limits are settled by it.
///
/// ```
/// use tidegate::policy::RequestOutcome;
///
/// let failed_login = RequestOutcome::status(401);
/// let completion = RequestOutcome::status(200).cost(1_230);
/// let hung_up = RequestOutcome::cancelled();
/// # let _ = (failed_login, completion, hung_up);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "has no effect until it is passed to a settlement"]
pub struct RequestOutcome<'a> {
    pub(super) status: Option<u16>,
    grpc_code: Option<u16>,
    pub(super) is_cancelled: bool,
    cost: Option<u64>,
    costs: &'a [(&'a str, u64)],
}

impl<'a> RequestOutcome<'a> {
    /// The response had this HTTP status, or the gRPC call ended with this code (0 to 16).
    pub const fn status(status: u16) -> Self {
        Self { status: Some(status), grpc_code: None, is_cancelled: false, cost: None, costs: &[] }
    }

    /// The request was not served: all its units are returned.
    pub const fn cancelled() -> Self {
        Self { status: None, grpc_code: None, is_cancelled: true, cost: None, costs: &[] }
    }

    /// The response was that of a gRPC call, which ended with this code. Lists of statuses may match either.
    #[doc(hidden)]
    pub const fn grpc_code(self, code: u16) -> Self {
        Self { grpc_code: Some(code), ..self }
    }

    /// Whether the request counts, by its status; `None` if that is not known.
    pub(super) fn counts(&self, by: &ByStatus) -> Option<bool> {
        let status = self.status?;
        Some(by.counts(&[Some(status), self.grpc_code]))
    }

    /// Sets the actual cost under every limit with `actual`.
    pub const fn cost(self, units: u64) -> Self {
        Self { cost: Some(units), ..self }
    }

    /// Sets the actual cost under the limits with these names; limits with other names use
    /// [`RequestOutcome::cost`].
    pub const fn costs(self, costs: &'a [(&'a str, u64)]) -> Self {
        Self { costs, ..self }
    }

    /// The cost under the limit with this name.
    pub(super) fn cost_of(&self, name: &str) -> Option<u64> {
        let own = self.costs.iter().find(|(known, _)| *known == name);
        own.map(|(_, units)| *units).or(self.cost)
    }
}

/// The effect of a settlement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// Limits that were settled.
    pub settled: u64,
    /// Limits that were settled before, or whose reservation has expired or was never opened. Nothing changed.
    pub not_open: u64,
    /// Limits whose cost the outcome does not contain. They wait for another settlement, unless
    /// they were settled before.
    pub open: u64,
    /// Units returned.
    pub returned: u64,
    /// Units that were not returned, because their window has ended or they have been refilled since.
    pub dropped: u64,
    /// Units booked beyond the reservation.
    pub booked: u64,
    /// Units beyond the reservation that did not fit.
    pub unbooked: u64,
}

/// The sums of all settlements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct SettleStats {
    /// The sums; `open` is not counted.
    pub sums: Settled,
    /// Limits that were not settled because the store gave no answer.
    pub failed: u64,
}

/// The sums of all settlements.
#[derive(Debug, Default)]
pub(in crate::policy) struct SettleCounters([AtomicU64; 7]);

impl SettleCounters {
    fn add(&self, settled: &Settled, failed: u64) {
        let Settled { settled, not_open, open: _, returned, dropped, booked, unbooked } = *settled;
        let counts = [settled, not_open, returned, dropped, booked, unbooked, failed];
        for (counter, count) in self.0.iter().zip(counts) {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    fn stats(&self) -> SettleStats {
        let [settled, not_open, returned, dropped, booked, unbooked, failed] =
            [0, 1, 2, 3, 4, 5, 6].map(|which: usize| self.0[which].load(Ordering::Relaxed));
        let sums = Settled { settled, not_open, open: 0, returned, dropped, booked, unbooked };
        SettleStats { sums, failed }
    }
}

impl<S: Store> PolicyLimiter<S> {
    /// Like [`PolicyLimiter::check`], but also reserves the units of limits with `count`, `refund`
    /// or `actual`. The caller has to [settle](PolicyLimiter::settle) the reservations. The
    /// reservations of a denied request are cancelled.
    #[doc(hidden)]
    pub async fn reserve(
        &self,
        request: &Request<'_>,
    ) -> Result<(Verdict, Reservations), CheckError> {
        let (details, matched, now) = self.decide(request, Intent::Reserve).await?;
        if matched.iter().all(|one| one.reservation.is_none()) {
            return Ok((details.fold(now), Reservations::default()));
        }
        let granted = self.keep(details, &matched, now).await;
        Ok((granted.verdict, granted.reservations))
    }

    /// Settles the limits of a request whose cost `outcome` contains. Each limit is settled once,
    /// whichever process does it: a second settlement changes nothing.
    ///
    /// # Errors
    /// If the store is unavailable. The reservations that were not settled stand; settling again is
    /// safe.
    #[doc(hidden)]
    pub async fn settle(
        &self,
        reservations: &Reservations,
        outcome: &RequestOutcome<'_>,
    ) -> Result<Settled, StoreError> {
        let local = self.0.clock.now();
        let now = self.0.store.clock(local);
        let (mut charges, mut unbooked): (Vec<Charge<'_>>, Vec<u64>) = Default::default();
        for reservation in reservations.iter() {
            if let Some(settle) = reservation.settle(now, outcome) {
                charges.push(reservation.charge(&settle));
                unbooked.push(settle.unbooked);
            }
        }
        let mut sum =
            Settled { open: (reservations.len() - charges.len()) as u64, ..Settled::default() };
        if charges.is_empty() {
            return Ok(sum);
        }
        let mut decisions = Vec::with_capacity(charges.len());
        let batch = Batch::each(&charges).revision(self.0.revision.current());
        let counters = &self.0.settle_counters;
        if let Err(error) = self.0.store.decide(local, batch, &mut decisions).await {
            counters.add(&Settled::default(), charges.len() as u64);
            return Err(error);
        }
        for ((charge, decision), unbooked) in charges.iter().zip(&decisions).zip(unbooked) {
            if !was_open(decision) {
                sum.not_open += 1;
                continue;
            }
            sum.settled += 1;
            sum.unbooked += unbooked;
            match charge.op {
                Op::Return(units) => {
                    sum.dropped += decision.unbooked;
                    sum.returned += units - decision.unbooked;
                }
                Op::Force(units) => {
                    sum.unbooked += decision.unbooked;
                    sum.booked += units - decision.unbooked;
                }
                _ => {}
            }
        }
        counters.add(&sum, 0);
        Ok(sum)
    }

    /// The sums of all settlements of this limiter.
    #[doc(hidden)]
    pub fn settle_stats(&self) -> SettleStats {
        self.0.settle_counters.stats()
    }
}

type Settling<'s> = Pin<Box<dyn Future<Output = Result<Settled, StoreError>> + Send + 's>>;

/// Settles reservations at the limiter that opened them.
pub(in crate::policy) trait Settle: Send + Sync {
    fn settle<'s>(
        &'s self,
        reservations: &'s Reservations,
        outcome: RequestOutcome<'s>,
    ) -> Settling<'s>;
}

impl<S: Store + 'static> Settle for PolicyLimiter<S> {
    fn settle<'s>(
        &'s self,
        reservations: &'s Reservations,
        outcome: RequestOutcome<'s>,
    ) -> Settling<'s> {
        Box::pin(async move { Self::settle(self, reservations, &outcome).await })
    }
}

/// The units that an admitted request has reserved under limits with `count`, `refund` or `actual`.
///
/// Settle it once the outcome of the request is known. Dropping it settles nothing: the reserved units stay
/// taken, so a handler that forgets to settle cannot be used to exceed a limit.
///
/// ```
/// use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request, RequestOutcome};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let file = "{domain: api, descriptors: [{key: user, rate: 1000/min, cost: 800, actual: {application: true}}]}";
/// let policy = Policy::load(&[("policy.yaml", file)], Merging::Refuse).policy.expect("no errors");
/// let limiter = PolicyLimiter::in_memory(policy)?;
/// let entries = [Entry { key: "user", value: "bob" }];
/// let descriptors = [Descriptor::new(&entries)];
/// let request = Request { domain: "api", descriptors: &descriptors, hits: None };
///
/// let mut permit = limiter.acquire(&request).await?.permit().expect("800 of 1000 are free");
/// let settlement = permit.take_settlement().expect("the limit has an actual cost");
/// let settled = settlement.settle(RequestOutcome::status(200).cost(300)).await?;
/// assert_eq!(settled.returned, 500);
/// # Ok(())
/// # }
/// # let mut example = std::pin::pin!(example());
/// # let ready = example.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
/// # assert!(matches!(ready, std::task::Poll::Ready(Ok(()))));
/// ```
#[must_use = "dropping a settlement leaves its units taken"]
pub struct Settlement {
    reservations: Reservations,
    limiter: Box<dyn Settle>,
}

impl Settlement {
    pub(in crate::policy) fn new<S: Store + 'static>(
        reservations: Reservations,
        limiter: &PolicyLimiter<S>,
    ) -> Option<Self> {
        if reservations.is_empty() {
            return None;
        }
        Some(Self { reservations, limiter: Box::new(limiter.clone()) })
    }

    /// Settles the limits whose cost `outcome` contains; the others wait for another call. Each
    /// limit is settled once.
    ///
    /// # Errors
    /// If the store is unavailable: the units stay taken. Settling again is safe.
    pub async fn settle(&self, outcome: RequestOutcome<'_>) -> Result<Settled, StoreError> {
        self.limiter.settle(&self.reservations, outcome).await
    }

    /// Whether the code of a gRPC call decides about a limit. It may follow the body of the response.
    #[doc(hidden)]
    pub fn reads_grpc_codes(&self) -> bool {
        self.reservations.iter().any(Reservation::reads_grpc_codes)
    }

    /// The headers and trailers of the response that hold actual costs, each with the name of its limit.
    #[doc(hidden)]
    pub fn sources(&self) -> impl Iterator<Item = (&str, &ActualSource)> {
        self.reservations.sources()
    }
}

impl fmt::Debug for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement")
            .field("limits", &self.reservations.len())
            .finish_non_exhaustive()
    }
}
