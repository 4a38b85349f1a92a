//! What stands before Redis in a daemon, layer by layer (ADR 17).

use std::time::Duration;

use ::tidegate::Clock;
use ::tidegate::store::breaker::Breaker;
use ::tidegate::store::deny_cache::DenyCache;
use ::tidegate::store::fallback::{Fallback, FallbackConfig};
use ::tidegate::store::lease::Lease;
use ::tidegate::store::local::Local;
use ::tidegate::store::redis::{RedisConfig, RedisStore};
use ::tidegate::store::shards::Shards;

use crate::redis::contender::Trouble;

/// Nobody is to give up because the machine is busy.
const PATIENCE: Duration = Duration::from_secs(10);

/// All layers.
pub type Stack = Local<Fallback<Lease<Shards<DenyCache<Breaker<RedisStore>>>>>>;

/// The store in Redis by itself.
pub async fn bare(url: &str) -> Result<RedisStore, Trouble> {
    let config = RedisConfig::new(url).map_err(Trouble::of)?;
    let config = config.deadline(PATIENCE).connect_timeout(PATIENCE);
    RedisStore::connect(config).await.map_err(Trouble::of)
}

/// The same behind all layers.
pub async fn whole(url: &str, clock: &Clock) -> Result<Stack, Trouble> {
    let store = Breaker::new(bare(url).await?, clock.clone());
    let store = Lease::new(Shards::new(DenyCache::new(store)), clock.clone());
    let store = Fallback::start(store, FallbackConfig::default(), clock.clone());
    Local::new(store.map_err(Trouble::of)?, clock.clone()).map_err(Trouble::of)
}
