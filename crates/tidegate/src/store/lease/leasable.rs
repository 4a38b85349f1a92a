//! Which limits can be leased, and their capacity at the store.

use tidegate_core::Limit;
use tidegate_core::algorithm::fixed_window::Denied;

use super::LEASE;
use crate::scaling::with_capacity;
use crate::store::{Charge, Tier};

/// A limit of `tier: leased` as the store enforces it: a bucket is smaller by the units that nodes
/// may hold unspent. `None` if the limit cannot be leased, or its burst is less than four times the
/// units that refill in a lease time.
pub fn leased(limit: &Limit) -> Option<Limit> {
    match limit {
        Limit::Bucket(bucket) if bucket.burst() == bucket.capacity() => {
            let one = bucket.time_of(1)?;
            let denominator = u128::from(bucket.denominator());
            let time = u128::from(one.ticks) * denominator + u128::from(one.part);
            let ticks = u128::from(LEASE.as_micros()) * denominator;
            let held = u64::try_from(ticks.div_ceil(time.max(1))).ok()?;
            // Exact: compares with four times the refill before it is rounded up to whole units.
            let is_large = u128::from(bucket.capacity()) * time >= 4 * ticks;
            let left = bucket.capacity().checked_sub(held).filter(|left| *left > 0)?;
            if is_large { with_capacity(limit, left) } else { None }
        }
        Limit::FixedWindow(window) if window.denied() == Denied::Ignored => Some(*limit),
        Limit::SlidingWindow(_) => Some(*limit),
        _ => None,
    }
}

/// Whether the units of a charge's limit may be taken in advance.
pub(super) const fn is_leased(charge: &Charge<'_>) -> bool {
    let is_leased = matches!(charge.options.tier, Tier::Leased) && charge.options.shards.is_none();
    is_leased
        && match charge.limit {
            Limit::Bucket(bucket) => bucket.burst() == bucket.capacity(),
            Limit::FixedWindow(window) => matches!(window.denied(), Denied::Ignored),
            Limit::SlidingWindow(_) => true,
            _ => false,
        }
}
