//! Finds the limits that apply to a descriptor.

pub(super) mod intent;
pub(super) mod level;
pub(super) mod matched_limits;
pub(super) mod network;
pub(super) mod pattern;
pub(super) mod resolve;
