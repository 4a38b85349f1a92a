//! The production stack: Redis, and every layer in front of it, in one call.
//!
//! # Layer order
//! A request passes the layers from top to bottom; ADR 17 gives the reasons.
//!
//! | layer | decides without the store |
//! |---|---|
//! | [`Local`] | limits of this node: `local:` pre-limits and demoted keys |
//! | [`Fallback`] | everything, while the store is unavailable |
//! | [`Lease`] | hot keys of `tier: leased`, from units taken in advance |
//! | [`Shards`] | nothing; divides a key of `shards: n` |
//! | [`DenyCache`] | denials that the store would repeat |
//! | [`Breaker`] | nothing; sends no request to a server that does not answer |

use std::io;

use tidegate_core::{Decision, Explanation, Span, Timestamp};

use super::background::Background;
use super::breaker::{Breaker, CircuitReport};
use super::deny_cache::DenyCache;
use super::fallback::{Fallback, FallbackConfig, FallbackStats};
use super::lease::{Lease, LeaseStats};
use super::local::{Local, LocalStats};
use super::shards::{ShardStats, Shards};
use super::{Charge, DecisionSource, Nodes, OnStoreFailure, Store, StoreError};
use crate::clock::Clock;

/// The layers below [`Fallback`].
type Leased<S> = Lease<Shards<DenyCache<Breaker<S>>>>;

/// The options of every layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SharedOptions {
    /// Number of nodes that share the limits; by default the number in Redis's registry. While the store is
    /// unavailable, each node enforces 1.5 × limit / nodes.
    pub nodes: Nodes,
    /// What a limit does while the store is unavailable, unless its policy says.
    pub on_store_failure: OnStoreFailure,
    /// How long a denial is repeated without asking the store, unless the limit's policy says.
    pub refund_staleness: Span,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
            nodes: Nodes::auto(),
            on_store_failure: OnStoreFailure::default(),
            refund_staleness: DenyCache::<Breaker<super::memory::MemoryStore>>::REFUND_STALENESS,
        }
    }
}

impl SharedOptions {
    /// The same for so many nodes.
    #[must_use]
    pub fn nodes(self, nodes: impl Into<Nodes>) -> Self {
        Self { nodes: nodes.into(), ..self }
    }

    /// The same, with this answer while the store is unavailable.
    #[must_use]
    pub fn on_store_failure(self, mode: OnStoreFailure) -> Self {
        Self { on_store_failure: mode, ..self }
    }

    fn fallback(&self) -> FallbackConfig {
        FallbackConfig { nodes: self.nodes.clone(), otherwise: self.on_store_failure }
    }
}

/// A shared store with every layer that the daemon has. It always answers, holds back requests to a server
/// that is unavailable, repeats denials, and leases units where a policy says `tier: leased`.
#[derive(Debug)]
pub struct SharedStore<S>(Local<Fallback<Leased<S>>>);

#[cfg(feature = "redis")]
impl SharedStore<super::redis::RedisStore> {
    /// Connects to Redis and builds the stack. Probes, debits and connections run in the tokio runtime that
    /// this is called in.
    ///
    /// ```no_run
    /// use tidegate::store::redis::RedisConfig;
    /// use tidegate::store::shared::{SharedOptions, SharedStore};
    /// use tidegate::{Clock, Limit, Limiter, Rate};
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = RedisConfig::new("redis://127.0.0.1:6379")?;
    /// let store = SharedStore::connect(config, SharedOptions::default(), Clock::default()).await?;
    /// let limit = Limit::token_bucket(Rate::per_minute(100)).build()?;
    /// let limiter = Limiter::builder().limit("per user", limit).shared(store)?;
    /// let verdict = limiter.check("user:17").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`RedisStore::connect`](super::redis::RedisStore::connect). With
    /// [`start_without_server`](super::redis::RedisConfig::start_without_server) an unavailable server is no
    /// error: its circuit is open from the start.
    pub async fn connect(
        config: super::redis::RedisConfig,
        mut options: SharedOptions,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let store = super::redis::RedisStore::connect(config).await?;
        let fault = store.fault();
        if options.nodes.is_auto() {
            options.nodes = store.nodes();
        }
        let started = Self::start(store, &options, clock, &Background::tokio());
        let store =
            started.map_err(|error| StoreError::unavailable(format!("cannot start: {error}")))?;
        if let Some(fault) = &fault {
            store.open_circuits();
            store.fallback().record_failure(fault);
        }
        Ok(store)
    }

    /// Opens the circuits, so that no request has to find out that the servers are unavailable.
    fn open_circuits(&self) {
        use tidegate_core::{Limit, Op, Rate};

        use crate::key::{Key, Scope};

        // Limits of a second or less may have a server of their own.
        for rate in [Rate::per_minute(1), Rate::per_second(1)] {
            let Ok(limit) = Limit::token_bucket(rate).build() else { continue };
            let key = Key::new(Scope::new("start", &limit), b"start");
            self.breaker().open(&Charge::new(key, &limit, Op::Read(0)));
        }
    }
}

