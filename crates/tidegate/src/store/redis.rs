//! The Redis store: shares state between nodes, in Redis or Valkey.
//!
//! ```no_run
//! use tidegate::store::redis::{RedisConfig, RedisStore};
//! use tidegate::{Limit, Limiter, Rate};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect(RedisConfig::new("redis://127.0.0.1:6379")?).await?;
//! let limit = Limit::token_bucket(Rate::per_minute(100)).build()?;
//! let limiter = Limiter::builder().limit("per user", limit).shared(store)?;
//! let verdict = limiter.check("user:17").await?;
//! # Ok(()) }
//! ```
//!
//! # How
//! Each decision is one script call, so it is atomic. The script reads the server's clock, decides
//! whether to admit, writes the state with its time to live, and returns the state it decided on.
//! The library derives the decision from that state with the same code as the memory store.
//!
//! # Promise
//! Each limit keeps its documented promise over all nodes together. After a failover that lost
//! writes, at most the lost units are admitted in addition: `min(capacity, units lost)` per key.
//! The limits of one request are all or nothing if their keys share a tag (on a single server:
//! always). Otherwise they are reserved one after the other and returned if a later one denies:
//! this may deny too much for an instant, but never admits too much.
//!
//! # Errors
//! A request without a decision gets a [`StoreError`], which says whether the store is unavailable
//! ([`StoreError::is_outage`]) or misconfigured. A server that sends nothing while this process
//! listens is unavailable after the [deadline](RedisConfig::deadline). Time in which this process
//! did not run, and time in its own queue, do not count.

mod config;
mod failure;
mod inspection;
mod registry;
mod routing;
mod runtime;
mod self_test;
mod settling;
mod skew;
mod wire;

use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::{Algorithm, Decision, Explanation, Timestamp};
use tokio::task::JoinSet;

use self::inspection::Inspections;
use self::registry::Registry;
use self::routing::route::{Route, Routes};
use self::settling::{Settling, Waits};
use self::skew::Skew;
use self::wire::call::{Answered, Decided, Item};
use self::wire::name::Namer;
use self::wire::script_args::{ScriptArgs, Work};
use super::circuits::Endpoints;
use super::{
    Batch, Charge, DecisionSource, MAX_TOGETHER, Nodes, Revisions, SeenRevision, Store, StoreError,
};
use crate::clock::Clock;

pub use self::config::RedisConfig;
#[doc(hidden)]
pub use self::inspection::{Condition, Finding};
#[doc(hidden)]
pub use self::registry::RegistryReport;
#[doc(hidden)]
pub use self::wire::entry::Node;
#[doc(hidden)]
pub use self::wire::script::TimeSource;

/// A store in Redis or Valkey.
#[derive(Debug)]
pub struct RedisStore {
    config: RedisConfig,
    namer: Namer,
    routes: Arc<Routes>,
    settling: Arc<Settling>,
    seen: SeenRevision,
    /// `None` if this node does not register.
    registry: Option<Arc<Registry>>,
    /// The registration task, which ends with the store.
    _registering: JoinSet<()>,
    skew: Skew,
    corrupt: AtomicU64,
    inspections: Arc<Inspections>,
    /// Why the last self-test failed.
    fault: Mutex<Option<StoreError>>,
}

/// The measured round trip of a server, and its deadline.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The mean round trip; `None` before one was measured.
    pub round_trip: Option<Duration>,
    /// How long a request waits for a server that sends nothing.
    pub deadline: Duration,
}

impl RedisStore {
    /// Connects and runs a self-test, so that faults of the servers or the settings are found here
    /// and not by the first request.
    pub async fn connect(config: RedisConfig) -> Result<Self, StoreError> {
        Self::start(config).await.map_err(StoreError::at_start)
    }

    async fn start(mut config: RedisConfig) -> Result<Self, StoreError> {
        config.check()?;
        runtime::check()?;
        // A clone of the settings may have started another store.
        config.started = Arc::default();
        // Agreement is read twice, so that nodes that start together have registered.
        let agreed = 2 * config.register_every;
        let settling = Arc::new(Settling::start(Waits { at_most: config.settles_after, agreed }));
        let routes = Arc::new(Routes::start(&config, settling.flag()).await?);
        let names = (&*config.namespace, config.node_name.as_deref());
        let registry =
            config.registers.then(|| Registry::new(names, config.register_every, &settling));
        let namer = Namer::new(&config.namespace, config.hashes_texts);
        let (seen, skew, corrupt, inspections, fault) = Default::default();
        let _registering = JoinSet::new();
        let mut store = Self {
            config,
            namer,
            routes,
            settling,
            seen,
            registry,
            _registering,
            skew,
            corrupt,
            inspections,
            fault,
        };
        match store.self_test().await {
            Err(error) if error.is_outage() && store.config.starts_alone => {}
            tested => drop(tested?),
        }
        store.config.started.store(true, Ordering::Relaxed);
        if let Some(registry) = &store.registry {
            let keeping = Registry::keep(Arc::clone(registry), Arc::downgrade(&store.routes));
            store._registering.spawn(keeping);
        }
        Ok(store)
    }

