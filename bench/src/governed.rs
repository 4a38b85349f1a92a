//! governor, the peer every ratio refers to.

use std::num::NonZeroU32;

use governor::clock::{QuantaClock, QuantaInstant};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::{DashMapStateStore, HashMapStateStore};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::candidate::{Candidate, Decider, LimitNumbers, Setup};
use crate::traffic::Request;

pub const CANDIDATES: &[Candidate] = &[
    Candidate::new("governor_dashmap", sharded),
    Candidate::new("governor_dashmap_deny", sharded).denying(),
    Candidate::new("governor_hashmap", locked),
    Candidate::new("governor_direct", direct).at_most(1),
];

type Keyed<S> = RateLimiter<String, S, QuantaClock, NoOpMiddleware<QuantaInstant>>;

struct Sharded(Keyed<DashMapStateStore<String>>);

impl Decider for Sharded {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.0.check_key(&request.key).is_ok()
    }
}

struct Locked(Keyed<HashMapStateStore<String>>);

impl Decider for Locked {
    #[inline(always)]
    fn decide(&self, request: &Request) -> bool {
        self.0.check_key(&request.key).is_ok()
    }
}

struct Direct(DefaultDirectRateLimiter);

impl Decider for Direct {
    #[inline(always)]
    fn decide(&self, _: &Request) -> bool {
        self.0.check().is_ok()
    }
}

fn sharded(setup: Setup) -> Box<dyn Decider> {
    let limiter = RateLimiter::dashmap_with_clock(quota(setup.terms), QuantaClock::default());
    Box::new(Sharded(limiter))
}

fn locked(setup: Setup) -> Box<dyn Decider> {
    let limiter = RateLimiter::hashmap_with_clock(quota(setup.terms), QuantaClock::default());
    Box::new(Locked(limiter))
}

fn direct(setup: Setup) -> Box<dyn Decider> {
    Box::new(Direct(RateLimiter::direct(quota(setup.terms))))
}

fn quota(terms: LimitNumbers) -> Quota {
    let burst = NonZeroU32::new(terms.burst).expect("terms allow at least one");
    Quota::with_period(terms.interval).expect("terms have an interval").allow_burst(burst)
}
