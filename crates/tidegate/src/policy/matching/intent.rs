//! The action of a call on the limits of a request.

use tidegate_core::{Limit, Op, Span};

use crate::policy::model::descriptor::Hits;

/// The action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Intent {
    /// Charge it. In-flight limits are skipped, because the caller cannot release.
    Take,
    /// The same, and limits that are settled later open reservations.
    Reserve,
    /// The same, in-flight limits included.
    Acquire,
    /// Return the decision that charging it would give.
    Read,
    /// Return the units that it was charged.
    Return,
    /// Delete the state of its keys.
    Reset,
    /// Block its keys for this long, under limits that have a block; zero lifts the blocks.
    Block(Span),
}

impl Intent {
    /// Whether the request is charged.
    pub(in crate::policy) const fn charges(self) -> bool {
        matches!(self, Self::Take | Self::Reserve | Self::Acquire)
    }

    /// Whether the caller settles limits after the response.
    pub(in crate::policy) const fn reserves(self) -> bool {
        matches!(self, Self::Reserve | Self::Acquire)
    }

    /// Whether a limit is decided. Only a release returns units to an in-flight limit.
    pub(super) const fn decides(self, limit: &Limit) -> bool {
        match self {
            Self::Take | Self::Reserve | Self::Return => !matches!(limit, Limit::InFlight(_)),
            Self::Block(_) => matches!(limit, Limit::Blocking(_)),
            Self::Acquire | Self::Read | Self::Reset => true,
        }
    }

    /// The operation on a limit with this cost.
    pub(super) fn op(self, hits: Option<Hits>, cost: u64) -> Op {
        match (self, hits) {
            // A read uses the cost of the corresponding charge.
            (Self::Take | Self::Reserve | Self::Acquire | Self::Read, hits) => match hits {
                Some(Hits::Return(units)) => Op::Return(units),
                Some(Hits::Take(units)) => Op::Take(units),
                None => Op::Take(cost),
            },
            (Self::Return, Some(Hits::Return(units) | Hits::Take(units))) => Op::Return(units),
            (Self::Return, None) => Op::Return(cost),
            (Self::Reset, _) => Op::Reset,
            (Self::Block(span), _) => Op::Block(span),
        }
    }
}