    /// Runs the self-test of [`RedisStore::connect`] again; for a store that was [started without
    /// its servers](RedisConfig::start_without_server), once they answer.
    #[doc(hidden)]
    pub async fn self_test(&self) -> Result<Vec<Finding>, StoreError> {
        let tested = self_test::run(self, Clock::default().now()).await;
        let fault = tested.as_ref().err().cloned();
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
        tested
    }

    /// Conditions of the servers that weaken limits, as of the last
    /// [self-test](RedisStore::self_test) or [inspection](RedisStore::inspect).
    #[doc(hidden)]
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.inspections.findings();
        findings.extend(self.registry.as_ref().and_then(|it| it.finding(&self.routes)));
        findings
    }

    /// The number of nodes that share this store, this one included: the largest of the last minute. It is
    /// kept while the store is unavailable, and is 1 before the registry was first read.
    #[doc(hidden)]
    pub fn nodes(&self) -> Nodes {
        self.registry.as_ref().map_or_else(Nodes::auto, |registry| registry.nodes())
    }

    /// Which server decides a charge. Its number is that of [`RedisStore::address`] and
    /// [`RedisStore::timing`].
    #[doc(hidden)]
    pub fn endpoints(&self) -> Endpoints {
        let (routes, namer) = (Arc::clone(&self.routes), self.namer.clone());
        Endpoints::by(move |charge| routes.endpoint(&namer, charge))
    }

    /// Where the registry reads this node's policy revisions; `PolicyLimiter::publish_revisions`
    /// sets them.
    #[doc(hidden)]
    pub fn revisions(&self) -> Revisions {
        self.registry.as_ref().map_or_else(Revisions::default, |registry| registry.revisions())
    }

    /// The live nodes, as of the last read of the registry.
    #[doc(hidden)]
    pub fn registry(&self) -> RegistryReport {
        self.registry.as_ref().map_or_else(RegistryReport::default, |registry| registry.report())
    }

    /// Whether states that are impossible under this node's numbers are currently repaired.
    #[doc(hidden)]
    pub fn repairs(&self) -> bool {
        self.settling.flag().load(Ordering::Relaxed)
    }

    /// Registers other limits at once, and repairs no state until the other nodes have them.
    /// Without this call, the first batch with a new [revision](Batch::revision) has the same
    /// effect.
    #[doc(hidden)]
    pub fn limits_changed(&self) {
        self.settling.begin();
    }

    /// Inspects the servers again, so that [`RedisStore::findings`] shows conditions that have
    /// begun or ended since the start. A server that does not answer keeps its findings.
    ///
    /// # Errors
    /// The fault of one of the servers; the others have been inspected.
    #[doc(hidden)]
    pub async fn inspect(&self) -> Result<(), StoreError> {
        self.refresh(false).await
    }

    /// Inspects the servers in the runtime that reads their connections: only there can a silent
    /// server be told from a busy thread.
    async fn refresh(&self, stops: bool) -> Result<(), StoreError> {
        let (inspections, server_queues) =
            (Arc::clone(&self.inspections), self.routes.server_queues());
        let looking = async move { inspections.refresh(server_queues, stops).await };
        let looked = self.settling.runtime().spawn(looking).await;
        looked.unwrap_or_else(|_| Err(StoreError::unavailable("shutting down")))
    }

    /// Whether any server has been inspected. False if none has answered since the start.
    #[doc(hidden)]
    pub fn is_inspected(&self) -> bool {
        !self.inspections.is_empty()
    }

    /// Why the last self-test failed; `None` if the servers can be used.
    #[doc(hidden)]
    pub fn fault(&self) -> Option<StoreError> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The measured round trip and the deadline of the server with this [`Endpoints`] number;
    /// `None` if there is no such server.
    #[doc(hidden)]
    pub fn timing(&self, endpoint: usize) -> Option<Timing> {
        let server_queue = self.routes.server_queue(endpoint)?;
        Some(Timing {
            round_trip: server_queue.connection.round_trip(),
            deadline: server_queue.connection.deadline(),
        })
    }

    /// Number of states read that Tidegate cannot have written: a key of another type, or values
    /// that are no numbers. Such a key counts as absent, and the next charge on it replaces its
    /// value.
    #[doc(hidden)]
    pub fn corrupt_states(&self) -> u64 {
        self.corrupt.load(Ordering::Relaxed)
    }

    /// Records the time of the server's decision and the number of corrupt states.
    fn learn(&self, now: Timestamp, decided: &Decided) {
        self.skew.learn(now, decided.at);
        if decided.corrupt > 0 {
            self.corrupt.fetch_add(decided.corrupt, Ordering::Relaxed);
        }
    }

    /// The address of the server with this [`Endpoints`] number; `None` if there is no such
    /// server.
    #[doc(hidden)]
    pub fn address(&self, endpoint: usize) -> Option<String> {
        self.routes.address(endpoint)
    }

    /// Converts one charge to script arguments.
    fn item(&self, charge: &Charge<'_>) -> Item {
        let script_args = ScriptArgs {
            limit: *charge.limit,
            work: Work::Operate(charge.op),
            reserving: charge.reserving,
        };
        Item { name: self.namer.name(charge.key), script_args }
    }

    /// Sends charges of one slot and waits for their decisions.
    async fn ask(
        &self,
        now: Timestamp,
        route: Route,
        items: Vec<Item>,
    ) -> Result<Answered, StoreError> {
        let answer = self.routes.submit(route, now, items);
        answer.await.unwrap_or_else(|_| Err(StoreError::unavailable("the connection was given up")))
    }

    async fn ask_decisions(
        &self,
        now: Timestamp,
        route: Route,
        items: Vec<Item>,
    ) -> Result<Decided, StoreError> {
        match self.ask(now, route, items).await? {
            Answered::Decisions(decided) => {
                self.learn(now, &decided);
                Ok(decided)
            }
            Answered::State(..) => {
                Err(StoreError::protocol("the reply has a state instead of decisions"))
            }
        }
    }

    async fn decide_one(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Decision, StoreError> {
        let item = self.item(charge);
        let route = self.routes.of(&item);
        let mut decided = self.ask_decisions(now, route, vec![item]).await?;
        decided.report_denials(slice::from_ref(charge).iter());
        decided.decisions.first().copied().ok_or_else(|| StoreError::protocol("no decision"))
    }

    /// Sends all charges at once; each is decided separately, in order where they share a route.
    async fn carry_out(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
    ) -> Result<Vec<Decision>, StoreError> {
        let items = charges.iter().map(|charge| self.item(charge));
        let mut decisions = Vec::with_capacity(charges.len());
        for (answer, charge) in self.routes.submit_each(now, items).into_iter().zip(charges) {
            match answer.await {
                Ok(Ok(Answered::Decisions(mut decided))) => {
                    self.learn(now, &decided);
                    decided.report_denials(slice::from_ref(charge).iter());
                    decisions.extend(decided.decisions);
                }
                Ok(Ok(Answered::State(..))) => return Err(StoreError::protocol("a state")),
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(StoreError::unavailable("the connection was given up")),
            }
        }
        Ok(decisions)
    }
}

impl Store for RedisStore {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        if self.seen.is_news(batch.revision) {
            self.settling.begin();
        }
        if let [charge] = batch.charges {
            decisions.push(self.decide_one(now, charge).await?);
        } else if batch.is_all_or_nothing() {
            let count = batch.charges.len();
            assert!(count <= MAX_TOGETHER, "{count} charges together");
            decisions.extend(self.decide_together(now, batch.charges).await?);
        } else {
            decisions.extend(self.carry_out(now, batch.charges).await?);
        }
        Ok(DecisionSource::Store)
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        let script_args = ScriptArgs { limit: *charge.limit, work: Work::Dump, reserving: None };
        let item = Item { name: self.namer.name(charge.key), script_args };
        let route = self.routes.of(&item);
        match self.ask(now, route, vec![item]).await? {
            Answered::State(state, now) => Ok(charge.limit.explain(&state, now)),
            Answered::Decisions(..) => {
                Err(StoreError::protocol("the reply has decisions instead of a state"))
            }
        }
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        self.skew.apply(local)
    }
}
