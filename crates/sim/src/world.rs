//! A cluster in one thread: nodes and their store on simulated time, with everything going wrong.
//!
//! The nodes run the production code; the network, the clocks and the store's server are simulated. What
//! happens follows from the seed alone, so whatever goes wrong can be seen again. A world keeps the
//! promises that its checker states, or says which it broke and when.

mod chance;
mod checker;
mod executor;
mod fault;
mod meter;
mod network;
mod report;
mod run;
mod server;
mod setup;
mod sim_store;

pub use checker::Broken;
pub use fault::{Fault, UnknownFault};
pub use report::{Trace, WorldReport};
pub use run::simulate;
pub use setup::{InvalidWorld, WorldSetup};
pub use sim_store::SimStore;
