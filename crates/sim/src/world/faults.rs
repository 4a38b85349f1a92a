//! The faults of a world, and their times.

mod kind;
mod plan;

pub use kind::{Fault, UnknownFault};
pub(crate) use plan::{Incident, plan};
