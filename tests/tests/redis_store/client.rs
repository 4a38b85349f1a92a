//! A store under test and the runtime it lives in.

use std::time::Duration;

use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::{Batch, Charge, Store, StoreError};
use tidegate::{Decision, Key, Limit, Op, Rate, Scope, Span, Timestamp};
use tokio::runtime::{Builder, Runtime};

/// Long enough for a machine that builds at the same time.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// What a key has of every family.
pub(crate) const UNITS: u64 = 3;

/// Asks one store, from outside its runtime.
pub(crate) struct Client {
    pub(crate) runtime: Runtime,
    pub(crate) store: RedisStore,
}

impl Client {
    pub(crate) fn connect(config: RedisConfig) -> Result<Self, StoreError> {
        let runtime = runtime();
        let store = runtime.block_on(RedisStore::connect(config))?;
        Ok(Self { runtime, store })
    }

    /// Does one thing to one key.
    pub(crate) fn ask(&self, limit: &Limit, text: &str, op: Op) -> Result<Decision, StoreError> {
        self.runtime.block_on(ask(&self.store, limit, text, op))
    }

    /// One unit of a bucket.
    pub(crate) fn take(&self, text: &str) -> Result<Decision, StoreError> {
        self.ask(&limits()[0], text, Op::Take(1))
    }

    /// All of a key's budget and no more, in every family; what is given back can be had again.
    pub(crate) fn decides(&self, text: &str) {
        for limit in &limits() {
            let ask = |op| self.ask(limit, text, op).unwrap_or_else(|error| panic!("{error}"));
            let taken: Vec<Decision> = (0..UNITS).map(|_| ask(Op::Take(1))).collect();
            assert!(taken.iter().all(Decision::is_allowed), "{limit:?}: {taken:?}");
            assert!(!ask(Op::Take(1)).is_allowed(), "{limit:?}");
            ask(taken[0].lease.map_or(Op::Return(1), Op::Release));
            assert!(ask(Op::Take(1)).is_allowed(), "{limit:?}");
            assert!(!ask(Op::Take(1)).is_allowed(), "{limit:?}");
            ask(Op::Reset);
        }
    }
}

pub(crate) async fn ask(
    store: &RedisStore,
    limit: &Limit,
    text: &str,
    op: Op,
) -> Result<Decision, StoreError> {
    let key = Key::new(Scope::new("limit", limit), text.as_bytes());
    let mut decisions = Vec::new();
    store
        .decide(Timestamp::EPOCH, Batch::one(&Charge::new(key, limit, op)), &mut decisions)
        .await?;
    Ok(decisions[0])
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A deadline that a busy machine keeps.
pub(crate) fn config(url: &str) -> RedisConfig {
    RedisConfig::new(url).expect("a valid address").deadline(Duration::from_secs(2))
}

/// One limit of every family; none gives anything back while a test runs.
pub(crate) fn limits() -> [Limit; 5] {
    let rate = Rate::new(UNITS, Span::from_secs(365 * 86_400));
    let built = |builder: tidegate_core::Builder| builder.build().expect("valid numbers");
    [
        built(Limit::token_bucket(rate)),
        built(Limit::fixed_window(rate)),
        built(Limit::sliding_window(rate)),
        built(Limit::sliding_log(rate)),
        Limit::in_flight(UNITS, Span::from_secs(3_600)).expect("valid numbers"),
    ]
}
