//! Places in in-flight limits and reservations, which a request holds after its decision.

use tidegate::policy::{
    CheckError, Granted, Leases, Request, RequestOutcome, Reservations, Settled,
};
use tidegate::store::StoreError;
use tidegate::{Clock, Verdict};

use super::{RateLimitService, make_mistake};

impl RateLimitService {
    /// The clock of all decisions in this process.
    pub(crate) const fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Decides a request by the policy, in-flight limits included, and charges it. The client has
    /// to release the leases.
    pub(crate) async fn acquire(&self, request: &Request<'_>) -> Result<Granted, CheckError> {
        let before = self.started();
        let answer = self.limiter.acquire_leases(request).await;
        self.count_check(before, request, answer.as_ref().map(|granted| &granted.verdict));
        answer
    }

    /// Like [`check`](Self::check), for a client that settles limits after the response.
    pub(crate) async fn reserve(
        &self,
        request: &Request<'_>,
    ) -> Result<(Verdict, Reservations), CheckError> {
        make_mistake(request);
        let before = self.started();
        let answer = self.limiter.reserve(request).await;
        self.count_check(before, request, answer.as_ref().map(|(verdict, _)| verdict));
        answer
    }

    /// Settles the limits of a request.
    pub(crate) async fn settle(
        &self,
        reservations: &Reservations,
        outcome: &RequestOutcome<'_>,
    ) -> Result<Settled, StoreError> {
        self.limiter.settle(reservations, outcome).await
    }

    /// Frees the places of a request.
    pub(crate) async fn release(&self, leases: &Leases) -> Result<(), StoreError> {
        self.limiter.release(leases).await
    }

    /// Renews the places of a request for another time to live; false if one of the leases has
    /// expired.
    pub(crate) async fn renew(&self, leases: &Leases) -> Result<bool, StoreError> {
        self.limiter.renew(leases).await
    }
}
