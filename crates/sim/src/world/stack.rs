//! What nodes are made of.

use std::io;
use std::num::NonZeroU32;

use tidegate::Clock;
use tidegate::store::Store;
use tidegate::store::background::Background;
use tidegate::store::breaker::Breaker;
use tidegate::store::deny_cache::DenyCache;
use tidegate::store::fallback::{Fallback, FallbackConfig};
use tidegate::store::lease::{Lease, LeaseStats};
use tidegate::store::shards::Shards;

use super::setup::WorldSetup;
use super::sim_store::SimStore;

/// What a node has to build on, in one of its lives.
#[derive(Debug)]
pub struct NodeParts {
    /// Its end of the wire.
    pub store: SimStore,
    /// Its monotonic clock.
    pub clock: Clock,
    /// What people set; nothing may go by it.
    pub wall: Clock,
    /// Where its layers work when nobody waits.
    pub background: Background,
}

/// What a node asks: a store, with layers before it or without.
pub trait NodeStack: Store + 'static {
    /// Keys that owe the store something.
    fn owing_keys(&self) -> usize {
        0
    }

    /// What has become of the units taken ahead.
    fn leases(&self) -> LeaseStats {
        LeaseStats::default()
    }

    /// The node stops in good order: no more requests come.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

impl NodeStack for SimStore {}

impl<S: NodeStack> NodeStack for DenyCache<S> {}

impl<S: NodeStack> NodeStack for Breaker<S> {}

impl<S: Store + 'static> NodeStack for Lease<S> {
    fn leases(&self) -> LeaseStats {
        self.stats()
    }

    async fn close(&self) {
        self.give_back().await;
    }
}

impl<S: NodeStack> NodeStack for Fallback<S> {
    fn owing_keys(&self) -> usize {
        self.stats().owing_keys
    }

    fn leases(&self) -> LeaseStats {
        self.store().leases()
    }

    async fn close(&self) {
        self.store().close().await;
    }
}

/// A store that is not asked while it is away nor about what it denied, and that is answered for.
pub type Guarded = Fallback<DenyCache<Breaker<SimStore>>>;

/// Puts a [`Guarded`] store together, as the daemon does.
pub fn guarded(setup: &WorldSetup, parts: NodeParts) -> io::Result<Guarded> {
    let NodeParts { store, clock, background, .. } = parts;
    let store = DenyCache::repeatable(Breaker::on(store, clock.clone(), &background));
    answered_for(setup, store, clock, &background)
}

/// The same, with units taken ahead.
pub type Leased = Fallback<Lease<Shards<DenyCache<Breaker<SimStore>>>>>;

/// Puts a [`Leased`] store together, as the daemon does.
pub fn leased(setup: &WorldSetup, parts: NodeParts) -> io::Result<Leased> {
    let NodeParts { store, clock, background, .. } = parts;
    let store = DenyCache::repeatable(Breaker::on(store, clock.clone(), &background));
    let store = Lease::repeatable(Shards::seeded(store, setup.seed.0), clock.clone());
    answered_for(setup, store, clock, &background)
}

/// Answers for a store as the world's policy says.
pub fn answered_for<S: NodeStack>(
    setup: &WorldSetup,
    store: S,
    clock: Clock,
    background: &Background,
) -> io::Result<Fallback<S>> {
    let nodes = u32::try_from(setup.nodes).ok().and_then(NonZeroU32::new);
    let nodes = nodes.unwrap_or(NonZeroU32::MIN);
    let config = FallbackConfig { nodes: nodes.into(), otherwise: setup.on_store_failure };
    Fallback::repeatable(store, config, clock, background)
}
