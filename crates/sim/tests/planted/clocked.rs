//! A stack whose clock is not the node's monotonic clock.

use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate::{Clock, Explanation, ManualClock};
use tidegate_core::{Decision, Span, Timestamp};
use tidegate_sim::world::NodeStack;

/// How long an answer may take.
const DEADLINE: Span = Span::from_millis(5);

/// The clock of a stack.
#[derive(Debug)]
pub(crate) enum WrongClock {
    /// The wall clock, which can be set.
    Wall(Clock),
    /// A clock that is ahead by the time of an answer: leases are counted from the answer.
    Ahead(ManualClock),
}

impl WrongClock {
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Self::Wall(wall) => wall.clone(),
            Self::Ahead(clock) => Clock::from(clock.clone()),
        }
    }

    fn time(&self, now: Timestamp) -> Timestamp {
        match self {
            Self::Wall(wall) => wall.now(),
            Self::Ahead(clock) => {
                clock.set(now + DEADLINE);
                now
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Clocked<S> {
    pub(crate) store: S,
    pub(crate) clock: WrongClock,
}

impl<S: NodeStack> NodeStack for Clocked<S> {}

impl<S: Store> Store for Clocked<S> {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        self.store.decide(self.clock.time(now), batch, decisions).await
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        self.store.explain(now, charge).await
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.store.clock(local)
    }
}
