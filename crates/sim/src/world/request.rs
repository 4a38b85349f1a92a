//! Requests and their outcomes.

use std::fmt;

use tidegate::store::{DecisionSource, StoreError};
use tidegate_core::Op;

/// A request of a caller to a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) node: usize,
    pub(crate) key: usize,
    /// The revision of the node's policy.
    pub(crate) revision: usize,
    pub(crate) op: Op,
    /// Units of a second key.
    pub(crate) also: Option<(usize, u64)>,
    /// Whether the two keys are decided separately instead of all or nothing.
    pub(crate) is_each: bool,
    /// The first key has a pre-limit on its node.
    pub(crate) is_pre_limited: bool,
}

impl Request {
    /// The requested units, key by key.
    pub(crate) fn charges(&self) -> impl Iterator<Item = (usize, Op)> + use<> {
        let also = self.also.map(|(key, units)| (key, Op::Take(units)));
        std::iter::once((self.key, self.op)).chain(also)
    }

    /// The key that is counted by a pre-limit, if any.
    pub(crate) fn pre_limited(&self) -> Option<usize> {
        self.is_pre_limited.then_some(self.key)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The source of the decisions, or the reason why there are none.
    pub(crate) source: Result<DecisionSource, StoreError>,
    /// Whether each of its keys is admitted.
    pub(crate) is_allowed: Vec<bool>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Microseconds after the world began.
    pub at: u64,
    /// A description, with the node, key or request.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}.{:06}s: {}", self.at / 1_000_000, self.at % 1_000_000, self.what)
    }
}
