//! Requests, and what becomes of them.

use std::fmt;

use tidegate::store::{DecisionSource, StoreError};
use tidegate_core::Op;

/// What a caller asks a node for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) node: usize,
    pub(crate) key: usize,
    /// The revision of the policy that the node has.
    pub(crate) revision: usize,
    pub(crate) op: Op,
    /// Units of a second key.
    pub(crate) also: Option<(usize, u64)>,
    /// The two keys are decided each alone, and not all or nothing.
    pub(crate) is_each: bool,
    /// The first key has a pre-limit on its node.
    pub(crate) is_pre_limited: bool,
}

impl Request {
    /// What it asks for, key by key.
    pub(crate) fn charges(&self) -> impl Iterator<Item = (usize, Op)> + use<> {
        let also = self.also.map(|(key, units)| (key, Op::Take(units)));
        std::iter::once((self.key, self.op)).chain(also)
    }

    /// The key that a pre-limit counts, if one does.
    pub(crate) fn pre_limited(&self) -> Option<usize> {
        self.is_pre_limited.then_some(self.key)
    }
}

/// How a request was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Where the decisions came from, or why there are none.
    pub(crate) source: Result<DecisionSource, StoreError>,
    /// Whether it is admitted, for each of its keys.
    pub(crate) is_allowed: Vec<bool>,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Microseconds after the world began.
    pub at: u64,
    /// What happened, with the node, key or request.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {}.{:06}s: {}", self.at / 1_000_000, self.at % 1_000_000, self.what)
    }
}
