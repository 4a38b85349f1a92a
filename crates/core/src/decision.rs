//! What is asked of a limit and what it answers.

use core::num::NonZeroU64;

use crate::time::Span;

/// The largest cost one operation may carry; a larger one is denied for good.
pub const MAX_COST: u64 = 1 << 32;

/// One operation on a limit's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Take this many units if they are free. `Take(0)` never writes.
    Take(u64),
    /// Would `Take` of the same cost pass, and if not, when? Writes nothing: `remaining` and
    /// `reset_after` are what they are before it.
    Read(u64),
    /// Give units back, at most to full. Never denied.
    Return(u64),
    /// Take as many of these units as are free, without asking. Never denied; what did not fit is
    /// in [`Decision::unbooked`].
    Force(u64),
    /// Forget the state, as if the key had never been seen.
    Reset,
    /// Free the place of an in-flight lease. Freeing it twice, or late, changes nothing.
    Release(LeaseId),
    /// Keep the place of an in-flight lease for another full time to live. Denied for good if the
    /// lease has ended: its place may be another's by now.
    Renew(LeaseId),
}

/// Names one place taken in an in-flight limit. Never used twice on one key.
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

/// What a limit answers. A denial is a value, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// May the caller go ahead?
    pub outcome: Outcome,
    /// The most a fully idle key can take at once.
    pub limit: u64,
    /// How many units could still be taken at this instant, one by one or together.
    pub remaining: u64,
    /// From this much later on, the state equals that of a key never seen (for windows: a new
    /// window), if nobody spends.
    pub reset_after: Span,
    /// Units of a [`Op::Force`] that did not fit.
    pub unbooked: u64,
    /// The place taken, for an in-flight limit that allowed.
    pub lease: Option<LeaseId>,
}

impl Decision {
    /// True unless the operation was denied; a delayed one is allowed.
    #[inline]
    pub const fn is_allowed(&self) -> bool {
        !matches!(self.outcome, Outcome::Deny { .. })
    }

    /// How long to wait before the same operation is allowed, if nobody else spends.
    ///
    /// `None` when it was allowed, and when no wait helps; [`Decision::is_never`] tells them apart.
    #[inline]
    pub const fn retry_after(&self) -> Option<Span> {
        match self.outcome {
            Outcome::Deny { retry_after } => retry_after,
            Outcome::Allow | Outcome::Delay(_) => None,
        }
    }

    /// True if the cost can never fit, however long one waits.
    pub const fn is_never(&self) -> bool {
        matches!(self.outcome, Outcome::Deny { retry_after: None })
    }

    /// How long an allowed caller must hold back before it starts; zero unless shaping.
    #[inline]
    pub const fn delay(&self) -> Span {
        match self.outcome {
            Outcome::Delay(span) => span,
            Outcome::Allow | Outcome::Deny { .. } => Span::ZERO,
        }
    }
}

/// The three answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Go ahead.
    Allow,
    /// Go ahead after this long; only a leaky bucket says so.
    Delay(Span),
    /// Not now.
    Deny {
        /// When the same operation would be allowed; `None` if never.
        retry_after: Option<Span>,
    },
}
