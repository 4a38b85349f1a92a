//! Operations on a limit, and the decisions they return.

use core::num::NonZeroU64;

use crate::time::{Span, Timestamp};

/// The largest cost of one operation; a larger cost is denied for good.
pub const MAX_COST: u64 = 1 << 32;

/// One operation on a limit's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Take this many units if they are free. `Take(0)` never writes.
    Take(u64),
    /// Returns the decision of a `Take` of the same cost, but writes nothing: `remaining` and
    /// `reset_after` describe the state without that cost.
    Read(u64),
    /// Return units, at most until the key is full. Never denied.
    Return(u64),
    /// Return units of an earlier take, as far as they are still owed: units that have been
    /// refilled since, or that were counted in a window that has ended, are not returned. Never
    /// denied; [`Decision::unbooked`] holds the number of units that were not returned, rounded
    /// down.
    ReturnOwed {
        /// The units to return, at most those that were taken.
        units: u64,
        /// When the key would have become idle after that take: the take's instant plus its
        /// [`Decision::reset_after`].
        until: Timestamp,
    },
    /// Take as many of these units as are free. Never denied; [`Decision::unbooked`] holds the
    /// units that did not fit.
    Force(u64),
    /// Delete the state, as if the key had never been seen.
    Reset,
    /// Free the units of an in-flight lease. Releasing twice, or after the lease expired, changes
    /// nothing.
    Release(LeaseId),
    /// Extend an in-flight lease by another full time to live. Denied for good if the lease has
    /// expired, because another request may hold its units by now.
    Renew(LeaseId),
    /// Deny the key for this time from now, at most 30 days, whatever its units; zero lifts the
    /// block. For rates with a block ([`Blocking`](crate::algorithm::blocking::Blocking)); changes
    /// nothing elsewhere.
    Block(Span),
}

/// The id of one lease of an in-flight limit. Never used twice on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(NonZeroU64);

impl LeaseId {
    /// The lease of this number; `None` for 0.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number of the lease.
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// The result of an operation on a limit. A denial is a value, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether the request is allowed, delayed or denied.
    pub outcome: Outcome,
    /// The most units a fully idle key can take at once.
    pub limit: u64,
    /// Units that could still be taken at this instant, one by one or together.
    pub remaining: u64,
    /// Time until the state equals that of a key never seen (for windows: until a new window), if
    /// no further units are taken.
    pub reset_after: Span,
    /// Units of an [`Op::Force`] that did not fit, or of an [`Op::ReturnOwed`] that were not owed.
    pub unbooked: u64,
    /// The lease, for an in-flight limit that allowed the operation.
    pub lease: Option<LeaseId>,
}

impl Decision {
    /// True unless the operation was denied; a delayed one is allowed.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self.outcome, Outcome::Deny { .. })
    }

    /// How long to wait before the same operation is allowed, if no further units are taken.
    ///
    /// `None` when it was allowed, and when no wait helps; [`Decision::is_never`] tells them apart.
    #[inline]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.outcome {
            Outcome::Deny { retry_after } => retry_after,
            Outcome::Allow | Outcome::Delay(_) => None,
        }
    }

    /// True if the cost can never fit, however long the caller waits.
    pub const fn is_never(&self) -> bool {
        matches!(self.outcome, Outcome::Deny { retry_after: None })
    }

    /// How long the caller of an allowed operation must wait before it starts; zero unless shaping.
    #[inline]
    pub const fn delay(&self) -> Span {
        match self.outcome {
            Outcome::Delay(span) => span,
            Outcome::Allow | Outcome::Deny { .. } => Span::ZERO,
        }
    }
}

/// Whether an operation was allowed, delayed or denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Allowed at once.
    Allow,
    /// Allowed after this delay; only a leaky bucket returns it.
    Delay(Span),
    /// Denied.
    Deny {
        /// Time until the same operation would be allowed; `None` if it never will.
        retry_after: Option<Span>,
    },
}
