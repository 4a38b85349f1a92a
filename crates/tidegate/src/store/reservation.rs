//! Reservations: units that were taken for a request whose cost is known later.
//!
//! A store keeps a reservation beside the state of its limit, and writes it in the same step as the take. The
//! first charge that closes it is carried out; a second one finds nothing and changes nothing, whichever
//! process sends it.

use std::num::NonZeroU64;

use tidegate_core::{Decision, Op, Outcome, Span, Timestamp};

/// How long a reservation can be settled. After that its units stay taken.
pub const RESERVATION_TTL: Span = Span::from_secs(3_600);

/// The id of a reservation, unique among those of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub struct ReservationId(NonZeroU64);

impl ReservationId {
    /// The reservation of this number; `None` for 0.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// A new id. Random, so that processes need not agree on the next one.
    #[cfg(feature = "policy")]
    pub(crate) fn random() -> Self {
        Self(NonZeroU64::new(fastrand::u64(1..)).unwrap_or(NonZeroU64::MAX))
    }

    /// The number of the reservation.
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// What a charge does to a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Reserving {
    /// Opens it if the charge, a take, is admitted.
    Open(ReservationId),
    /// Closes it and carries out the charge, a return or a forced debit. If it is not open, nothing
    /// changes, and the charge is denied without a wait.
    Close(ReservationId),
}

impl Reserving {
    /// Whether a reservation is closed.
    pub(crate) const fn closes(this: Option<Self>) -> bool {
        matches!(this, Some(Self::Close(_)))
    }
}

/// The operation that settles a reservation whose units are owed until `until`. A return frees only
/// units that are still owed.
pub(crate) const fn settling(op: Op, until: Timestamp) -> Op {
    match op {
        Op::Return(units) => Op::ReturnOwed { units, until },
        op => op,
    }
}

/// The decision of a charge whose reservation is not open, from a read of its key.
pub(crate) const fn not_open(read: Decision) -> Decision {
    Decision { outcome: Outcome::Deny { retry_after: None }, ..read }
}
