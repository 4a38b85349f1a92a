//! The production stack: a shared store, and every layer in front of it, in one call.
//!
//! ```no_run
//! # #[cfg(feature = "redis")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tidegate::store::redis::RedisConfig;
//! use tidegate::store::shared::{SharedOptions, SharedStore};
//! use tidegate::{Clock, Limit, Limiter, Rate};
//!
//! let config = RedisConfig::new("redis://127.0.0.1:6379")?;
//! let store = SharedStore::connect(config, SharedOptions::default(), Clock::default()).await?;
//! let limit = Limit::token_bucket(Rate::per_minute(100)).build()?;
//! let limiter = Limiter::builder().limit("per user", limit).shared(store)?;
//! let verdict = limiter.check("user:17").await?;
//! # Ok(()) }
//! ```
//!
//! A batch passes the layers in the order of the fields of `Layers`. Each decides the charges that it can and
//! passes the others on. ADR 17 gives the reasons for the order.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::slice;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::{Decision, Explanation, Op, Span, Timestamp};

use super::background::Background;
use super::circuits::{CircuitReport, Circuits, Drill, Endpoints};
use super::deny_cache::{DenyCache, REFUND_STALENESS};
use super::fallback::{Fallback, FallbackStats, LOCAL_BYTES, is_own_lease, keep_debiting};
use super::lease::{LeaseStats, Leases};
use super::local::{BYTES, LocalLimits, LocalStats, is_local};
use super::memory::MemoryStore;
use super::shards::ShardTurns;
use super::{
    Batch, Charge, DecisionSource, Nodes, OnStoreFailure, SeenRevision, Store, StoreError,
};
use crate::clock::Clock;
use crate::key::Hashing;

/// The options of every layer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SharedOptions {
    /// Number of nodes that share the limits; by default the number in Redis's registry. While the store is
    /// unavailable, each node enforces 1.5 × limit / nodes.
    pub nodes: Nodes,
    /// The default of `on_store_failure` for limits whose policy does not set it.
    pub on_store_failure: OnStoreFailure,
    /// The default of `refund_staleness` for limits whose policy does not set it: how long a denial
    /// is repeated without asking the store.
    pub refund_staleness: Duration,
    /// Whether a bucket's denial is repeated for its [hold](super::deny_cache::HOLD). On by default.
    pub hold_denials: bool,
    /// Which server of the store decides a charge; [`SharedStore::connect`] asks Redis.
    pub endpoints: Endpoints,
}

impl Default for SharedOptions {
    fn default() -> Self {
        Self {
            nodes: Nodes::auto(),
            on_store_failure: OnStoreFailure::default(),
            refund_staleness: REFUND_STALENESS.into(),
            hold_denials: true,
            endpoints: Endpoints::default(),
        }
    }
}

impl SharedOptions {
    /// Sets the number of nodes.
    #[must_use]
    pub fn nodes(self, nodes: impl Into<Nodes>) -> Self {
        Self { nodes: nodes.into(), ..self }
    }

    /// Sets the default answer while the store is unavailable.
    #[must_use]
    pub fn on_store_failure(self, mode: OnStoreFailure) -> Self {
        Self { on_store_failure: mode, ..self }
    }

    /// Sets the default for how long a denial is repeated.
    #[must_use]
    pub fn refund_staleness(self, longest: impl Into<Duration>) -> Self {
        Self { refund_staleness: longest.into(), ..self }
    }

    /// Enables or disables held denials.
    #[must_use]
    #[doc(hidden)]
    pub fn hold_denials(self, hold_denials: bool) -> Self {
        Self { hold_denials, ..self }
    }

    /// Sets which server of the store decides a charge.
    #[must_use]
    #[doc(hidden)]
    pub fn endpoints(self, endpoints: Endpoints) -> Self {
        Self { endpoints, ..self }
    }
}

/// A shared store with every layer that the daemon has. It decides takes and reads even while the
/// store is unavailable, sends no requests to an unavailable server, repeats denials, and leases
/// units where a policy says `tier: leased`.
#[derive(Debug)]
pub struct SharedStore<S>(pub(super) Arc<Layers<S>>);

