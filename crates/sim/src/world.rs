//! A cluster in one thread: nodes and their store on simulated time, with faults.
//!
//! The nodes run the production code with all its layers. The network, the clocks and the store's
//! server are simulated. The seed determines everything that happens, so every failure can be
//! repeated.
//!
//! - `machine`: nodes, network, server and clocks;
//! - `faults`: the faults and their times;
//! - `judge`: checks whether the world kept its promises;
//! - `run`: the event loop that puts them together.

mod faults;
mod judge;
mod machine;
mod report;
mod request;
mod run;
mod setup;

pub use faults::{Fault, UnknownFault};
pub use machine::runtime::Idle;
pub use machine::sim_store::SimStore;
pub use machine::stack::{NodeParts, NodeStack, production, production_with};
pub use report::{Trace, WorldReport};
pub use request::Broken;
pub use run::{simulate, simulate_as_set_up};
pub use setup::{InvalidWorld, Stack, UnknownStack, WorldSetup};
