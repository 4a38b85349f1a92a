//! Open reservations of this process.
//!
//! # Bound
//! Each takes [`BYTES`] of the store's memory. Without room, a request is admitted and its reservation is not
//! opened, so its units stay taken.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use tidegate_core::{Decision, Op, Timestamp};

use super::MemoryStore;
use super::budget::{Budget, Purpose};
use crate::store::partition::all_allowed;
use crate::store::reservation::{RESERVATION_TTL, ReservationId, Reserving, not_open, settling};
use crate::store::{Batch, Charge};
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Bytes of one reservation: its entry and a byte of the map, with room for a map that has just grown.
const BYTES: u64 = 5 * (size_of::<(Name, Open)>() as u64 + 1) / 2;
const SHARDS: usize = 16;
/// A shard with fewer reservations is not searched for expired ones.
const LEAST_SWEPT: usize = 64;

/// The key's fingerprint and the reservation's number.
type Name = (u64, u64);

#[derive(Debug)]
pub(super) struct Reservations {
    shards: [Mutex<Shard>; SHARDS],
    budget: Arc<Budget>,
    unopened: AtomicU64,
}

#[derive(Debug, Default)]
struct Shard {
    open: HashMap<Name, Open, RandomState>,
    /// The number of reservations from which expired ones are removed before another is added.
    sweep_at: usize,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    /// When the units stop being owed.
    until: Timestamp,
    expires: Timestamp,
}

impl Reservations {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { shards: Default::default(), budget, unopened: AtomicU64::new(0) }
    }

    fn shard(&self, id: ReservationId) -> &Mutex<Shard> {
        &self.shards[id.number() as usize % SHARDS]
    }

    fn open(&self, now: Timestamp, print: u64, id: ReservationId, until: Timestamp) {
        let mut shard = lock(self.shard(id));
        if shard.open.len() >= shard.sweep_at {
            let before = shard.open.len();
            shard.open.retain(|_, open| open.expires > now);
            self.budget.release(BYTES * (before - shard.open.len()) as u64);
            shard.sweep_at = (2 * shard.open.len()).max(LEAST_SWEPT);
            let room = shard.sweep_at;
            shard.open.shrink_to(room);
        }
        if !self.budget.reserve(BYTES, Purpose::NewList) {
            self.unopened.fetch_add(1, Ordering::Relaxed);
            return;
        }
        shard.open.insert((print, id.number()), Open { until, expires: now + RESERVATION_TTL });
    }

    /// Closes a reservation and returns when its units stop being owed; `None` if it is not open.
    fn close(&self, now: Timestamp, print: u64, id: ReservationId) -> Option<Timestamp> {
        let open = lock(self.shard(id)).open.remove(&(print, id.number()))?;
        self.budget.release(BYTES);
        (open.expires > now).then_some(open.until)
    }

    /// Number of open reservations, including expired ones that were not removed yet.
    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| lock(shard).open.len() as u64).sum()
    }

    /// Number of reservations that were not opened for lack of room.
    pub(super) fn unopened(&self) -> u64 {
        self.unopened.load(Ordering::Relaxed)
    }
}

impl MemoryStore {
    /// Decides a batch with charges that open or close reservations. A reservation is opened after its take,
    /// because its id is known only to the caller, who gets it later.
    pub(super) fn decide_reserving(
        &self,
        now: Timestamp,
        batch: Batch<'_>,
        decisions: &mut Vec<Decision>,
    ) {
        if !batch.is_all_or_nothing() {
            decisions.extend(batch.charges.iter().map(|charge| self.decide_one(now, charge)));
            return;
        }
        let before = decisions.len();
        self.decide_together(now, batch.charges, |decision| decisions.push(decision));
        if all_allowed(&decisions[before..]) {
            for (charge, decision) in batch.charges.iter().zip(&decisions[before..]) {
                self.open(now, charge, decision);
            }
        }
    }

    fn decide_one(&self, now: Timestamp, charge: &Charge<'_>) -> Decision {
        let Some(Reserving::Close(id)) = charge.reserving else {
            let decision = self.decide(now, charge);
            self.open(now, charge, &decision);
            return decision;
        };
        let at = self.time_of(now, charge);
        match self.reservations.close(at, self.print(charge.key), id) {
            Some(until) => self.decide(now, &Charge { op: settling(charge.op, until), ..*charge }),
            None => not_open(self.decide(now, &Charge { op: Op::Read(0), ..*charge })),
        }
    }

    /// Opens the reservation of a take that was admitted.
    fn open(&self, now: Timestamp, charge: &Charge<'_>, decision: &Decision) {
        let (Some(Reserving::Open(id)), Op::Take(1..)) = (charge.reserving, charge.op) else {
            return;
        };
        if decision.is_allowed() {
            // The decision may have been made a moment after `at`. Rounding this way owes too
            // little rather than too much.
            let at = self.time_of(now, charge);
            self.reservations.open(at, self.print(charge.key), id, at + decision.reset_after);
        }
    }
}
