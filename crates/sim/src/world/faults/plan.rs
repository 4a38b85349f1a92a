//! The plan of a world's faults.

use super::Fault;
use crate::world::machine::chance::Chance;
use crate::world::setup::WorldSetup;

/// One fault of a world. Times are microseconds since the world began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Incident {
    pub(crate) fault: Fault,
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// The node that the fault strikes, if it strikes a single one.
    pub(crate) node: usize,
    /// The size of the fault: messages in a thousand, or microseconds.
    pub(crate) size: u64,
    /// Whether a clock is set back instead of forward.
    pub(crate) is_back: bool,
}

/// The most faults of one kind in one world.
const MAX_CASES: u64 = 3;

/// Draws all faults of a world.
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
                // Percent of the burst, and of the rate.
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

/// The step of a clock: usually small, sometimes an hour.
fn step(chance: &mut Chance) -> u64 {
    match chance.below(4) {
        0 => chance.between(1, 1_000),
        1 => chance.between(1, 1_000_000),
        2 => chance.between(1, 10_000_000),
        _ => 3_600_000_000,
    }
}
