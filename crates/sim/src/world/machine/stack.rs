//! The store that a node decides with: the production stack, or the bare store.

use std::io;
use std::num::NonZeroU32;

use tidegate::Clock;
use tidegate::store::Store;
use tidegate::store::background::Background;
use tidegate::store::shared::{SharedOptions, SharedStore};

use super::sim_store::SimStore;
use crate::world::setup::WorldSetup;

/// The parts from which a node builds its stack, after each start.
#[derive(Debug)]
pub struct NodeParts {
    /// Its connection to the store.
    pub store: SimStore,
    /// Its monotonic clock.
    pub clock: Clock,
    /// Its wall clock, which can be set; nothing may depend on it.
    pub wall: Clock,
    /// Runs the background work of its layers.
    pub background: Background,
}

/// A store that a node decides with.
pub trait NodeStack: Store + 'static {
    /// Graceful shutdown: no more requests come.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

impl NodeStack for SimStore {}

impl<S: Store + 'static> NodeStack for SharedStore<S> {
    async fn close(&self) {
        self.return_leases().await;
    }
}

/// Builds the production stack of a node, as the daemon does.
pub fn production(setup: &WorldSetup, parts: NodeParts) -> io::Result<SharedStore<SimStore>> {
    let NodeParts { store, clock, background, .. } = parts;
    production_with(setup, store, clock, &background)
}

/// The same in front of another store or with other parts.
pub fn production_with<S: Store + 'static>(
    setup: &WorldSetup,
    store: S,
    clock: Clock,
    background: &Background,
) -> io::Result<SharedStore<S>> {
    let nodes = u32::try_from(setup.nodes).ok().and_then(NonZeroU32::new);
    let options = SharedOptions::default()
        .nodes(nodes.unwrap_or(NonZeroU32::MIN))
        .on_store_failure(setup.on_store_failure);
    SharedStore::repeatable(store, &options, clock, (background, setup.seed.0))
}
