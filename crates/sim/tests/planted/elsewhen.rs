//! Leases that go by another clock than the node's.

use tidegate::store::lease::{Lease, LeaseStats};
use tidegate::store::{Charge, DecisionSource, Store, StoreError};
use tidegate::{Clock, Explanation, ManualClock};
use tidegate_core::{Decision, Span, Timestamp};
use tidegate_sim::world::NodeStack;

/// So long an answer may take.
const DEADLINE: Span = Span::from_millis(5);

#[derive(Debug)]
pub(crate) struct Elsewhen<S> {
    leases: Lease<S>,
    clock: Elsewhere,
}

#[derive(Debug)]
enum Elsewhere {
    /// One that people set.
    Wall(Clock),
    /// One that is read when the answer has come.
    Later(ManualClock),
}

impl<S: Store> Elsewhen<S> {
    pub(crate) fn on_the_wall(store: S, wall: Clock) -> Self {
        Self { leases: Lease::repeatable(store, wall.clone()), clock: Elsewhere::Wall(wall) }
    }

    pub(crate) fn when_answered(store: S) -> Self {
        let clock = ManualClock::new();
        let leases = Lease::repeatable(store, Clock::from(clock.clone()));
        Self { leases, clock: Elsewhere::Later(clock) }
    }

    fn time(&self, now: Timestamp) -> Timestamp {
        match &self.clock {
            Elsewhere::Wall(wall) => wall.now(),
            Elsewhere::Later(clock) => {
                clock.set(now + DEADLINE);
                now
            }
        }
    }
}

impl<S: Store + 'static> NodeStack for Elsewhen<S> {
    fn leases(&self) -> LeaseStats {
        self.leases.stats()
    }
}

impl<S: Store> Store for Elsewhen<S> {
    async fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.leases.decide(self.time(now), charges, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.leases.explain(now, charge).await
    }

    fn limits_changed(&self) {
        self.leases.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.leases.clock(local)
    }
}
