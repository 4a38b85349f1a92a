//! Stores keep the state of limits and decide charges on it.
//!
//! ```
//! use tidegate::{Limit, Limiter, Rate};
//!
//! // In this process, which is the default.
//! let limiter = Limiter::new(Limit::token_bucket(Rate::per_second(10)).build()?);
//! assert!(limiter.check("user:17").is_allowed());
//! # Ok::<(), tidegate::InvalidLimit>(())
//! ```
//!
//! | module | state |
//! |---|---|
//! | [`memory`] | in this process |
//! | [`shared`] | in Redis, with the daemon's layers in front of it |
//! | `redis` (feature `redis`) | in Redis, without layers |

#[doc(hidden)]
pub mod background;
#[doc(hidden)]
pub mod circuits;
#[doc(hidden)]
pub mod deny_cache;
mod error;
#[doc(hidden)]
pub mod fallback;
#[doc(hidden)]
pub mod lease;
#[doc(hidden)]
pub mod local;
pub mod memory;
mod nodes;
mod options;
mod partition;
#[cfg(feature = "redis")]
pub mod redis;
pub(crate) mod reservation;
#[doc(hidden)]
pub mod shards;
pub mod shared;
mod table;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod undo;

use std::future::Future;
use std::slice;
use std::sync::OnceLock;

use tidegate_core::{Algorithm, Decision, Explanation, Limit, Op, State, Timestamp};

use crate::key::Key;
use crate::sync::{AtomicU64, Ordering};

pub use error::{Misconfigured, StoreError};
pub use nodes::{DomainRevision, Nodes, Revisions};
pub use options::{DecisionSource, LimitOptions, OnStoreFailure, Tier};
#[doc(hidden)]
pub use reservation::{RESERVATION_TTL, ReservationId, Reserving};

/// One operation on one key of one limit. Takes, returns, resets and reads are all charges, so every layer
/// in front of a store sees them.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Charge<'a> {
    /// The key whose state is charged.
    pub key: Key<'a>,
    /// The limit.
    pub limit: &'a Limit,
    /// The operation.
    pub op: Op,
    /// The options of the limit.
    pub options: LimitOptions,
    /// Where the store puts the state on which it denied the charge, if the caller wants it.
    pub denied_state: Option<&'a OnceLock<DeniedState>>,
    /// The hash of the key in the tables of a node, once a layer has computed it.
    pub print: Option<u64>,
    /// What the charge does to a reservation, if anything.
    pub reserving: Option<Reserving>,
}

/// The state on which a store denied a charge. It determines the store's answers for a while after
/// the denial.
#[derive(Clone, Debug, PartialEq)]
#[doc(hidden)]
pub struct DeniedState {
    /// The state of the key before the denial. For a log, it may be an excerpt on which the
    /// decision about this cost is the same as on the whole log.
    pub state: State,
    /// The time by the store's clock.
    pub at: Timestamp,
}

impl<'a> Charge<'a> {
    /// A charge with default options.
    #[inline(always)]
    pub const fn new(key: Key<'a>, limit: &'a Limit, op: Op) -> Self {
        let options = LimitOptions {
            on_store_failure: None,
            refund_staleness: None,
            tier: Tier::Exact,
            shards: None,
            is_calendar: false,
        };
        Self { key, limit, op, options, denied_state: None, print: None, reserving: None }
    }

    /// The same charge with these options.
    #[must_use]
    pub const fn on(self, options: LimitOptions) -> Self {
        Self { options, ..self }
    }

    /// The same charge, which opens or closes a reservation. Only exact limits have reservations, and only
    /// the store keeps them.
    #[must_use]
    pub const fn reserving(self, reserving: Reserving) -> Self {
        Self { reserving: Some(reserving), ..self }
    }

    /// The same charge. A store that denies it puts the state into `denied_state`.
    #[must_use]
    pub const fn denied_state_in(self, denied_state: &'a OnceLock<DeniedState>) -> Self {
        Self { denied_state: Some(denied_state), ..self }
    }

    /// The decision for a key that was never charged, without taking units.
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

