//! Which servers of the store have answered since the start.

use std::sync::atomic::Ordering;

use tidegate_core::{Decision, Timestamp};

use super::Inner;
use crate::store::breaker::MAX_ENDPOINTS;
use crate::store::{Charge, DecisionSource, Store, StoreError};

impl<S: Store> Inner<S> {
    /// The bit of the endpoint that decides on a charge.
    fn endpoint_bit(&self, charge: &Charge<'_>) -> u64 {
        1 << (self.store.endpoint(charge) % MAX_ENDPOINTS)
    }

    /// Whether the endpoint of a charge has decided any since the start.
    pub(super) fn has_answered(&self, charge: &Charge<'_>) -> bool {
        self.answered_endpoints.load(Ordering::Relaxed) & self.endpoint_bit(charge) != 0
    }

    /// Asks the store, and notes that it has answered.
    pub(super) async fn ask(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let before = decisions.len();
        let decision_source = self.store.decide(now, charges, decisions).await?;
        self.note_answer(now, charges, &decisions[before..]);
        Ok(decision_source)
    }

    /// The same for charges that are decided each alone.
    pub(super) async fn ask_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let before = decisions.len();
        let decision_source = self.store.decide_each(now, charges, decisions).await?;
        self.note_answer(now, charges, &decisions[before..]);
        Ok(decision_source)
    }

    fn note_answer(&self, now: Timestamp, charges: &[Charge<'_>], decisions: &[Decision]) {
        let bits = charges.iter().fold(0, |bits, charge| bits | self.endpoint_bit(charge));
        if self.answered_endpoints.load(Ordering::Relaxed) & bits != bits {
            self.answered_endpoints.fetch_or(bits, Ordering::Relaxed);
        }
        let at = self.time(now);
        for (charge, decision) in charges.iter().zip(decisions) {
            self.learn(at, charge, decision);
        }
    }

    /// The store's clock; wall time until the store's clock is known, which shows `local` till then.
    pub(super) fn time(&self, local: Timestamp) -> Timestamp {
        match self.store.clock(local) {
            unknown if unknown == local => self.clock.wall(local),
            known => known,
        }
    }
}
