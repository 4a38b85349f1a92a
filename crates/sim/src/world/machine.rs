//! The simulated machine: nodes, their tasks and timers, the network, the store's server, and all clocks.

pub(crate) mod chance;
pub(crate) mod clock;
pub(crate) mod executor;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod runtime;
pub(crate) mod server;
pub(crate) mod sim_store;
pub(crate) mod stack;