    /// Whether the operation can be denied. Only such operations are decided together.
    pub(crate) const fn is_deniable(&self) -> bool {
        matches!(self.op, Op::Take(_) | Op::Read(_))
    }
}

/// The most charges that are decided together. A request that meets more limits is a mistake in its policy.
#[doc(hidden)]
pub const MAX_TOGETHER: usize = 16;

/// Charges that go to a store in one call, and how they are decided.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Batch<'a> {
    /// The charges, in order.
    pub charges: &'a [Charge<'a>],
    /// Whether takes are all or nothing: if one is denied, none is charged. In a batch with an
    /// operation that is never denied (a return, a reset and so on), every charge is decided
    /// separately.
    pub is_together: bool,
    /// The revision of the limits that the charges were resolved by; 0 if there is none. A greater
    /// revision than in earlier batches means that limits have changed: the store repairs no state
    /// while other nodes use the old limits, and drops local state that depends on them.
    pub revision: u64,
}

impl<'a> Batch<'a> {
    /// The charges of one request, all or nothing.
    pub const fn together(charges: &'a [Charge<'a>]) -> Self {
        Self { charges, is_together: true, revision: 0 }
    }

    /// Charges that are decided separately.
    pub const fn each(charges: &'a [Charge<'a>]) -> Self {
        Self { charges, is_together: false, revision: 0 }
    }

    /// A single charge.
    pub const fn one(charge: &'a Charge<'a>) -> Self {
        Self::each(slice::from_ref(charge))
    }

    /// The same batch, resolved by this revision of the limits.
    #[must_use]
    pub const fn revision(self, revision: u64) -> Self {
        Self { revision, ..self }
    }

    /// Other charges that are decided in the same way.
    pub(crate) const fn of<'b>(&self, charges: &'b [Charge<'b>]) -> Batch<'b> {
        Batch { charges, is_together: self.is_together, revision: self.revision }
    }

    /// Whether one denied charge keeps the others from being charged.
    pub fn is_all_or_nothing(&self) -> bool {
        self.is_together && self.charges.len() > 1 && self.charges.iter().all(Charge::is_deniable)
    }
}

/// The revision of a limiter's limits: 0 until they change.
#[cfg(any(feature = "policy", feature = "redis"))]
#[derive(Debug, Default)]
pub(crate) struct LimitsRevision(AtomicU64);

#[cfg(any(feature = "policy", feature = "redis"))]
impl LimitsRevision {
    pub(crate) fn current(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Limits change: batches resolved from now on have a revision that no store has seen.
    pub(crate) fn change(&self) {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let next = LAST.fetch_add(1, std::sync::atomic::Ordering::AcqRel) + 1;
        self.0.fetch_max(next, Ordering::AcqRel);
    }
}

/// The greatest revision of the limits that a store has seen.
#[derive(Debug, Default)]
pub(crate) struct SeenRevision(AtomicU64);

impl SeenRevision {
    /// Whether limits have changed since the last batch. True once for each revision.
    #[inline]
    pub(crate) fn is_news(&self, revision: u64) -> bool {
        revision > self.0.load(Ordering::Relaxed)
            && revision > self.0.fetch_max(revision, Ordering::AcqRel)
    }
}

/// Keeps the state of limits and decides charges on it.
///
/// A denial is a decision. An error means that there is no decision, and the caller chooses whether
/// to admit the request.
pub trait Store: Send + Sync {
    /// Decides a batch and appends one decision per charge, in order; appends nothing on an error,
    /// although some charges of a batch that is decided separately may have been carried out. `now`
    /// is the caller's clock; a shared store decides by its own. Returns where the decisions came
    /// from.
    ///
    /// # Panics
    /// If more than [`MAX_TOGETHER`] charges are to be decided together.
    fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<DecisionSource, StoreError>> + Send;

    /// Explains the state of a charge's key, whatever the operation. Changes nothing.
    fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> impl Future<Output = Result<Explanation, StoreError>> + Send;

    /// The store's time when the caller's clock shows `local`, as far as it is known. The spans in
    /// a decision of a shared store are relative to it.
    fn clock(&self, local: Timestamp) -> Timestamp {
        local
    }

    /// Whether decisions never leave the process.
    fn is_local(&self) -> bool {
        false
    }
}
