//! The in-flight limit (concurrency limit): how many units may be held at once.
//!
//! # Idea
//! Taking units yields a *lease*; releasing the lease frees its units. A lease that is never
//! released, because its holder crashed, expires after its time to live; a holder that needs longer
//! renews its lease before it expires.
//!
//! # Promise
//! At no instant do unexpired leases weigh more than the limit. Work that outlives its lease is not
//! counted: choose a time to live above the longest request.
//!
//! # State
//! One entry of 24 bytes per lease.
//!
//! # When to use, when not
//! Expensive or slow work, retry pile-ups. A rate bounds how often requests start; this limit
//! bounds how many run at once. The two are independent and are usually combined. An in-flight
//! limit has no units per time and saves up no credit.
//!
//! # Reference
//! The concurrent-requests limiter Stripe described in 2017.

use alloc::collections::VecDeque;

use crate::algorithm::Algorithm;
use crate::decision::{Decision, LeaseId, MAX_COST, Op, Outcome};
use crate::explain::{Detail, Explanation};
use crate::invalid::InvalidLimit;
use crate::time::{Span, Timestamp};

/// The configured numbers of an in-flight limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InFlight {
    limit: u64,
    ttl: u64,
}

/// The leases of a key, ordered by expiry, which is the order in which they were taken or renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct InFlightState {
    leases: VecDeque<Lease>,
    /// The sum of all weights.
    total: u64,
    /// The newest lease id issued. Ids only grow, so a late release never frees another holder's
    /// units.
    last_id: u64,
}

/// Units held under one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The lease id.
    pub id: u64,
    /// The microsecond from which the lease no longer counts.
    pub expires: u64,
    /// Units held.
    pub weight: u64,
}

/// The state as seen from one instant.
struct Seen {
    expired: usize,
    /// Units held by unexpired leases.
    held: u64,
    /// The expiry of a lease taken now; no stored lease may expire later.
    latest: u64,
    repaired: bool,
}

impl InFlight {
    /// The largest limit.
    pub const MAX: u64 = 100_000;
    /// A time to live for permits within one process, which cannot get lost. A shared store refuses
    /// it, because the units of a crashed process would never become free: see
    /// [`InFlight::MAX_SHARED_TTL`].
    pub const NO_EXPIRY: Span = Span::from_secs(100 * 365 * 86_400);
    /// The longest time to live on a shared store: one day. A permit renews its lease, so work may
    /// take longer.
    pub const MAX_SHARED_TTL: Span = Span::from_secs(86_400);

    /// At most `limit` units at once; a lease expires after `ttl` if it is not released.
    pub fn new(limit: u64, ttl: Span) -> Result<Self, InvalidLimit> {
        if limit == 0 || limit > Self::MAX {
            return Err(InvalidLimit::InFlight);
        }
        if ttl.is_zero() || ttl > Self::NO_EXPIRY {
            return Err(InvalidLimit::LeaseTime);
        }
        Ok(Self { limit, ttl: ttl.as_micros() })
    }

    /// Units that may be held at once.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a lease lives unless it is released or renewed.
    pub const fn ttl(&self) -> Span {
        Span::from_micros(self.ttl)
    }

    fn seen(&self, state: &InFlightState, now: Timestamp) -> Seen {
        let latest = now.as_micros() + self.ttl;
        let (mut expired, mut expired_weight) = (0, 0);
        for lease in state.leases.iter().take_while(|lease| lease.expires <= now.as_micros()) {
            expired += 1;
            expired_weight += lease.weight;
        }
        let repaired = state.leases.back().is_some_and(|lease| lease.expires > latest);
        Seen { expired, held: state.total - expired_weight, latest, repaired }
    }

    fn test(&self, state: &InFlightState, seen: &Seen, now: Timestamp, cost: u64) -> Outcome {
        if cost > self.limit || cost > MAX_COST {
            return Outcome::Deny { retry_after: None };
        }
        let Some(mut missing) = (seen.held + cost).checked_sub(self.limit).filter(|m| *m > 0)
        else {
            return Outcome::Allow;
        };
        let mut free_at = now.as_micros();
        for lease in state.leases.iter().skip(seen.expired) {
            free_at = lease.expires.min(seen.latest);
            missing = missing.saturating_sub(lease.weight);
            if missing == 0 {
                break;
            }
        }
        Outcome::Deny { retry_after: Some(Span::from_micros(free_at - now.as_micros())) }
    }
}

impl InFlightState {
    /// Rebuilds a state that a store serialised: leases ordered by expiry, and the newest id.
    pub fn restore(leases: impl IntoIterator<Item = Lease>, last_id: u64) -> Self {
        let leases: VecDeque<Lease> = leases.into_iter().collect();
        let total = leases.iter().map(|lease| lease.weight).sum();
        Self { leases, total, last_id }
    }

