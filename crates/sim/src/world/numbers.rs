//! The numbers of limits, as the checker reckons with them.

use tidegate_core::AlgorithmName;

use super::setup::{Stack, WorldSetup};

/// The numbers of one limit. Those of a bucket are times: what a unit takes to be refilled and what the
/// whole takes, so that one debt can be judged by the numbers of before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// In microseconds times `scale`, which makes them whole; `slack` is what may get lost or be found
    /// when one debt is kept in parts of a tick that are not the same size.
    Bucket {
        unit: u128,
        capacity: u128,
        slack: u128,
        scale: u128,
    },
    Window {
        limit: u64,
        length: u64,
        is_sliding: bool,
    },
    Log {
        limit: u64,
        length: u64,
    },
    Places {
        limit: u64,
        ttl: u64,
    },
}

/// Count and burst of a limit from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Revision {
    pub(crate) count: u64,
    pub(crate) burst: u64,
}

/// Which revisions' numbers an admission is judged by: what a unit weighs by the one that it was taken by,
/// what there is in all by the largest that anything was granted by that may still be spent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judges {
    pub(crate) own: usize,
    pub(crate) largest: usize,
}

/// The numbers of all revisions of the limit of a world.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    /// Units are taken ahead.
    pub(crate) is_leased: bool,
    /// What the policy promises.
    pub(crate) policy: Vec<Numbers>,
    /// What the store decides by.
    pub(crate) store: Vec<Numbers>,
    /// What a node lets in by itself.
    pub(crate) share: Vec<Numbers>,
    /// The most units that a node takes ahead at once.
    pub(crate) ahead: Vec<u64>,
    /// What that is kept by until it is booked: nobody keeps a second log.
    pub(crate) owed: Vec<Numbers>,
}

/// Shares add up to one and a half times the limit: 3 / 2.
const MORE: (u64, u64) = (3, 2);
/// Each change of hands between old and new numbers costs less than a microsecond.
const SLACK: u128 = 1_000;

impl Tables {
    pub(crate) fn new(setup: &WorldSetup, revisions: &[Revision]) -> Self {
        let counts = revisions.iter().map(|it| u128::from(it.count));
        let scale = counts.product::<u128>() * u128::from(MORE.0);
        let slack = if revisions.len() > 1 { SLACK * scale } else { 0 };
        let nodes = setup.nodes as u64;
        let numbers = |it: &Revision, parts: (u64, u64), is_reduced: bool| {
            let held_back = if is_reduced { setup.held_back(it) } else { 0 };
            let (times, out_of) = parts;
            let share = |units: u64| (units * times / out_of).max(u64::from(units > 0));
            let length = setup.rate.per.as_micros();
            let bucket = |capacity: u64| {
                let unit = u128::from(length) * scale * u128::from(out_of);
                let unit = unit / (u128::from(it.count) * u128::from(times));
                Numbers::Bucket { unit, capacity: u128::from(capacity) * unit, slack, scale }
            };
            let (limit, is_sliding) = (share(it.count), false);
            match setup.algorithm {
                _ if setup.in_flight => {
                    Numbers::Places { limit: share(it.burst), ttl: setup.ttl() }
                }
                AlgorithmName::TokenBucket | AlgorithmName::Gcra => {
                    bucket(share(it.burst - held_back))
                }
                // One starts at once, the burst is how many wait.
                AlgorithmName::LeakyBucket => bucket(share(1) + share(it.burst)),
                AlgorithmName::FixedWindow => Numbers::Window { limit, length, is_sliding },
                AlgorithmName::SlidingWindow => Numbers::Window { limit, length, is_sliding: true },
                AlgorithmName::SlidingLog => Numbers::Log { limit, length },
            }
        };
        let all = |parts, is_reduced| -> Vec<Numbers> {
            revisions.iter().map(|it| numbers(it, parts, is_reduced)).collect()
        };
        let owed = |numbers: &Numbers| match *numbers {
            Numbers::Log { limit, length } => Numbers::Window { limit, length, is_sliding: true },
            other => other,
        };
        let (policy, store) = (all((1, 1), false), all((1, 1), true));
        Self {
            owed: store.iter().map(owed).collect(),
            ahead: revisions.iter().map(|it| setup.taken_ahead(it)).collect(),
            is_leased: setup.stack == Stack::Leased,
            policy,
            store,
            share: all((MORE.0, MORE.1 * nodes), true),
        }
    }
}

impl Tables {
    /// What the policy promises by the numbers of these.
    pub(crate) fn judged(&self, by: Judges) -> Numbers {
        self.policy[by.own].as_large_as(&self.policy[by.largest])
    }
}

impl Numbers {
    /// What there is in all.
    pub(crate) fn size(&self) -> u128 {
        match *self {
            Self::Bucket { capacity, .. } => capacity,
            Self::Window { limit, .. } | Self::Log { limit, .. } => limit.into(),
            Self::Places { limit, .. } => limit.into(),
        }
    }

    /// These, with as much in all as others have. What was granted by old numbers is spent among what is
    /// granted by new ones.
    const fn as_large_as(mut self, other: &Self) -> Self {
        match (&mut self, other) {
            (Self::Bucket { capacity, .. }, Self::Bucket { capacity: most, .. }) => {
                *capacity = *most
            }
            (Self::Window { limit, .. }, Self::Window { limit: most, .. }) => *limit = *most,
            _ => {}
        }
        self
    }
}
