//! The other limiters, each called as its documentation recommends.
//!
//! `ratelimit` and `leaky-bucket` have no keys, so they are stored in a `DashMap`; `throttlecrab`
//! needs `&mut`, `gcra` an owned key, and `limitador` a map of variables per call. The work that
//! their interfaces require is timed, because their users pay for it.

use std::collections::HashMap;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use dashmap::DashMap;
use throttlecrab::PeriodicStore;

use crate::candidate::{Candidate, Decider, LimitNumbers, Setup};
use crate::maps::Exclusive;
use crate::traffic::Request;

pub const CANDIDATES: &[Candidate] = &[
    Candidate::new("throttlecrab_periodic", throttlecrab),
    Candidate::new("throttlecrab_periodic_deny", throttlecrab).denying(),
    Candidate::new("gcra_crate", gcra),
    Candidate::new("gcra_crate_deny", gcra).denying(),
    Candidate::new("ratelimit_dashmap", ratelimit),
    Candidate::new("leaky_bucket_dashmap", leaky_bucket),
    Candidate::new("pingora_rate", pingora),
    Candidate::new("limitador", limitador).at_most(1_000_000),
];

struct Throttlecrab {
    limiter: Exclusive<throttlecrab::RateLimiter<PeriodicStore>>,
    burst: i64,
    interval_secs: i64,
}

impl Decider for Throttlecrab {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        let now = SystemTime::now();
        let &Self { burst, interval_secs, .. } = self;
        self.limiter
            .with(|limiter| limiter.rate_limit(&request.key, burst, 1, interval_secs, 1, now))
            .is_ok_and(|(allowed, _)| allowed)
    }

    fn share(&self, threads: usize) {
        self.limiter.share(threads);
    }
}

fn throttlecrab(setup: Setup) -> Box<dyn Decider> {
    Box::new(Throttlecrab {
        limiter: Exclusive::new(throttlecrab::RateLimiter::new(PeriodicStore::new())),
        // Version 0.4.40 never denies a burst of 1.
        burst: i64::from(setup.terms.burst).max(2),
        interval_secs: i64::try_from(setup.terms.interval.as_secs()).expect("an interval is short"),
    })
}

struct Gcra(gcra::RateLimiter<String>, gcra::RateLimit);

impl Decider for Gcra {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        ready(self.0.check(request.key.clone(), &self.1, 1)).is_ok()
    }
}

fn gcra(setup: Setup) -> Box<dyn Decider> {
    let LimitNumbers { interval, burst } = setup.terms;
    Box::new(Gcra(gcra::RateLimiter::new(1024), gcra::RateLimit::new(burst, interval * burst)))
}

struct Ratelimit(DashMap<String, ratelimit::Ratelimiter>, LimitNumbers);

impl Decider for Ratelimit {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        if let Some(limiter) = self.0.get(request.key.as_str()) {
            return limiter.try_wait().is_ok();
        }
        self.0.entry(request.key.clone()).or_insert_with(|| self.fresh()).try_wait().is_ok()
    }
}

impl Ratelimit {
    fn fresh(&self) -> ratelimit::Ratelimiter {
        let burst = u64::from(self.1.burst);
        let builder = ratelimit::Ratelimiter::builder(1).period(self.1.interval);
        builder.max_tokens(burst).initial_available(burst).build().expect("terms are valid")
    }
}

fn ratelimit(setup: Setup) -> Box<dyn Decider> {
    Box::new(Ratelimit(DashMap::new(), setup.terms))
}

struct LeakyBucket(DashMap<String, leaky_bucket::RateLimiter>, LimitNumbers);

impl Decider for LeakyBucket {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        if let Some(limiter) = self.0.get(request.key.as_str()) {
            return limiter.try_acquire(1);
        }
        self.0.entry(request.key.clone()).or_insert_with(|| self.fresh()).try_acquire(1)
    }
}

impl LeakyBucket {
    fn fresh(&self) -> leaky_bucket::RateLimiter {
        let burst = self.1.burst as usize;
        let mut builder = leaky_bucket::RateLimiter::builder();
        builder.initial(burst).max(burst).refill(1).interval(self.1.interval).build()
    }
}

fn leaky_bucket(setup: Setup) -> Box<dyn Decider> {
    Box::new(LeakyBucket(DashMap::new(), setup.terms))
}

/// A count-min sketch as wide as there are keys: it estimates, and the caller compares.
struct Pingora(pingora_limits::rate::Rate, isize);

impl Decider for Pingora {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.0.observe(&request.key, 1) <= self.1
    }
}

fn pingora(setup: Setup) -> Box<dyn Decider> {
    let hour = Duration::from_secs(3_600);
    let rate = pingora_limits::rate::Rate::new_with_estimator_config(hour, 4, setup.keys as usize);
    Box::new(Pingora(rate, setup.terms.burst as isize))
}

struct Limitador(limitador::RateLimiter, limitador::limit::Namespace);

impl Decider for Limitador {
    fn decide(&self, request: &Request) -> bool {
        let variables = HashMap::from([("user_id".to_owned(), request.key.clone())]);
        let context = limitador::limit::Context::from(variables);
        let checked = self.0.check_rate_limited_and_update(&self.1, &context, 1);
        checked.is_ok_and(|checked| !checked.limited)
    }
}

fn limitador(setup: Setup) -> Box<dyn Decider> {
    let limiter = limitador::RateLimiter::new(u64::from(setup.keys) * 2 + 1_000);
    let user = "user_id".try_into().expect("a variable name is an expression");
    let most = u64::from(setup.terms.burst);
    limiter.add_limit(limitador::limit::Limit::new("bench", most, 3_600, vec![], vec![user]));
    Box::new(Limitador(limiter, "bench".into()))
}

/// The result of a future that never waits.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => unreachable!("an in-memory limiter has nothing to wait for"),
    }
}