/// The layers and what they share. Each layer's module adds the methods that decide.
#[derive(Debug)]
pub(super) struct Layers<S> {
    pub(super) store: S,
    pub(super) clock: Clock,
    pub(super) background: Background,
    /// For background work.
    pub(super) this: Weak<Self>,
    seen: SeenRevision,
    pub(super) local: LocalLimits,
    pub(super) fallback: Fallback,
    pub(super) leases: Leases,
    pub(super) shards: ShardTurns,
    pub(super) denials: DenyCache,
    pub(super) endpoints: Endpoints,
    pub(super) circuits: Circuits,
    pub(super) drill: Drill,
}

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
        options.endpoints = store.endpoints();
        if options.nodes.is_auto() {
            options.nodes = store.nodes();
        }
        let started = Self::start(store, &options, clock, &Background::tokio());
        let store =
            started.map_err(|error| StoreError::unavailable(format!("cannot start: {error}")))?;
        if let Some(fault) = &fault {
            store.open_circuits();
            store.record_failure(fault);
        }
        Ok(store)
    }

    /// Opens the circuits, so that the first requests do not wait for servers that are known to be
    /// unavailable.
    fn open_circuits(&self) {
        use tidegate_core::{Limit, Rate};

        use crate::key::{Key, Scope};

        // Limits of a second or less may have a server of their own.
        for rate in [Rate::per_minute(1), Rate::per_second(1)] {
            let Ok(limit) = Limit::token_bucket(rate).build() else { continue };
            let key = Key::new(Scope::new("start", &limit), b"start");
            self.0.open_circuit(&Charge::new(key, &limit, Op::Read(0)));
        }
    }
}

impl<S: Store + 'static> SharedStore<S> {
    /// Builds the stack in front of `store`.
    ///
    /// # Errors
    /// If the system refuses to reserve address space.
    #[doc(hidden)]
    pub fn start(
        store: S,
        options: &SharedOptions,
        clock: Clock,
        background: &Background,
    ) -> io::Result<Self> {
        Self::build(store, options, clock, (background, None))
    }

    /// Like [`SharedStore::start`], for a simulation: every run with this seed is the same. Not for
    /// keys that clients choose.
    ///
    /// # Errors
    /// If the system refuses to reserve address space.
    #[doc(hidden)]
    pub fn repeatable(
        store: S,
        options: &SharedOptions,
        clock: Clock,
        (background, seed): (&Background, u64),
    ) -> io::Result<Self> {
        Self::build(store, options, clock, (background, Some(seed)))
    }

    fn build(
        store: S,
        options: &SharedOptions,
        clock: Clock,
        (background, seed): (&Background, Option<u64>),
    ) -> io::Result<Self> {
        let is_small = seed.is_some();
        let shares = match is_small {
            true => MemoryStore::repeatable(LOCAL_BYTES)?,
            false => MemoryStore::new(LOCAL_BYTES, Hashing::Fast)?,
        };
        let local = MemoryStore::new(BYTES, Hashing::Fast)?.with_clock(clock.clone());
        let SharedOptions { nodes, on_store_failure, refund_staleness, hold_denials, endpoints } =
            options.clone();
        let layers = Arc::new_cyclic(|this| Layers {
            store,
            clock,
            background: background.clone(),
            this: this.clone(),
            seen: SeenRevision::default(),
            local: LocalLimits::new(local),
            fallback: Fallback::new(nodes, on_store_failure, shares),
            leases: Leases::new(is_small),
            shards: ShardTurns::new(seed.unwrap_or_else(|| RandomState::new().hash_one(1_u64))),
            denials: DenyCache::new(refund_staleness.into(), hold_denials, is_small),
            endpoints,
            circuits: Circuits::default(),
            drill: Drill::default(),
        });
        background.spawn(keep_debiting(Arc::downgrade(&layers), background.clone()));
        Ok(Self(layers))
    }

    /// The store behind all layers.
    #[doc(hidden)]
    pub fn store(&self) -> &S {
        &self.0.store
    }

    /// Asks the store, without the layers that answer while it is unavailable.
    ///
    /// # Errors
    /// If the store gives no decision.
    #[doc(hidden)]
    pub async fn ask(&self, now: Timestamp, charge: &Charge<'_>) -> Result<Decision, StoreError> {
        let mut decisions = Vec::with_capacity(1);
        self.0.decide_leased(now, Batch::one(charge), &mut decisions).await?;
        decisions.pop().ok_or(StoreError::Protocol("no decision".into()))
    }

    /// Returns leased units to the store. Call it on shutdown, when no more requests come.
    pub async fn return_leases(&self) {
        self.0.return_leases().await;
    }

    /// The state of each server that was ever unavailable, and of the first.
    #[doc(hidden)]
    pub fn circuits(&self) -> Vec<CircuitReport> {
        self.0.circuits.reports(self.0.clock.now())
    }

    /// Opens the circuit of the server that decides `charge`, as if it had stopped answering. A probe closes
    /// it as soon as the server answers.
    #[doc(hidden)]
    pub fn open_circuit(&self, charge: &Charge<'_>) {
        self.0.open_circuit(charge);
    }

    /// Starts an outage drill: for this time, at most [`MAX_DRILL`](super::circuits::MAX_DRILL), every server
    /// counts as unavailable. A drill replaces the one under way, and ends by itself.
    #[doc(hidden)]
    pub fn start_drill(&self, length: Span) {
        self.0.drill.start(self.0.clock.now(), length);
    }

    /// Ends the drill; false if there is none.
    #[doc(hidden)]
    pub fn end_drill(&self) -> bool {
        self.0.drill.end(self.0.clock.now())
    }

    /// How long the drill still takes; `None` without one.
    #[doc(hidden)]
    pub fn drill(&self) -> Option<Span> {
        self.0.drill.left(&self.0.clock)
    }

    /// The last failure of the store, and when it was.
    #[doc(hidden)]
    pub fn failure(&self) -> Option<(Timestamp, StoreError)> {
        self.0.fallback.failure()
    }

    /// Records why the store is unavailable, for a failure that no request has met yet.
    #[doc(hidden)]
    pub fn record_failure(&self, error: &StoreError) {
        self.0.fallback.record_failure(self.0.clock.now(), error);
    }

    /// Number of nodes that share the limits.
    #[doc(hidden)]
    pub fn nodes(&self) -> &Nodes {
        self.0.fallback.nodes()
    }

    /// Counters of decisions that the layers made without the store.
    #[doc(hidden)]
    pub fn stats(&self) -> SharedStats {
        let layers = &self.0;
        SharedStats {
            local: layers.local.stats(),
            fallback: layers.fallback.stats(),
            leases: layers.leases.stats(layers.clock.now()),
            deny_cache_hits: layers.denials.hits(),
            deny_cache_entries: layers.denials.entries(),
        }
    }
}

