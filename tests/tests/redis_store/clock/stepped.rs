//! A store whose clock is stepped, and what the limits on it still promise.

use std::time::Duration;

use tidegate::store::redis::{RedisStore, TimeSource};
use tidegate::{Algorithm, Limit, Limiter, SharedLimiter, Span};
use tidegate_tests::clients::limit;
use tidegate_tests::servers::RedisServer;

use super::store;

/// A limit whose store has a clock that is stepped.
pub(crate) struct Stepped {
    server: RedisServer,
    limiter: SharedLimiter<RedisStore>,
    limit: Limit,
}

impl Stepped {
    pub(crate) async fn start(text: &str) -> Self {
        let server = RedisServer::builder().faketime().start();
        let store = store(&server, Duration::ZERO, TimeSource::Store).await;
        let limiter = Limiter::builder().limit(text, limit(text)).shared(store);
        Self { server, limiter: limiter.expect("one limit"), limit: limit(text) }
    }

    /// Microseconds by the store's clock.
    fn time(&self) -> u64 {
        let time = self.server.command(&["TIME"]);
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time).expect("two numbers");
        seconds * 1_000_000 + micros
    }

    async fn admits(&self) -> bool {
        self.limiter.check("key").await.expect("a server").is_allowed()
    }

    async fn drain(&self) -> u64 {
        let mut admitted = 0;
        while self.admits().await {
            admitted += 1;
        }
        admitted
    }

    /// The longest lock-out: a full refill, and one more for windows, because they keep
    /// the newer window.
    fn lockout(&self) -> u64 {
        match &self.limit {
            Limit::Bucket(bucket) => bucket.fill_time().ticks + 1,
            Limit::FixedWindow(window) => 2 * window.length().as_micros(),
            Limit::SlidingWindow(window) => 2 * window.length().as_micros(),
            Limit::SlidingLog(log) => log.length().as_micros(),
            Limit::InFlight(in_flight) => in_flight.ttl().as_micros(),
            _ => unreachable!("every family is above"),
        }
    }

    /// The most that may be admitted from now on for so long, if all of it came back at once.
    fn most(&self, micros: u64) -> u64 {
        match &self.limit {
            Limit::InFlight(in_flight) => {
                in_flight.limit() * (1 + micros / in_flight.ttl().as_micros())
            }
            limit => limit.promise(Span::from_micros(micros)).expect("units per time"),
        }
    }

    /// Even a denial that no wait helps repairs what the step made impossible: otherwise the state
    /// would mean something again an hour later. Only ids of leases stay, for they must not come
    /// again.
    async fn check_repair(&self, seconds: i64) {
        let denied = self.limiter.check_cost("key", u64::MAX).await.expect("a server");
        assert!(denied.is_never());
        if matches!(self.limit, Limit::InFlight(_)) {
            return;
        }
        let keys: Vec<String> =
            redis::from_redis_value(self.server.command(&["KEYS", "*key}"])).expect("names");
        for key in keys {
            let left = self.server.command(&["PTTL", &key]);
            let left: i64 = redis::from_redis_value(left).expect("a number");
            assert!(left < 10_000, "stepped {seconds} s: {key} is kept for {left} ms");
        }
    }

    /// Exhausts the key at noon, a day later, and at noon again after the clock has gone back; returns how
    /// long the key is then denied. At noon a window of a day starts twelve hours later.
    pub(crate) async fn denied_after_a_day_ahead(&self) -> Span {
        const DAY: i64 = 86_400;
        let second = i64::try_from(self.time() / 1_000_000).expect("a present clock") % DAY;
        for seconds in [DAY + DAY / 2 - second, DAY, -DAY] {
            self.drain().await;
            self.server.step_clock(seconds);
        }
        self.drain().await;
        let verdict = self.limiter.check("key").await.expect("a server");
        verdict.retry_after().expect("a denial that ends").into()
    }

    /// Steps the clock under a key that is used up.
    pub(crate) async fn step(&self, seconds: i64) {
        self.drain().await;
        self.server.step_clock(seconds);
        let start = self.time();
        self.check_repair(seconds).await;
        let extra = self.drain().await;
        let first = self.time();
        let most = self.most(first - start);
        assert!(extra <= most, "stepped {seconds} s: {extra} admitted at once, at most {most}");
        loop {
            let before = self.time();
            if self.admits().await {
                break;
            }
            let locked = before.saturating_sub(first);
            let bound = self.lockout();
            assert!(locked <= bound, "stepped {seconds} s: locked out for {locked} us of {bound}");
        }
    }
}
