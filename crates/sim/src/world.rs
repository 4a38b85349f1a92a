//! A cluster in one thread: nodes and their store on simulated time, with everything going wrong.
//!
//! The nodes run the production code, layers and all; the network, the clocks and the store's server are
//! simulated. What happens follows from the seed alone, so whatever goes wrong can be seen again. A world
//! keeps the promises that its checker states, or says which it broke and when.

mod chance;
mod checker;
mod circuit;
mod evidence;
mod executor;
mod fault;
mod lease_watch;
mod ledger;
mod meter;
mod network;
mod node;
mod numbers;
mod owing;
mod report;
mod run;
mod runtime;
mod server;
mod setup;
mod share;
mod sim_store;
mod stack;

pub use evidence::Broken;
pub use fault::{Fault, UnknownFault};
pub use report::{Trace, WorldReport};
pub use run::{simulate, simulate_as_set_up};
pub use runtime::Idle;
pub use setup::{InvalidWorld, Stack, UnknownStack, WorldSetup};
pub use sim_store::SimStore;
pub use stack::{Guarded, Leased, NodeParts, NodeStack, answered_for, guarded, leased};
