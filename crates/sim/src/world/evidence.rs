//! What there is to judge by.

use std::fmt;

use tidegate::store::lease::LeaseStats;
use tidegate::store::{DecisionSource, StoreError};
use tidegate_core::{Op, Timestamp};

/// What a request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) decision_source: Result<DecisionSource, StoreError>,
    /// Whether it is let in, for each key that it is about.
    pub(crate) is_allowed: Vec<bool>,
    /// What the node says of its leases then.
    pub(crate) leases: LeaseStats,
}

/// A promise that was not kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Microseconds after the world began.
    pub at: u64,
    /// Which, and by whom.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}.{:06}s: {}", self.at / 1_000_000, self.at % 1_000_000, self.what)
    }
}

/// An instant, by everybody's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct When {
    /// Microseconds after the world began.
    pub(crate) now: u64,
    /// By the store's clock.
    pub(crate) at_store: Timestamp,
    /// By the clock of a node.
    pub(crate) at_node: Timestamp,
    /// By what that node thinks the store's clock to say.
    pub(crate) supposed: Timestamp,
}

/// What somebody asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) node: usize,
    pub(crate) key: usize,
    pub(crate) revision: usize,
    pub(crate) op: Op,
    /// Another key that it takes so many units of, other than of the first.
    pub(crate) also: Option<(usize, u64)>,
    /// Each is decided alone, and not all or nothing.
    pub(crate) is_each: bool,
}

impl Question {
    /// What it asks for, key by key.
    pub(crate) fn charges(&self) -> impl Iterator<Item = (usize, Op)> + use<> {
        let also = self.also.map(|(key, units)| (key, Op::Take(units)));
        std::iter::once((self.key, self.op)).chain(also)
    }
}
