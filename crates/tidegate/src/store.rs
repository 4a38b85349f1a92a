//! Where state lives, and what is asked of it.

mod error;
pub mod memory;
#[cfg(feature = "redis")]
pub mod redis;

use std::future::Future;
use std::slice;

use tidegate_core::{Decision, Explanation, Limit, Op, Timestamp};

use crate::key::Key;

pub use error::{Misconfigured, StoreError};

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
}

impl Charge<'_> {
    /// Whether this is an operation that can be denied, and so is decided together with others.
    pub(crate) const fn asks(&self) -> bool {
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
    /// shared store sets aside for its own.
    ///
    /// # Panics
    /// If there are more than [`MAX_TOGETHER`] charges.
    fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Decides charges each alone, in order, and appends one decision each; nothing is appended on
    /// an error, though some may have been charged by then.
    ///
    /// A store that is asked over a network is asked for all of them at once.
    fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            let before = decisions.len();
            for charge in charges {
                if let Err(error) = self.decide(now, slice::from_ref(charge), decisions).await {
                    decisions.truncate(before);
                    return Err(error);
                }
            }
            Ok(())
        }
    }

    /// What the state of a key means. Changes nothing.
    fn explain(
        &self,
        now: Timestamp,
        key: Key<'_>,
        limit: &Limit,
    ) -> impl Future<Output = Result<Explanation, StoreError>> + Send;

    /// Some limit has new numbers from now on. While other nodes still have the old ones, a state
    /// that seems impossible may be sound, and repairing it would refill it for them.
    fn limits_changed(&self) {}

    /// What the store's own clock says when the caller's says `local`, as far as is known. The
    /// times in a decision of a shared store are spans from this one.
    fn clock(&self, local: Timestamp) -> Timestamp {
        local
    }
}
