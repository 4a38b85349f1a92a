//! The store of the daemon: the memory of this process, or servers that several daemons share.

use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{self, SharedOptions};
use tidegate::store::{Batch, Charge, DecisionSource, Store, StoreError};
use tidegate::{Clock, Decision, Explanation, Timestamp};
use tokio::runtime;
use tokio::sync::oneshot;

use crate::runtime::turns::in_turn;

/// Redis, and the layers in front of it.
pub(crate) type SharedStore = shared::SharedStore<RedisStore>;

/// One of the stores.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in a process, and memory is the quick path"
)]
#[derive(Debug)]
pub(crate) enum AnyStore {
    /// State in this process; answers at once.
    Memory(MemoryStore),
    /// State in Redis or Valkey, behind all layers.
    Redis(SharedStore),
}

impl Store for AnyStore {
    async fn decide(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        match self {
            Self::Memory(store) => Store::decide(store, now, batch, decisions).await,
            Self::Redis(store) => store.decide(now, batch, decisions).await,
        }
    }

    async fn explain(
        &self,
        now: Timestamp,
        charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        match self {
            Self::Memory(store) => {
                // Copying a long log takes a while, and one request may explain many logs.
                in_turn(Store::explain(store, now, charge)).await
            }
            Self::Redis(store) => store.explain(now, charge).await,
        }
    }

    fn clock(&self, local: Timestamp) -> Timestamp {
        match self {
            Self::Memory(store) => store.clock(local),
            Self::Redis(store) => store.clock(local),
        }
    }

    fn is_local(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}

/// The thread that owns the connections to the servers, until this value is dropped. All workers
/// use this thread, so that concurrent requests share commands.
#[derive(Debug)]
pub(crate) struct StoreThread {
    stop: Option<oneshot::Sender<()>>,
    // A mutex only makes the type `Sync`; only `drop` takes the handle.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StoreThread {
    /// Starts the thread and connects. Probes and bookings run on the thread as well.
    pub(crate) fn connect(
        config: RedisConfig,
        options: SharedOptions,
        clock: Clock,
    ) -> Result<(Self, SharedStore), StoreError> {
        let failed =
            |why: std::io::Error| StoreError::Unavailable(format!("cannot start: {why}").into());
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(failed)?;
        let store = runtime.block_on(SharedStore::connect(config, options, clock))?;
        let (stop, stopped) = oneshot::channel();
        let thread = thread::Builder::new().name("tidegate-store".into()).spawn(move || {
            // Ends when the sender is dropped, also by a panic.
            let _ = runtime.block_on(stopped);
        });
        let thread = Mutex::new(Some(thread.map_err(failed)?));
        Ok((Self { stop: Some(stop), thread }, store))
    }
}

impl Drop for StoreThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        let thread = self.thread.get_mut().map(Option::take);
        if let Ok(Some(thread)) = thread {
            // If the thread panicked, the panic has been logged already.
            let _ = thread.join();
        }
    }
}