    /// The leases, ordered by expiry.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = Lease> + '_ {
        self.leases.iter().copied()
    }

    /// True if the state contains this lease, expired or not.
    pub fn holds(&self, lease: LeaseId) -> bool {
        self.position(lease).is_some()
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.leases.capacity() * size_of::<Lease>()
    }

    /// Bytes on the heap that one more entry may add: a full list doubles.
    pub fn growth_bytes(&self) -> usize {
        let full = self.leases.len() == self.leases.capacity();
        if full { self.leases.capacity().max(4) * size_of::<Lease>() } else { 0 }
    }

    fn settle(&mut self, seen: &Seen) {
        self.leases.drain(..seen.expired);
        self.total = seen.held;
        for lease in self.leases.iter_mut().rev().take_while(|lease| lease.expires > seen.latest) {
            lease.expires = seen.latest;
        }
    }

    fn lease(&mut self, seen: &Seen, now: Timestamp, weight: u64) -> Option<LeaseId> {
        self.last_id = (self.last_id + 1).max(now.as_micros());
        self.leases.push_back(Lease { id: self.last_id, expires: seen.latest, weight });
        self.total += weight;
        LeaseId::new(self.last_id)
    }

    fn release(&mut self, id: LeaseId) {
        if let Some(lease) = self.position(id).and_then(|place| self.leases.remove(place)) {
            self.total -= lease.weight;
        }
    }

    /// Moves an unexpired lease to the back, where the latest expiry is. Returns false if the lease
    /// has expired.
    fn renew(&mut self, seen: &Seen, now: Timestamp, id: LeaseId) -> bool {
        let unexpired = |place: &usize| self.leases[*place].expires > now.as_micros();
        if self.position(id).filter(unexpired).is_none() {
            return false;
        }
        self.settle(seen);
        let lease = self.position(id).and_then(|place| self.leases.remove(place));
        self.leases.extend(lease.map(|lease| Lease { expires: seen.latest, ..lease }));
        true
    }

    /// The index of a lease. Ids are sorted until one is renewed.
    fn position(&self, id: LeaseId) -> Option<usize> {
        let sorted = self.leases.binary_search_by_key(&id.number(), |lease| lease.id).ok();
        sorted.or_else(|| self.leases.iter().position(|lease| lease.id == id.number()))
    }
}

impl Algorithm for InFlight {
    type State = InFlightState;

    fn decide(&self, state: &mut InFlightState, now: Timestamp, op: Op) -> Decision {
        let seen = self.seen(state, now);
        let (mut outcome, mut unbooked, mut lease) = (Outcome::Allow, 0, None);
        match op {
            // Units of an in-flight limit are returned by releasing their lease only.
            Op::Return(_) | Op::Block(_) => {}
            Op::ReturnOwed { units, .. } => unbooked = units,
            Op::Read(cost) | Op::Take(cost @ 0) => outcome = self.test(state, &seen, now, cost),
            Op::Take(cost) => {
                outcome = self.test(state, &seen, now, cost);
                let allowed = outcome == Outcome::Allow;
                if allowed || seen.repaired {
                    state.settle(&seen);
                }
                if allowed {
                    lease = state.lease(&seen, now, cost);
                }
            }
            Op::Force(units) => {
                unbooked = units.saturating_sub(self.limit.saturating_sub(seen.held));
                let booked = units - unbooked;
                // Repairs even if nothing fits. Otherwise a key that gets only forced costs would
                // stay locked.
                if booked > 0 || (seen.repaired && units > 0) {
                    state.settle(&seen);
                }
                if booked > 0 {
                    lease = state.lease(&seen, now, booked);
                }
            }
            Op::Reset => {
                state.leases.clear();
                state.total = 0;
            }
            Op::Release(id) => state.release(id),
            Op::Renew(id) => match state.renew(&seen, now, id) {
                true => lease = Some(id),
                false => outcome = Outcome::Deny { retry_after: None },
            },
        }
        let after = self.seen(state, now);
        let ends = state.leases.back().map_or(0, |lease| lease.expires.min(after.latest));
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.limit.saturating_sub(after.held),
            reset_after: Span::from_micros(ends.saturating_sub(now.as_micros())),
            unbooked,
            lease,
        }
    }

    fn idle_at(&self, state: &InFlightState) -> Timestamp {
        let ends = state.leases.back().map_or(0, |lease| lease.expires);
        // Until the clock is past the last id, an evicted state could issue that id again.
        let ids = if state.last_id == 0 { 0 } else { state.last_id + 1 };
        Timestamp::from_micros(ends.max(ids))
    }

    fn is_ahead(&self, state: &InFlightState, now: Timestamp) -> bool {
        self.seen(state, now).repaired
    }

    fn promise(&self, _within: Span) -> Option<u64> {
        None
    }

    fn explain(&self, state: &InFlightState, now: Timestamp) -> Explanation {
        let seen = self.seen(state, now);
        let next_allowed_at = match self.test(state, &seen, now, 1) {
            Outcome::Deny { retry_after } => retry_after.map(|wait| now + wait),
            Outcome::Allow | Outcome::Delay(_) => Some(now),
        };
        let leases = state.leases.iter().skip(seen.expired).copied().collect();
        Explanation {
            limit: self.limit,
            remaining: self.limit.saturating_sub(seen.held),
            next_allowed_at,
            idle_at: self.idle_at(state),
            detail: Detail::InFlight { held: seen.held, leases },
        }
    }
}

#[cfg(test)]
#[path = "inflight_tests.rs"]
mod tests;
