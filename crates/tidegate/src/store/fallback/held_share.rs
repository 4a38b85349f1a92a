//! What was taken of shares for a request that waits for the store.

use tidegate_core::algorithm::bucket::Bucket;
use tidegate_core::{Decision, Limit, Op, Span, Timestamp};

use super::Inner;
use super::alone::place;
use crate::store::{Charge, OnStoreFailure, Store, StoreError};

/// Units of shares, taken for a request that is not decided yet. Dropping it gives them back.
pub(super) struct HeldShare<'a, S: Store> {
    inner: &'a Inner<S>,
    /// When, by the store's clock.
    at: Timestamp,
    charges: &'a [Charge<'a>],
    decisions: &'a [Decision],
    error: &'a StoreError,
    is_kept: bool,
}

impl<'a, S: Store> HeldShare<'a, S> {
    pub(super) const fn new(
        inner: &'a Inner<S>,
        at: Timestamp,
        charges: &'a [Charge<'a>],
        decisions: &'a [Decision],
        error: &'a StoreError,
    ) -> Self {
        Self { inner, at, charges, decisions, error, is_kept: false }
    }

    /// The request is let in.
    pub(super) fn keep(mut self) {
        self.is_kept = true;
    }

    fn give_back(&self, now: Timestamp, charge: &Charge<'_>, decision: &Decision) {
        let Op::Take(cost) = charge.op else { return };
        let limit = self.inner.share_of(charge);
        let share = |op| Charge { limit: &limit, op, ..*charge };
        let op = match place(decision) {
            Some(place) => Op::Release(place),
            None => {
                let idle = self.inner.local.decide(now, &share(Op::Read(0))).reset_after;
                Op::Return(still_owed(&limit, cost, decision, (self.at, now), idle))
            }
        };
        self.inner.local.decide(now, &share(op));
    }
}

impl<S: Store> Drop for HeldShare<'_, S> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let now = self.inner.time(self.inner.clock.now());
        for (charge, decision) in self.charges.iter().zip(self.decisions) {
            // Nothing was taken of the share where the policy had the word.
            if self.inner.mode(charge, self.error) == OnStoreFailure::Local {
                self.give_back(now, charge, decision);
            }
        }
    }
}

/// How many of the units that a take left with this decision are owed for it still, where nothing at all will be
/// owed after `idle`. All of them, if that is the instant that the take has left: then nobody has written to a
/// bucket or a log since, and a window is the same. Else what was refilled would be another's by now, and so
/// would what a window held that is over, or a log that others have written to. Nobody knows what was refilled if
/// the clock went back.
fn still_owed(
    limit: &Limit,
    cost: u64,
    taken: &Decision,
    (then, now): (Timestamp, Timestamp),
    idle: Span,
) -> u64 {
    match limit {
        _ if now + idle == then + taken.reset_after => cost,
        Limit::Bucket(bucket) if now >= then => {
            cost.min(owed(bucket, taken.reset_after, now.since(then)))
        }
        _ => 0,
    }
}

/// The whole units that a bucket owes for certain which was to be full after `full`, so long after that was said.
fn owed(bucket: &Bucket, full: Span, waited: Span) -> u64 {
    let Some(one) = bucket.time_of(1) else { return 0 };
    // What is told is rounded up, by less than a microsecond.
    let left = full.as_micros().saturating_sub(waited.as_micros() + 1);
    let parts = u128::from(bucket.denominator());
    let unit = (u128::from(one.ticks) * parts + u128::from(one.part)).max(1);
    u64::try_from(u128::from(left) * parts / unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "held_share_tests.rs"]
mod tests;
