//! Where state lives, and what is asked of it.

pub mod background;
pub mod breaker;
mod denied_state;
pub mod deny_cache;
mod error;
pub mod fallback;
pub mod lease;
pub mod local;
pub mod memory;
mod nodes;
mod options;
#[cfg(feature = "redis")]
pub mod redis;
pub mod shards;
pub mod shared;
mod tags;
pub(crate) mod undo;

use std::future::Future;
use std::slice;
use std::sync::OnceLock;

use tidegate_core::{Algorithm, Decision, Explanation, Limit, Op, State, Timestamp};

use crate::key::Key;

pub use denied_state::DeniedState;
pub use error::{Misconfigured, StoreError};
pub use nodes::{DomainRevision, Nodes, Revisions};
pub use options::{DecisionSource, LimitOptions, OnStoreFailure, Tier};

/// One operation on one key of one limit. Everything a store does is a charge: taking, giving
/// back, resetting and reading go the same way, so whatever sits in front of a store sees them all.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose state.
    pub key: Key<'a>,
    /// By which numbers.
    pub limit: &'a Limit,
    /// To do what.
    pub op: Op,
    /// On what options.
    pub options: LimitOptions,
    /// Where a store leaves what it denied this on, if somebody wants to know. Layers pass it on.
    pub denied_state: Option<&'a OnceLock<DeniedState>>,
}

impl<'a> Charge<'a> {
    /// A charge on options that nobody has named.
    #[inline(always)]
    pub const fn new(key: Key<'a>, limit: &'a Limit, op: Op) -> Self {
        let options = LimitOptions {
            on_store_failure: None,
            refund_staleness: None,
            tier: Tier::Exact,
            shards: None,
            is_calendar: false,
        };
        Self { key, limit, op, options, denied_state: None }
    }

    /// The same on these options.
    #[must_use]
    pub const fn on(self, options: LimitOptions) -> Self {
        Self { options, ..self }
    }

    /// The same, and what it is denied on is left here.
    #[must_use]
    pub const fn denied_state_in(self, denied_state: &'a OnceLock<DeniedState>) -> Self {
        Self { denied_state: Some(denied_state), ..self }
    }

    /// How its key stands if it was never seen.
    pub(crate) fn fresh_decision(&self, now: Timestamp) -> Decision {
        self.limit.decide(&mut State::default(), now, Op::Read(0))
    }

    /// A number of the key that spreads the retries of a window's keys; 0 for limits whose keys do not all
    /// become free at once.
    pub(crate) fn key_number(&self) -> u64 {
        match self.limit {
            Limit::FixedWindow(_) | Limit::SlidingWindow(_) => self.key.number(),
            _ => 0,
        }
    }

    /// Whether this is an operation that can be denied, and so is decided together with others.
    pub(crate) const fn is_deniable(&self) -> bool {
        matches!(self.op, Op::Take(_) | Op::Read(_))
    }
}

/// The most charges that are decided together. A request that meets more limits than this is a
/// mistake in its policy.
pub const MAX_TOGETHER: usize = 16;

/// A place where limits keep their state.
///
/// A denial is a decision; an error means that no decision could be had, and whoever asked must
/// choose what then.
pub trait Store: Send + Sync {
    /// Decides the charges of one request and appends one decision each, in order; nothing is
    /// appended on an error.
    ///
    /// Takes are all or nothing: if one is denied, none is charged. What is never denied (giving
    /// back, resetting and so on) is carried out each alone. `now` is the caller's clock, which a
    /// shared store sets aside for its own. Says how the decisions were come by.
    ///
    /// # Panics
    /// If there are more than [`MAX_TOGETHER`] charges.
    fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<DecisionSource, StoreError>> + Send;

    /// Decides a charge of one request, if that takes neither waiting nor asking anybody: it has all the
    /// units that it wants here, or is denied for certain. `None` if somebody has to be asked; then
    /// nothing has been charged.
    ///
    /// [`Store::decide`] says the same. This is for who stands before, so that what is answered here does
    /// not pass through every layer's wait.
    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        let _ = (now, charge);
        None
    }

    /// Decides charges each alone, in order, and appends one decision each; nothing is appended on
    /// an error, though some may have been charged by then.
    ///
    /// A store that is asked over a network is asked for all of them at once.
    fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<DecisionSource, StoreError>> + Send {
        async move {
            let (before, mut decision_source) = (decisions.len(), DecisionSource::Store);
            for charge in charges {
                match self.decide(now, slice::from_ref(charge), decisions).await {
                    Ok(own) => decision_source = decision_source.max(own),
                    Err(error) => {
                        decisions.truncate(before);
                        return Err(error);
                    }
                }
            }
            Ok(decision_source)
        }
    }

    /// What the state of a charge's key means, whatever its operation. Changes nothing.
    fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> impl Future<Output = Result<Explanation, StoreError>> + Send;

    /// Which of the store's servers decides on a charge, by number: what goes wrong with one says
    /// nothing of the others.
    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        let _ = charge;
        0
    }

    /// Whether it is worth asking about a charge at all; an error if its server is known to be away.
    /// Asks nobody.
    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        let _ = (now, charge);
        Ok(())
    }

    /// Some limit has new numbers from now on. While other nodes still have the old ones, a state
    /// that seems impossible may be sound, and repairing it would refill it for them.
    fn limits_changed(&self) {}

    /// What the store's own clock says when the caller's says `local`, as far as is known. The
    /// times in a decision of a shared store are spans from this one.
    fn clock(&self, local: Timestamp) -> Timestamp {
        local
    }
}
