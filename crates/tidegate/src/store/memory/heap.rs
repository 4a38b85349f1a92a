//! States that do not fit a slot: logs, leases, and rates with a block.
//!
//! Sharded maps behind locks that share the memory budget of the tables and evict by the same rule:
//! idle keys first, then the least debt, never a key that is being denied.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use tidegate_core::{Algorithm, Decision, LeaseId, Limit, Op, State, Timestamp};

use super::Lookup;
use super::budget::{Budget, Purpose};
use super::debt;
use super::table::Losses;
use crate::sync::{Mutex, MutexGuard, lock};

const SHARD_BITS: u32 = 6;
/// Number of keys considered for an eviction, and swept on every insert.
const NEIGHBOURS: usize = 16;
const SWEPT: usize = 2;

#[derive(Debug)]
pub(super) struct Heap {
    shards: Box<[Mutex<Shard>]>,
    budget: Arc<Budget>,
    pub(super) losses: Losses,
}

#[derive(Debug, Default)]
pub(super) struct Shard {
    places: HashMap<u64, usize, BuildHasherDefault<PrintHasher>>,
    tenants: Vec<Tenant>,
    /// Position of the sweep.
    hand: usize,
}

#[derive(Debug)]
pub(super) struct Tenant {
    print: u64,
    class: u64,
    idle_at: Timestamp,
    /// Bytes reserved for it in the budget.
    bytes: u64,
    state: State,
}

impl Tenant {
    pub(super) fn new(print: u64, limit: &Limit, decision: &Decision, state: State) -> Self {
        let bytes = TENANT_BYTES + heap_bytes(&state);
        Self { print, class: debt::class(decision), idle_at: limit.idle_at(&state), bytes, state }
    }
}

/// Bytes of one tenant besides its list: the tenant, its map entry, and room to grow.
const TENANT_BYTES: u64 = 4 * size_of::<Tenant>() as u64;

/// Bytes of the first allocation of an empty list (four entries of the larger kind) and of the
/// rate's state beside a block.
const FIRST_LIST_BYTES: u64 = 4 * 24 + size_of::<State>() as u64;

/// Whether a decision changes the state in place or on a copy that replaces it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Copied {
    No,
    Yes,
}

/// Passes fingerprints through, which are hashes already.
#[derive(Debug, Default)]
struct PrintHasher(u64);

impl Hasher for PrintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, print: u64) {
        // The map uses bits from both ends, and the shard index already used the top ones.
        self.0 = print.rotate_left(SHARD_BITS);
    }
}

impl Heap {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        let shards = (0..1 << SHARD_BITS).map(|_| Mutex::new(Shard::default())).collect();
        Self { shards, budget, losses: Losses::default() }
    }

    pub(super) fn shard_of(&self, print: u64) -> usize {
        (print >> (64 - SHARD_BITS)) as usize
    }

    pub(super) fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard])
    }

    /// Decides one operation. `None` if the key would need memory that is not available.
    pub(super) fn decide(&self, print: u64, lookup: &Lookup<'_, Limit>) -> Option<Decision> {
        let mut shard = self.lock(self.shard_of(print));
        self.sweep(&mut shard, print, lookup.now);
        let room = self.make_room(&mut shard, print, lookup, Copied::No)?;
        let mut state = shard.take(print);
        let decision = lookup.decide(&mut state);
        self.put(&mut shard, Tenant::new(print, lookup.algorithm, &decision, state));
        self.release(room);
        Some(decision)
    }

    /// Replaces the state of a key, unless the present one owes more or memory is not available.
    pub(super) fn replace(
        &self,
        print: u64,
        now: Timestamp,
        limit: &Limit,
        (state, decision): (State, &Decision),
    ) {
        let mut shard = self.lock(self.shard_of(print));
        self.sweep(&mut shard, print, now);
        let lookup = Lookup { algorithm: limit, now, op: Op::Force(1), clock: None };
        let left = |mut state: State| limit.decide(&mut state, now, Op::Read(0)).remaining;
        if left(shard.state(print)) <= left(state.clone()) {
            return;
        }
        let Some(room) = self.make_room(&mut shard, print, &lookup, Copied::No) else { return };
        self.put(&mut shard, Tenant::new(print, limit, decision, state));
        self.release(room);
    }

    /// Drops a few idle keys before one is added, so that idle keys do not accumulate.
    pub(super) fn sweep(&self, shard: &mut Shard, print: u64, now: Timestamp) {
        if shard.tenant(print).is_none() {
            shard.sweep(&self.budget, now);
        }
    }

    /// Reserves the memory that an operation on `print` may need, and evicts others if necessary.
    /// The caller releases the reservation once the state is put back.
    pub(super) fn make_room(
        &self,
        shard: &mut Shard,
        print: u64,
        lookup: &Lookup<'_, Limit>,
        copied: Copied,
    ) -> Option<u64> {
        if !matches!(lookup.op, Op::Take(1..) | Op::Force(1..) | Op::Block(_)) {
            return Some(0);
        }
        let (bytes, purpose) = match (shard.tenant(print), copied) {
            (Some(tenant), Copied::No) => (growth_bytes(&tenant.state), Purpose::KnownList),
            // A copy has no spare capacity: one more entry may double it.
            (Some(tenant), Copied::Yes) => {
                (heap_bytes(&tenant.state).max(FIRST_LIST_BYTES), Purpose::KnownList)
            }
            (None, _) => (TENANT_BYTES + FIRST_LIST_BYTES, Purpose::NewList),
        };
        while !self.budget.reserve(bytes, purpose) {
            match shard.forget_one(print, lookup.now, &self.budget) {
                Some(Some(class)) => self.losses.forget(class),
                Some(None) => {}
                // A denial adds nothing, so a key that is denied here is not decided on the shared
                // state.
                None => return shard.denies(print, lookup).then_some(0),
            }
        }
        Some(bytes)
    }

    /// Whether `print` holds this lease here, and not in the state shared by keys without room.
    pub(super) fn holds(&self, print: u64, lease: LeaseId) -> bool {
        let shard = self.lock(self.shard_of(print));
        let state = shard.tenant(print).map(|tenant| &tenant.state);
        matches!(state, Some(State::InFlight(state)) if state.holds(lease))
    }

    /// Puts a state back, unless it was and is absent, and updates its bytes in the budget.
    pub(super) fn put(&self, shard: &mut Shard, tenant: Tenant) {
        let (print, bytes) = (tenant.print, tenant.bytes);
        self.budget.add(bytes);
        if let Some(place) = shard.places.get(&print) {
            let before = std::mem::replace(&mut shard.tenants[*place], tenant);
            self.budget.release(before.bytes);
        } else if tenant.state == State::Absent {
            self.budget.release(bytes);
        } else {
            shard.places.insert(print, shard.tenants.len());
            shard.tenants.push(tenant);
        }
    }

    /// Releases the reservation of [`Heap::make_room`].
    pub(super) fn release(&self, room: u64) {
        self.budget.release(room);
    }

    /// Number of keys.
    pub(super) fn keys(&self) -> u64 {
        (0..self.shards.len()).map(|shard| self.lock(shard).tenants.len() as u64).sum()
    }
}

