//! What goes wrong in a world, and when.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::chance::Chance;
use super::setup::WorldSetup;

/// A kind of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Some messages take up to 50 ms.
    Delay,
    /// Some messages never arrive.
    Loss,
    /// Some messages arrive twice, as after a retransmission.
    Duplication,
    /// A node and the store do not reach each other; what was sent then arrives afterwards, or never.
    Partition,
    /// A node is gone with all it knew, and starts again.
    Crash,
    /// A node stops in good order, and starts again.
    Restart,
    /// A node stands still, its clock goes on.
    Pause,
    /// A node's wall clock is set, back or forth; it goes by it when it starts again.
    NodeClock,
    /// The store takes what it is sent and does nothing for a while.
    StoreHang,
    /// The store refuses connections for a while; it forgets nothing.
    StoreDown,
    /// The store's clock is set, back or forth.
    StoreClock,
    /// Another server takes over from the store, without its last writes.
    Failover,
    /// Some callers give up before they are answered.
    GiveUp,
    /// The limit gets other numbers, which nodes learn of one after the other.
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

    /// As commands spell it.
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

    /// How long it lasts, in microseconds, from and to; what happens at once lasts no time.
    const fn lasts(self) -> (u64, u64) {
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

/// The text names no fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFault;

impl fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("fault must be one of")?;
        Fault::ALL.iter().try_for_each(|fault| write!(f, " {fault}"))
    }
}

impl Error for UnknownFault {}

/// One case of trouble. Times are microseconds since the world began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Incident {
    pub(crate) fault: Fault,
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// Whom it strikes, if it strikes one.
    pub(crate) node: usize,
    /// How hard: messages of a thousand, or microseconds.
    pub(crate) size: u64,
    /// Whether a clock is set back.
    pub(crate) is_back: bool,
}

/// The most cases of one kind in one world.
const MAX_CASES: u64 = 3;

/// Everything that will go wrong in a world.
pub(crate) fn plan(setup: &WorldSetup, chance: &mut Chance) -> Vec<Incident> {
    let last = setup.faults_end();
    let mut plan = Vec::new();
    for fault in &setup.faults {
        for _ in 0..chance.between(1, MAX_CASES) {
            let (shortest, longest) = fault.lasts();
            let from = chance.below(last);
            let until = (from + chance.between(shortest, longest)).min(last);
            let size = match fault {
                Fault::Loss | Fault::Delay | Fault::Duplication | Fault::GiveUp => {
                    chance.between(10, 400)
                }
                Fault::NodeClock | Fault::StoreClock => step(chance),
                Fault::Failover => chance.between(0, 500_000),
                // Hundredths of the burst, and of the rate.
                Fault::PolicyPush => chance.between(40, 250) * 1_000 + chance.between(40, 250),
                _ => 0,
            };
            let (node, is_back) = (chance.index(setup.nodes), chance.permille(500));
            plan.push(Incident { fault: *fault, from, until, node, size, is_back });
        }
    }
    plan.sort_by_key(|incident| incident.from);
    plan
}

/// How far a clock is set: mostly little, sometimes an hour.
fn step(chance: &mut Chance) -> u64 {
    match chance.below(4) {
        0 => chance.between(1, 1_000),
        1 => chance.between(1, 1_000_000),
        2 => chance.between(1, 10_000_000),
        _ => 3_600_000_000,
    }
}
