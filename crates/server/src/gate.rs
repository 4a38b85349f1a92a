//! What every door asks: one store, one clock and one policy for the whole process.

use std::io;
use std::sync::Arc;

use tidegate::policy::{Answer, CheckError, Policy, PolicyLimiter, Request};
use tidegate::store::Charge;
use tidegate::store::memory::MemoryStore;
use tidegate::{Clock, Decision, Hashing, Key, Limit, Op, Rate, Scope, Timestamp};

/// What limits that come with a request are called. No limit of a policy can be: no domain begins so.
const GIVEN: &str = "\0given";

/// Decides for every door. Cheap to share: clones are handles to the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    limiter: PolicyLimiter<MemoryStore>,
    clock: Clock,
    /// The keys of all buckets that come with requests.
    buckets: Scope,
    /// The bucket that takes longest to refill: any other's debt fits into it.
    widest: Limit,
}

impl Gate {
    /// A gate with an empty policy, on the machine's clock and a store of the default size.
    pub fn new() -> io::Result<Self> {
        Self::with_clock(Clock::default())
    }

    /// The same, on another clock.
    pub fn with_clock(clock: Clock) -> io::Result<Self> {
        let store = MemoryStore::new(MemoryStore::DEFAULT_BYTES, Hashing::Fast)?;
        let store = store.with_clock(clock.clone());
        let limiter = PolicyLimiter::new(Policy::default(), store, clock.clone());
        // A hundred years of one unit each second.
        let widest = Limit::token_bucket(Rate::per_second(1)).burst(100 * 365 * 86_400);
        let widest = widest.build().map_err(io::Error::other)?;
        Ok(Self { limiter, clock, buckets: Scope::new(GIVEN, &widest), widest })
    }

    /// Puts another policy in force; everybody's state is kept.
    pub fn replace(&self, policy: Policy) {
        self.limiter.replace(policy);
    }

    /// Now. A door asks once for all the requests that came together.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Decides by a bucket that came with the request. Its numbers are not part of the key: whoever
    /// asks with others goes on from the same state.
    pub(crate) fn charge(&self, now: Timestamp, key: &[u8], limit: &Limit, op: Op) -> Decision {
        let charge = Charge { key: Key::new(self.buckets, key), limit, op };
        self.limiter.store().decide(now, &charge)
    }

    /// The same for a limit of any algorithm, now.
    pub(crate) fn charge_any(&self, key: &[u8], limit: &Limit, op: Op) -> Decision {
        let charge = Charge { key: Key::new(Scope::new(GIVEN, limit), key), limit, op };
        self.limiter.store().decide(self.clock.now(), &charge)
    }

    /// The policy in force.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        self.limiter.policy()
    }

    /// Forgets a key of a bucket that came with a request, and says whether there was something.
    pub(crate) fn forget(&self, now: Timestamp, key: &[u8]) -> bool {
        let owed = !self.charge(now, key, &self.widest, Op::Read(0)).reset_after.is_zero();
        self.charge(now, key, &self.widest, Op::Reset);
        owed
    }

    /// Decides by the policy.
    pub(crate) fn check(&self, request: &Request<'_>) -> Result<Answer, CheckError> {
        self.limiter.check_now(request)
    }
}