impl<S: Store + 'static> SharedStore<S> {
    /// Builds the stack in front of `store`.
    ///
    /// # Errors
    /// If the system refuses to reserve address space.
    pub fn start(
        store: S,
        options: &SharedOptions,
        clock: Clock,
        background: &Background,
    ) -> io::Result<Self> {
        let store = Breaker::on(store, clock.clone(), background);
        let store = DenyCache::new(store).holding().refund_staleness(options.refund_staleness);
        let store = Lease::new(Shards::new(store), clock.clone());
        let store = Fallback::start_on(store, options.fallback(), clock.clone(), background)?;
        Local::new(store, clock).map(Self)
    }

    /// The same for a simulation: every run with this seed is alike. Not for keys that clients choose.
    ///
    /// # Errors
    /// If the system refuses to reserve address space.
    pub fn repeatable(
        store: S,
        options: &SharedOptions,
        clock: Clock,
        (background, seed): (&Background, u64),
    ) -> io::Result<Self> {
        let store = Breaker::on(store, clock.clone(), background);
        let store =
            DenyCache::repeatable(store).holding().refund_staleness(options.refund_staleness);
        let store = Lease::repeatable(Shards::seeded(store, seed), clock.clone());
        let store = Fallback::repeatable(store, options.fallback(), clock.clone(), background)?;
        Local::new(store, clock).map(Self)
    }

    /// The store behind all layers.
    pub fn store(&self) -> &S {
        self.breaker().store()
    }

    /// Asks the store itself, without the layers that answer for it while it is unavailable.
    ///
    /// # Errors
    /// If the store gives no decision.
    pub async fn ask(&self, now: Timestamp, charge: &Charge<'_>) -> Result<Decision, StoreError> {
        let mut decisions = Vec::with_capacity(1);
        let charges = std::slice::from_ref(charge);
        self.leases().decide(now, charges, &mut decisions).await?;
        decisions.pop().ok_or(StoreError::Protocol("no decision".into()))
    }

    /// Returns leased units to the store. Call it on shutdown, when no more requests come.
    pub async fn return_leases(&self) {
        self.leases().give_back().await;
    }

    /// The state of each server that was ever unavailable, and of the first.
    pub fn circuits(&self) -> Vec<CircuitReport> {
        self.breaker().circuits()
    }

    /// The last failure of the store, and when it was.
    pub fn failure(&self) -> Option<(Timestamp, StoreError)> {
        self.fallback().failure()
    }

    /// Records why the store is unavailable, for a failure that no request has met yet.
    pub fn record_failure(&self, error: &StoreError) {
        self.fallback().record_failure(error);
    }

    /// Number of nodes that share the limits.
    pub fn nodes(&self) -> &Nodes {
        self.fallback().nodes()
    }

    /// What the layers decided without the store.
    pub fn stats(&self) -> SharedStats {
        let cache = self.leases().store().store();
        SharedStats {
            local: self.0.stats(),
            fallback: self.fallback().stats(),
            leases: self.leases().stats(),
            shards: self.leases().store().stats(),
            deny_cache_hits: cache.hits(),
            deny_cache_entries: cache.entries(),
        }
    }

    const fn fallback(&self) -> &Fallback<Leased<S>> {
        self.0.store()
    }

    fn leases(&self) -> &Leased<S> {
        self.fallback().store()
    }

    fn breaker(&self) -> &Breaker<S> {
        self.leases().store().store().store()
    }
}

/// What the layers of a [`SharedStore`] decided without the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// On this node alone.
    pub local: LocalStats,
    /// While the store was unavailable.
    pub fallback: FallbackStats,
    /// From leased units.
    pub leases: LeaseStats,
    /// By a second shard.
    pub shards: ShardStats,
    /// Denials that were repeated.
    pub deny_cache_hits: u64,
    /// Denials that are remembered, those included that have ended and were not replaced yet.
    pub deny_cache_entries: usize,
}

/// Hands everything to the outermost layer.
impl<S: Store + 'static> Store for SharedStore<S> {
    fn decide(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<DecisionSource, StoreError>> + Send {
        self.0.decide(now, charges, decisions)
    }

    fn decide_each(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Decision>,
    ) -> impl Future<Output = Result<DecisionSource, StoreError>> + Send {
        self.0.decide_each(now, charges, decisions)
    }

    fn try_decide_locally(&self, now: Timestamp, charge: &Charge<'_>) -> Option<Decision> {
        self.0.try_decide_locally(now, charge)
    }

    fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> impl Future<Output = Result<Explanation, StoreError>> + Send {
        self.0.explain(now, charge)
    }

    fn endpoint(&self, charge: &Charge<'_>) -> usize {
        self.0.endpoint(charge)
    }

    fn ready(&self, now: Timestamp, charge: &Charge<'_>) -> Result<(), StoreError> {
        self.0.ready(now, charge)
    }

    fn limits_changed(&self) {
        self.0.limits_changed();
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.0.clock(local)
    }
}
