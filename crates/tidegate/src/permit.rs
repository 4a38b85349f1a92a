//! Places taken in an in-flight limit, given back on drop.

use tidegate_core::{Decision, LeaseId, Limit, Op};

use crate::key::{Key, Scope};
use crate::limiter::Limiter;
use crate::store::Charge;
use crate::verdict::Verdict;

/// The answer to [`Limiter::acquire`].
#[derive(Debug)]
#[must_use = "dropping an admission gives its place back"]
pub enum Admission {
    /// Go ahead, and hold the permit while at it.
    Granted(Permit),
    /// Not now.
    Denied(Verdict),
}

impl Admission {
    /// The permit, if granted.
    pub fn permit(self) -> Option<Permit> {
        match self {
            Self::Granted(permit) => Some(permit),
            Self::Denied(_) => None,
        }
    }

    /// True if granted.
    pub const fn is_granted(&self) -> bool {
        matches!(self, Self::Granted(_))
    }

    /// The verdict either way.
    pub const fn verdict(&self) -> &Verdict {
        match self {
            Self::Granted(permit) => &permit.verdict,
            Self::Denied(verdict) => verdict,
        }
    }
}

/// A place in every in-flight limit of a limiter. Dropping it gives the place back; units of rate
/// limits taken along with it stay spent.
#[derive(Debug)]
#[must_use = "dropping a permit gives its place back"]
pub struct Permit {
    limiter: Limiter,
    key: Box<[u8]>,
    verdict: Verdict,
    leases: Vec<Held>,
}

/// One place, and where it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) scope: Scope,
    pub(crate) limit: Limit,
    pub(crate) lease: LeaseId,
}

impl Held {
    pub(crate) fn of(scope: Scope, limit: Limit, decision: &Decision) -> Option<Self> {
        decision.lease.map(|lease| Self { scope, limit, lease })
    }
}

impl Permit {
    pub(crate) fn new(limiter: Limiter, key: &[u8], verdict: Verdict, leases: Vec<Held>) -> Self {
        Self { limiter, key: key.into(), verdict, leases }
    }

    /// How things stood when the permit was granted.
    pub const fn verdict(&self) -> &Verdict {
        &self.verdict
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let shared = self.limiter.shared();
        let now = shared.clock.now();
        for held in &self.leases {
            let key = Key::new(held.scope, &self.key);
            let op = Op::Release(held.lease);
            shared.store.decide(now, &Charge::new(key, &held.limit, op));
        }
        self.limiter.freed_by_permit(&self.key);
    }
}
