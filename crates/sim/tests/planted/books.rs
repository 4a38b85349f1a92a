//! A node whose leases are in order and whose books are not, although they add up.

use tidegate::Explanation;
use tidegate::store::lease::{Lease, LeaseStats};
use tidegate::store::{Charge, DecisionSource, Store, StoreError};
use tidegate_core::{Decision, Timestamp};
use tidegate_sim::world::NodeStack;

#[derive(Debug)]
pub(crate) struct Books<S> {
    leases: Lease<S>,
    wrong: fn(&mut LeaseStats),
}

impl<S: Store> Books<S> {
    pub(crate) const fn new(leases: Lease<S>, wrong: fn(&mut LeaseStats)) -> Self {
        Self { leases, wrong }
    }
}

impl<S: Store + 'static> NodeStack for Books<S> {
    fn leases(&self) -> LeaseStats {
        let mut says = self.leases.stats();
        (self.wrong)(&mut says);
        says
    }

    async fn close(&self) {
        self.leases.give_back().await;
    }
}

impl<S: Store> Store for Books<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.leases.decide(now, charges, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.leases.explain(now, charge).await
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.leases.ready(now, charge)
    }

    fn limits_changed(&self) {
        self.leases.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.leases.clock(local)
    }
}
