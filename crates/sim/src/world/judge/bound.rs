//! Never more than promised: no interval admits more on the store's word than the limit and the faults allow.
//!
//! Time is the store's. The faults add:
//! - **Failover**: the units and places that the new server does not know of, once.
//! - **Store clock set forward**: a bucket refills by the step, because its time jumps. With leases, nodes also
//!   spend what they hold then: at most what the step refilled.
//! - **Store clock set**: windows, logs and places are counted from zero. With leases, windows get one limit more
//!   for the length of a window, because nodes hold units of the window that was current before.
//! - **Refund**: the units given back.
//! - **Policy change**: the count starts from zero, with requests that are decided by the new numbers. If the new
//!   numbers are larger, or other faults delay old commands, it starts when every node has the new numbers.
//! - With leases, an extra also counts for intervals that begin within a lease time after it, because units that
//!   were granted before are spent until then.
//!
//! Nothing else adds: not crashes, pauses, partitions, lost or repeated messages, hangs, callers that give up,
//! or the clocks of nodes.

use tidegate::store::lease::LEASE;
use tidegate_core::LeaseId;

use super::meter::{Admission, Meter, Moment};
use super::promise::{Kind, Promise};

#[derive(Debug)]
pub(crate) struct Bound {
    promise: Promise,
    keys: Vec<Meter>,
    /// How long units may be spent after the store granted them, in microseconds.
    lease: u64,
}

impl Bound {
    pub(crate) fn new(promise: Promise, keys: usize, is_leased: bool) -> Self {
        let keys = (0..keys).map(|_| Meter::new(promise)).collect();
        // Clocks differ by less than one in a thousand.
        let lease = if is_leased { LEASE.as_micros() * 1_001 / 1_000 } else { 0 };
        Self { promise, keys, lease }
    }

    /// The store, or a node with units of the store, admitted a request.
    pub(crate) fn admitted(&mut self, key: usize, it: &Admission, oldest: u64) -> Option<String> {
        let excess = self.keys[key].admit(it, oldest);
        (excess > 0).then(|| format!("key {key} admitted {excess} more than its limit allows"))
    }

    /// The store forgot units that it had granted.
    pub(crate) fn lost(&mut self, at: Moment, key: usize, units: u64, place: Option<LeaseId>) {
        self.extra(at, key, units);
        place.into_iter().for_each(|place| self.keys[key].leave(place));
    }

    /// Units came back to the store: a caller's refund, or what a node that stops did not spend.
    pub(crate) fn returned(&mut self, at: Moment, key: usize, units: u64) {
        self.extra(at, key, units);
    }

    fn extra(&mut self, at: Moment, key: usize, units: u64) {
        self.keys[key].add(at, at.time + self.lease, units);
    }

    /// A holder begins to release its place.
    pub(crate) fn leaves(&mut self, key: usize, place: LeaseId) {
        self.keys[key].leave(place);
    }

    /// The store's clock was set forward by `step` microseconds, or back (0).
    pub(crate) fn clock_set(&mut self, at: Moment, step: u64) {
        let Promise { kind, units, count, per } = self.promise;
        let refilled = u128::from(step) * u128::from(count) / u128::from(per);
        let (until, units) = match kind {
            Kind::Bucket => {
                let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
                (at.time + self.lease, units.min(refilled.saturating_add(1)))
            }
            _ => (at.time + per, units),
        };
        for meter in &mut self.keys {
            meter.clock_set();
            if self.lease > 0 {
                meter.add(at, until, units);
            }
        }
    }

    /// The numbers have changed.
    pub(crate) fn restart(&mut self, promise: Promise) {
        self.promise = promise;
        self.keys.iter_mut().for_each(|meter| meter.restart(promise));
    }
}
