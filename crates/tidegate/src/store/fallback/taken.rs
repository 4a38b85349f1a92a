//! What was taken of shares for a request that waits for the store.

use tidegate_core::algorithm::bucket::Bucket;
use tidegate_core::{Decision, Limit, Op, Span, Timestamp};

use super::Inner;
use super::alone::place;
use crate::store::{Charge, OnStoreFailure, Store, StoreError};

/// Units of shares, taken for a request that is not decided yet. Dropping it gives them back.
pub(super) struct Taken<'a, S: Store> {
    inner: &'a Inner<S>,
    /// When, by the store's clock.
    at: Timestamp,
    charges: &'a [Charge<'a>],
    decisions: &'a [Decision],
    error: &'a StoreError,
    is_kept: bool,
}

impl<'a, S: Store> Taken<'a, S> {
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
        let limit = self.inner.share_of(charge.limit);
        let share = |op| Charge { limit: &limit, op, ..*charge };
        let op = match place(decision) {
            Some(place) => Op::Release(place),
            None => {
                let idle = || self.inner.local.decide(now, &share(Op::Read(0))).reset_after;
                Op::Return(still_owed(&limit, cost, decision, (self.at, now), idle))
            }
        };
        self.inner.local.decide(now, &share(op));
    }
}

impl<S: Store> Drop for Taken<'_, S> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let now = self.inner.store.clock(self.inner.clock.now());
        for (charge, decision) in self.charges.iter().zip(self.decisions) {
            // Nothing was taken of the share where the policy had the word.
            if self.inner.mode(charge, self.error) == OnStoreFailure::Local {
                self.give_back(now, charge, decision);
            }
        }
    }
}

/// How many of the units that a take left with this decision are owed for it still. What was refilled since
/// would be another's by now, and so would what a window held that is over, or a log that others have
/// written to. Nobody knows what was if the clock went back. `idle` tells how long until nothing is owed at all.
fn still_owed(
    limit: &Limit,
    cost: u64,
    taken: &Decision,
    (then, now): (Timestamp, Timestamp),
    idle: impl FnOnce() -> Span,
) -> u64 {
    let waited = now.since(then);
    let is_there = match limit {
        _ if now < then => false,
        Limit::Bucket(bucket) => return cost.min(owed(bucket, taken.reset_after, waited)),
        Limit::FixedWindow(_) => waited < taken.reset_after,
        // It is gone a window after the one that it counts in.
        Limit::SlidingWindow(window) => waited + window.length() < taken.reset_after,
        Limit::SlidingLog(_) => waited + idle() == taken.reset_after,
        // Its places are given back by their numbers.
        _ => false,
    };
    if is_there { cost } else { 0 }
}

/// The whole units that a bucket owes for certain which was to be full after `full`, so long after that was said.
fn owed(bucket: &Bucket, full: Span, waited: Span) -> u64 {
    let Some(one) = bucket.time_of(1) else { return 0 };
    // What is told is rounded up: by less than a microsecond, which matters once something was refilled.
    let less = waited.as_micros() + u64::from(!waited.is_zero());
    let (left, parts) = (full.as_micros().saturating_sub(less), u128::from(bucket.denominator()));
    let unit = (u128::from(one.ticks) * parts + u128::from(one.part)).max(1);
    u64::try_from(u128::from(left) * parts / unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "taken_tests.rs"]
mod tests;
