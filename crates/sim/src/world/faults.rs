//! What goes wrong in a world, and when.

mod kind;
mod plan;

pub use kind::{Fault, UnknownFault};
pub(crate) use plan::{Incident, plan};
