//! Where state lives, and what is asked of it.

pub mod memory;

use tidegate_core::{Limit, Op};

use crate::key::Key;

/// One operation on one key of one limit. Everything a store does is a charge: taking, giving
/// back, resetting and reading go the same way, so whatever sits in front of a store sees them all.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Whose state.
    pub key: Key<'a>,
    /// By which numbers.
    pub limit: &'a Limit,
    /// To do what.
    pub op: Op,
}

/// The most charges that are decided together. A request that meets more limits than this is a
/// mistake in its policy.
pub const MAX_TOGETHER: usize = 16;
