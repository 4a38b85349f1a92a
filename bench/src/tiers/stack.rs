//! The production stack, and Redis without it.

use std::time::Duration;

use ::tidegate::Clock;
use ::tidegate::store::background::Background;
use ::tidegate::store::redis::{RedisConfig, RedisStore};
use ::tidegate::store::shared::{SharedOptions, SharedStore};

use crate::redis::contender::Trouble;

/// Longer than any stall of a busy machine.
const TIMEOUT: Duration = Duration::from_secs(10);

/// All layers.
pub type Stack = SharedStore<RedisStore>;

/// The store in Redis without layers.
pub async fn bare(url: &str) -> Result<RedisStore, Trouble> {
    let config = RedisConfig::new(url).map_err(Trouble::of)?;
    let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
    RedisStore::connect(config).await.map_err(Trouble::of)
}

/// The same behind all layers.
pub async fn whole(url: &str, clock: &Clock) -> Result<Stack, Trouble> {
    let (store, background) = (bare(url).await?, Background::tokio());
    SharedStore::start(store, &SharedOptions::default(), clock.clone(), &background)
        .map_err(Trouble::of)
}
