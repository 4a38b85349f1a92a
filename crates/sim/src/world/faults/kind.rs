//! The kinds of faults.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Some messages take up to 50 ms.
    Delay,
    /// Some messages never arrive.
    Loss,
    /// Some messages arrive twice, as after a retransmission.
    Duplication,
    /// A node and the store cannot reach each other; messages arrive after the partition, or never.
    Partition,
    /// A node crashes, loses its state, and starts again.
    Crash,
    /// A node shuts down gracefully, and starts again.
    Restart,
    /// A node is paused; its clock goes on.
    Pause,
    /// A node's wall clock is set back or forward; the node reads it when it starts.
    NodeClock,
    /// The store accepts commands and does nothing for a while.
    StoreHang,
    /// The store refuses connections for a while; it keeps its state.
    StoreDown,
    /// The store's clock is set back or forward.
    StoreClock,
    /// A replica takes over that lacks the store's last writes.
    Failover,
    /// Some callers give up before the answer.
    GiveUp,
    /// The limit gets new numbers; nodes learn of them one after the other.
    PolicyPush,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Delay,
        Self::Loss,
        Self::Duplication,
        Self::Partition,
        Self::Crash,
        Self::Restart,
        Self::Pause,
        Self::NodeClock,
        Self::StoreHang,
        Self::StoreDown,
        Self::StoreClock,
        Self::Failover,
        Self::GiveUp,
        Self::PolicyPush,
    ];

    /// The name in commands.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Loss => "loss",
            Self::Duplication => "duplication",
            Self::Partition => "partition",
            Self::Crash => "crash",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::NodeClock => "node_clock",
            Self::StoreHang => "store_hang",
            Self::StoreDown => "store_down",
            Self::StoreClock => "store_clock",
            Self::Failover => "failover",
            Self::GiveUp => "give_up",
            Self::PolicyPush => "policy_push",
        }
    }

    /// The shortest and longest duration in microseconds; 0 for a fault that happens at once.
    pub(super) const fn lasts(self) -> (u64, u64) {
        match self {
            Self::Delay | Self::Loss | Self::Duplication | Self::GiveUp => (200_000, 2_000_000),
            Self::Partition | Self::Pause | Self::Crash => (1_000, 1_500_000),
            Self::StoreHang | Self::StoreDown => (1_000, 1_000_000),
            Self::Restart => (100_000, 500_000),
            Self::NodeClock | Self::StoreClock | Self::Failover | Self::PolicyPush => (0, 0),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Fault {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        Self::ALL.into_iter().find(|fault| fault.as_str() == text).ok_or(UnknownFault)
    }
}

/// The error for an unknown fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFault;

impl fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fault must be one of")?;
        Fault::ALL.iter().try_for_each(|fault| write!(f, " {fault}"))
    }
}

impl Error for UnknownFault {}
