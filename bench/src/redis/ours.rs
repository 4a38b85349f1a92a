//! Tidegate's store, through the public interface. Every answer is read whole.

use std::hint::black_box;
use std::time::Duration;

use ::tidegate::store::redis::{RedisConfig, RedisStore};
use ::tidegate::{Limit, Limiter, Rate, SharedLimiter, Span};

use super::contender::{Contender, Mode, Trouble};
use crate::candidate::LimitNumbers;
use crate::tidegate::{bucket, fixed_window, sliding_window, thirds};

/// No request may time out because the machine is busy.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub struct Tidegate(SharedLimiter<RedisStore>);

impl Tidegate {
    pub async fn new(url: &str, mode: Mode, terms: LimitNumbers) -> Result<Self, Trouble> {
        let config = RedisConfig::new(url).map_err(Trouble::of)?;
        let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
        let config = match mode.batches() {
            true => config,
            // As many commands in flight as on a bare connection.
            false => config.max_batch(1).pipeline(1_024),
        };
        let store = RedisStore::connect(config).await.map_err(Trouble::of)?;
        let builder = limits(mode, terms)
            .into_iter()
            .fold(Limiter::builder(), |builder, (name, limit)| builder.limit(name, limit));
        Ok(Self(builder.shared(store).map_err(Trouble::of)?))
    }
}

impl Contender for Tidegate {
    const COMMANDS: &'static [&'static str] = &["evalsha", "eval"];

    async fn decide(&mut self, key: &str) -> Result<bool, Trouble> {
        let verdict = self.0.check(key).await.map_err(Trouble::of)?;
        black_box((verdict.remaining(), verdict.reset_after()));
        Ok(verdict.is_allowed())
    }
}

fn limits(mode: Mode, terms: LimitNumbers) -> Vec<(&'static str, Limit)> {
    let one = |limit| vec![("default", limit)];
    match mode {
        Mode::Single | Mode::Batched | Mode::Hot => one(bucket(terms)),
        Mode::FractionalSingle | Mode::FractionalBatched => one(thirds(terms)),
        Mode::ThreeLimits | Mode::ThreeLimitsBatched => {
            let part = |of| bucket(LimitNumbers { burst: terms.burst / of, ..terms });
            vec![("user", part(1)), ("method", part(2)), ("route", part(3))]
        }
        Mode::FixedWindow => one(fixed_window()),
        Mode::SlidingWindow => one(sliding_window()),
        Mode::SlidingLog => {
            let hour = Rate::new(10_000, Span::from_secs(3_600));
            one(Limit::sliding_log(hour).build().expect("an hour is a window"))
        }
        Mode::Inflight => {
            let limit = Limit::in_flight(10_000, Span::from_secs(3_600));
            one(limit.expect("an hour is a lease"))
        }
    }
}
