//! The locks of a batch: buckets of the tables, shards of the heap.

use tidegate_core::{Decision, Limit, State};

use super::Lookup;
use super::heap::{self, Copied, Heap, Tenant};
use super::slots::Locked;
use super::table::Table;
use super::together::{Batch, Obstacle, Part};
use crate::store::Charge;
use crate::sync::MutexGuard;

/// Attempts at one lock before all locks are released.
const SPINS: u32 = 64;

/// The buckets of one table that a batch has locked.
pub(super) struct Locks<
    'a,
    const N: usize,
    const SLOTS: usize,
    const STATE: usize,
    const WORDS: usize,
> {
    held: [Option<Held<'a, SLOTS, STATE, WORDS>>; N],
    count: usize,
}

struct Held<'a, const SLOTS: usize, const STATE: usize, const WORDS: usize> {
    shard: u32,
    bucket: u32,
    locked: Locked<'a, SLOTS, STATE, WORDS>,
}

impl<'a, const N: usize, const SLOTS: usize, const STATE: usize, const WORDS: usize>
    Locks<'a, N, SLOTS, STATE, WORDS>
{
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { held: [const { None }; N], count: 0 }
    }

    /// Locks the bucket of charge `i`; returns its index and the slot.
    #[inline(always)]
    pub(super) fn hold<const FLAGS: u64>(
        &mut self,
        table: &'a Table<SLOTS, STATE, WORDS, FLAGS>,
        batch: &Batch<'_, N>,
        i: usize,
    ) -> Result<(usize, usize), Obstacle> {
        let print = batch.prints[i];
        let (home, bucket, slot) = table.peek_slot(print).ok_or(Obstacle::Missing(i))?;
        let known = self.held[..self.count].iter().position(|held| {
            held.as_ref().is_some_and(|held| (held.shard, held.bucket) == (home.shard, bucket))
        });
        let held = match known {
            Some(held) => held,
            None => {
                let words = table.words(home.shard, bucket);
                let spun = (0..SPINS).find_map(|_| Locked::try_new(words));
                let locked = spun.ok_or(Obstacle::Busy)?;
                self.held[self.count] = Some(Held { shard: home.shard, bucket, locked });
                self.count += 1;
                self.count - 1
            }
        };
        let current = self.held[held].as_ref().is_some_and(|held| held.locked.print(slot) == print);
        if current && home.is_current() { Ok((held, slot)) } else { Err(Obstacle::Busy) }
    }

    pub(super) fn state(&self, held: usize, slot: usize) -> [u64; STATE] {
        match &self.held[held] {
            Some(held) if !held.locked.is_kept_free(slot) => held.locked.state(slot),
            _ => [0; STATE],
        }
    }

    /// Releases a slot that was reserved for a charge which was not made.
    pub(super) fn let_go(&mut self, held: usize, slot: usize) {
        if let Some(held) = &mut self.held[held]
            && held.locked.is_kept_free(slot)
        {
            held.locked.set_class(slot, 0);
        }
    }

    pub(super) fn write(&mut self, held: usize, slot: usize, state: [u64; STATE], class: u64) {
        let Some(Held { locked, .. }) = &mut self.held[held] else { return };
        if state == [0; STATE] && locked.is_kept_free(slot) {
            // Denied without a change of state, as by a limit of 0.
            return locked.set_class(slot, 0);
        }
        locked.set_state(slot, &state);
        locked.set_class(slot, class);
    }
}

/// The heap shards that a batch has locked, and the bytes it has reserved in them.
pub(super) struct HeapLocks<'a> {
    heap: &'a Heap,
    shards: Vec<(usize, MutexGuard<'a, heap::Shard>)>,
    reserved: u64,
}

impl<'a> HeapLocks<'a> {
    /// Locks in ascending order and before any table, so that no thread waits for a heap lock while
    /// holding a table lock.
    pub(super) fn new<const N: usize>(
        heap: &'a Heap,
        batch: &Batch<'_, N>,
    ) -> Result<Self, Obstacle> {
        let mut locks = Self { heap, shards: Vec::new(), reserved: 0 };
        let on_heap = |i: &usize| batch.parts[*i] == Part::Heap;
        let mut wanted: Vec<usize> = Vec::new();
        wanted.extend(
            (0..batch.charges.len()).filter(on_heap).map(|i| heap.shard_of(batch.prints[i])),
        );
        wanted.sort_unstable();
        wanted.dedup();
        locks.shards.extend(wanted.into_iter().map(|shard| (shard, heap.lock(shard))));
        for i in (0..batch.charges.len()).filter(on_heap) {
            let print = batch.prints[i];
            let shard = locks.shard(print).ok_or(Obstacle::Busy)?;
            heap.sweep(shard, print, batch.now);
        }
        for i in (0..batch.charges.len()).filter(on_heap) {
            let (print, Charge { limit, op, .. }) = (batch.prints[i], batch.charges[i]);
            let lookup = Lookup { algorithm: limit, now: batch.now, op, clock: None };
            let shard = locks.shard(print).ok_or(Obstacle::Busy)?;
            let room = heap.make_room(shard, print, &lookup, Copied::Yes);
            locks.reserved += room.ok_or(Obstacle::Missing(i))?;
        }
        Ok(locks)
    }

    fn shard(&mut self, print: u64) -> Option<&mut heap::Shard> {
        let wanted = self.heap.shard_of(print);
        self.shards.iter_mut().find(|(shard, _)| *shard == wanted).map(|(_, guard)| &mut **guard)
    }

    pub(super) fn state(&self, print: u64) -> State {
        let wanted = self.heap.shard_of(print);
        let shard = self.shards.iter().find(|(shard, _)| *shard == wanted);
        shard.map(|(_, guard)| guard.state(print)).unwrap_or_default()
    }

    pub(super) fn put(&mut self, print: u64, limit: &Limit, decision: &Decision, state: State) {
        let heap = self.heap;
        if let Some(shard) = self.shard(print) {
            heap.put(shard, Tenant::new(print, limit, decision, state));
        }
    }
}

impl Drop for HeapLocks<'_> {
    fn drop(&mut self) {
        self.heap.release(self.reserved);
    }
}