impl Shard {
    fn tenant(&self, print: u64) -> Option<&Tenant> {
        self.places.get(&print).map(|place| &self.tenants[*place])
    }

    /// Whether `print` is known and would be denied.
    fn denies(&self, print: u64, lookup: &Lookup<'_, Limit>) -> bool {
        self.tenant(print).is_some() && !lookup.decide(&mut self.state(print)).is_allowed()
    }

    /// A copy of the state of `print`.
    pub(super) fn state(&self, print: u64) -> State {
        self.tenant(print).map(|tenant| tenant.state.clone()).unwrap_or_default()
    }

    /// Removes and returns the state of `print`; the caller must put it back.
    fn take(&mut self, print: u64) -> State {
        match self.places.get(&print) {
            Some(place) => std::mem::take(&mut self.tenants[*place].state),
            None => State::Absent,
        }
    }

    /// Drops a few idle tenants.
    fn sweep(&mut self, budget: &Budget, now: Timestamp) {
        for _ in 0..SWEPT.min(self.tenants.len()) {
            self.hand = (self.hand + 1) % self.tenants.len();
            if self.tenants[self.hand].idle_at <= now {
                self.remove(self.hand, budget);
                if self.tenants.is_empty() {
                    return;
                }
            }
        }
    }

    /// Drops the tenant with the least debt other than `print`. `None` if all are being denied;
    /// otherwise the class of a live tenant that was evicted, or nothing for an idle one.
    fn forget_one(&mut self, print: u64, now: Timestamp, budget: &Budget) -> Option<Option<u64>> {
        let count = self.tenants.len();
        let start = self.hand;
        self.hand = if count == 0 { 0 } else { (start + 1) % count };
        // Samples the whole shard, because keys that were added together lie together.
        let stride = (count / NEIGHBOURS).max(1);
        let worth = |place: &usize| {
            let tenant = &self.tenants[*place];
            (tenant.idle_at > now, tenant.class, tenant.idle_at)
        };
        let place = (0..NEIGHBOURS.min(count))
            .map(|step| (start + step * stride) % count)
            .filter(|place| self.tenants[*place].print != print)
            .min_by_key(worth)?;
        match worth(&place) {
            (true, debt::DENYING, _) => None,
            (live, class, _) => {
                self.remove(place, budget);
                Some(live.then_some(class))
            }
        }
    }

    fn remove(&mut self, place: usize, budget: &Budget) {
        let tenant = self.tenants.swap_remove(place);
        self.places.remove(&tenant.print);
        if let Some(moved) = self.tenants.get(place) {
            self.places.insert(moved.print, place);
        }
        budget.release(tenant.bytes);
    }
}

fn heap_bytes(state: &State) -> u64 {
    match state {
        State::Blocking(blocking) => size_of::<State>() as u64 + heap_bytes(&blocking.rate),
        State::SlidingLog(log) => log.heap_bytes() as u64,
        State::InFlight(leases) => leases.heap_bytes() as u64,
        _ => 0,
    }
}

fn growth_bytes(state: &State) -> u64 {
    match state {
        State::Blocking(blocking) => growth_bytes(&blocking.rate),
        State::SlidingLog(log) => log.growth_bytes() as u64,
        State::InFlight(leases) => leases.growth_bytes() as u64,
        _ => FIRST_LIST_BYTES,
    }
}
