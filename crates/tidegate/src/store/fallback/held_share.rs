//! Returns units of shares that were taken for a request that is not admitted.

use tidegate_core::algorithm::bucket::Bucket;
use tidegate_core::{Decision, Limit, Op, Span, Timestamp};

use super::alone::own_lease;
use crate::store::shared::Layers;
use crate::store::{Charge, OnStoreFailure, Store, StoreError};

impl<S: Store + 'static> Layers<S> {
    /// Returns what charges took of their shares `at` that time of the store's clock.
    pub(super) fn return_shares(
        &self,
        at: Timestamp,
        charges: &[Charge<'_>],
        decisions: &[Decision],
        error: &StoreError,
    ) {
        let now = self.time(self.clock.now());
        for (charge, decision) in charges.iter().zip(decisions) {
            let Op::Take(cost) = charge.op else { continue };
            // `allow` and `deny` took nothing of the share.
            if self.mode(charge, error) != OnStoreFailure::Local {
                continue;
            }
            let limit = self.share_of(charge);
            let share = |op| Charge { limit: &limit, op, ..*charge };
            let op = match own_lease(decision) {
                Some(lease) => Op::Release(lease),
                None => {
                    let idle = self.fallback.shares.decide(now, &share(Op::Read(0))).reset_after;
                    Op::Return(still_owed(&limit, cost, decision, (at, now), idle))
                }
            };
            self.fallback.shares.decide(now, &share(op));
        }
    }
}

/// How many units of a take the share still owes for it, where the share will be idle after `idle`. All of them,
/// if that is the instant that the take left: then no other request has written to the bucket or log since, and a
/// window is the same. Otherwise refilled units, units of a window that is over, and units of a log that others
/// have written to would be another request's by now. If the clock went back, it is unknown what was refilled.
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

/// The whole units that a bucket certainly owes, `waited` after a decision that it would be full after `full`.
fn owed(bucket: &Bucket, full: Span, waited: Span) -> u64 {
    let Some(one) = bucket.time_of(1) else { return 0 };
    // A decision's times are rounded up, by less than a microsecond.
    let left = full.as_micros().saturating_sub(waited.as_micros() + 1);
    let parts = u128::from(bucket.denominator());
    let unit = (u128::from(one.ticks) * parts + u128::from(one.part)).max(1);
    u64::try_from(u128::from(left) * parts / unit).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "held_share_tests.rs"]
mod tests;