/// Counters of decisions that the layers of a [`SharedStore`] made without the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct SharedStats {
    /// On this node alone.
    pub local: LocalStats,
    /// While the store was unavailable.
    pub fallback: FallbackStats,
    /// From leased units.
    pub leases: LeaseStats,
    /// Denials that were repeated.
    pub deny_cache_hits: u64,
    /// Denials in the cache, including expired ones that were not replaced yet.
    pub deny_cache_entries: usize,
}

impl<S: Store + 'static> Layers<S> {
    /// The hash of a charge's key, for the tables of this node.
    #[inline(always)]
    pub(super) fn print(&self, charge: &Charge<'_>) -> u64 {
        charge.print.unwrap_or_else(|| self.fallback.shares.print(charge.key))
    }

    /// The store's time; wall time until the store's clock is known. An unknown clock returns
    /// `local`.
    pub(super) fn time(&self, local: Timestamp) -> Timestamp {
        match self.store.clock(local) {
            unknown if unknown == local => self.clock.wall(local),
            known => known,
        }
    }

    /// The decision of a single charge that needs neither waiting nor the store: from leased units, or a denial
    /// that the store would repeat.
    #[inline]
    pub(super) fn decide_at_once(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
        print: u64,
    ) -> Option<Decision> {
        let Op::Take(1..) = charge.op else { return None };
        if self.leases.has_budget(charge, print) {
            return self.leases.answer(now, charge, print);
        }
        let may_be = charge.options.shards.is_none() && self.denials.is_cached(charge);
        if may_be { self.denials.denial(now, charge, print) } else { None }
    }

    /// Drops denials and leased units of old limits.
    #[cold]
    fn drop_old_numbers(&self) {
        self.denials.clear();
        self.leases.clear();
    }
}

impl<S: Store + 'static> Store for SharedStore<S> {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        let layers = &*self.0;
        if layers.seen.is_news(batch.revision) {
            layers.drop_old_numbers();
        }
        let charge = match batch.charges {
            [charge] if !is_local(charge) && !is_own_lease(charge) => charge,
            // Boxed, because few requests need it and the future of a single charge should be
            // small.
            charges if charges.iter().any(is_local) => {
                return Box::pin(layers.decide_local(now, batch, decisions)).await;
            }
            _ => return Box::pin(layers.decide_or_fall_back(now, batch, decisions)).await,
        };
        let print = layers.fallback.shares.print(charge.key);
        if let Some(decision) = layers.decide_at_once(now, charge, print) {
            decisions.push(decision);
            return Ok(DecisionSource::Store);
        }
        let charge = Charge { print: Some(print), ..*charge };
        let batch = batch.of(slice::from_ref(&charge));
        // One charge cannot be divided: if its server is unavailable, sending fails.
        match layers.ask(now, batch, decisions).await {
            Err(error) => layers.decide_alone(layers.later(now), batch, &error, decisions),
            answered => answered,
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        match is_local(charge) {
            true => Ok(self.0.local.memory.explain(now, charge.key, charge.limit)),
            false => self.0.explain_sharded(now, charge).await,
        }
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.0.time(local)
    }
}
