//! Asks the store, and remembers its answers.

use std::sync::atomic::Ordering;

use tidegate_core::{Decision, Timestamp};

use crate::store::shared::Layers;
use crate::store::{Batch, Charge, DecisionSource, Store, StoreError};

impl<S: Store + 'static> Layers<S> {
    /// The bit of the endpoint that decides a charge.
    fn endpoint_bit(&self, charge: &Charge<'_>) -> u64 {
        1 << self.endpoint(charge)
    }

    /// Whether the endpoint of a charge has answered since the start.
    pub(super) fn has_answered(&self, charge: &Charge<'_>) -> bool {
        let answered = self.fallback.answered_endpoints.load(Ordering::Relaxed);
        answered & self.endpoint_bit(charge) != 0
    }

    /// Asks the store, and records that it has answered, and the states.
    pub(super) async fn ask(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let before = decisions.len();
        let source = self.decide_leased(now, batch, decisions).await?;
        let (charges, answered) = (batch.charges, &self.fallback.answered_endpoints);
        let bits = charges.iter().fold(0, |bits, charge| bits | self.endpoint_bit(charge));
        if answered.load(Ordering::Relaxed) & bits != bits {
            answered.fetch_or(bits, Ordering::Relaxed);
        }
        let at = self.time(now);
        for (charge, decision) in charges.iter().zip(&decisions[before..]) {
            self.learn(at, charge, decision);
        }
        Ok(source)
    }

    /// The store's clock; wall time until the store's clock is known, which shows `local` until then.
    pub(in crate::store) fn time(&self, local: Timestamp) -> Timestamp {
        match self.store.clock(local) {
            unknown if unknown == local => self.clock.wall(local),
            known => known,
        }
    }
}
