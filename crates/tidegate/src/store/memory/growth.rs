//! Finds room for a new key, and grows shards.

use tidegate_core::Timestamp;

use super::budget::Purpose;
use super::debt;
use super::slots::{Locked, MAX_REACH};
use super::table::{CHUNK, FreeSlot, Growth, Home, Table};
use crate::sync::Ordering;

/// The reach of new keys once a shard cannot grow, so that an attacker's keys cannot make every
/// lookup long.
const CAPPED_REACH: u32 = 3;
/// Rows that one growth may add beyond those already touched. A row is up to a few hundred KiB of
/// fresh memory, and its page faults are most of the longest insert.
const ROWS_AT_A_TIME: u32 = 2;

/// A live slot, removed while its shard is rebuilt.
#[derive(Clone, Copy)]
struct Tenant<const STATE: usize> {
    print: u64,
    class: u64,
    state: [u64; STATE],
}

impl<const SLOTS: usize, const STATE: usize, const WORDS: usize, const LATEST_FLAGS: u64>
    Table<SLOTS, STATE, WORDS, LATEST_FLAGS>
{
    /// A slot for a key at `home`, whose bucket is locked: a free or idle one, or that of the key
    /// with the least debt.
    pub(super) fn find_slot<'a>(
        &'a self,
        home: Home<'_>,
        at_home: &mut Locked<'a, SLOTS, STATE, WORDS>,
        now: Timestamp,
    ) -> FreeSlot<'a, SLOTS, STATE, WORDS> {
        let idle_below = Self::idle_below(now);
        let shard = &self.shards[home.shard as usize];
        if let Some(slot) = at_home.vacancy(idle_below) {
            if at_home.print(slot) == 0 {
                shard.used.fetch_add(1, Ordering::Relaxed);
            }
            return FreeSlot::AtHome(slot);
        }
        let capped = shard.capped.load(Ordering::Relaxed);
        let last = shard.buckets.load(Ordering::Relaxed) - 1 - home.bucket;
        let furthest = last.min(if capped { CAPPED_REACH } else { MAX_REACH });
        for distance in 1..=furthest {
            let locked = self.lock(home.shard, home.bucket + distance);
            if let Some(slot) = locked.vacancy(idle_below) {
                if locked.print(slot) == 0 {
                    shard.used.fetch_add(1, Ordering::Relaxed);
                }
                at_home.extend_reach(distance);
                return FreeSlot::Away(locked, slot);
            }
        }
        match capped {
            false => FreeSlot::Crowded,
            true => self.evict(home, at_home, furthest),
        }
    }

    /// Evicts the key with the least debt, and of several the one that is idle soonest.
    fn evict<'a>(
        &'a self,
        home: Home<'_>,
        at_home: &mut Locked<'a, SLOTS, STATE, WORDS>,
        furthest: u32,
    ) -> FreeSlot<'a, SLOTS, STATE, WORDS> {
        let mut away: Option<Locked<'a, SLOTS, STATE, WORDS>> = None;
        let mut best = (debt::DENYING, u64::MAX);
        let mut choice = None;
        for distance in 0..=furthest {
            let next = (distance > 0).then(|| self.lock(home.shard, home.bucket + distance));
            let bucket = next.as_ref().unwrap_or(at_home);
            let owed = |slot: usize| (bucket.class(slot), bucket.state(slot)[0]);
            let least = (0..SLOTS).map(|slot| (owed(slot), slot)).min();
            if let Some((owed, slot)) = least
                && owed.0 < debt::DENYING
                && owed < best
            {
                (best, choice) = (owed, Some((distance, slot)));
                away = next;
            }
        }
        let Some((distance, slot)) = choice else { return FreeSlot::AllDenying };
        self.losses.forget(best.0);
        match away {
            Some(locked) => {
                at_home.extend_reach(distance);
                FreeSlot::Away(locked, slot)
            }
            None => FreeSlot::AtHome(slot),
        }
    }

    /// Rebuilds the shard when four fifths of its slots are used.
    pub(super) fn grow_if_full(&self, home: Home<'_>, now: Timestamp) {
        let shard = &self.shards[home.shard as usize];
        let slots = u64::from(shard.buckets.load(Ordering::Relaxed)) * SLOTS as u64;
        let used = u64::from(shard.used.load(Ordering::Relaxed));
        if used * 5 > slots * 4 && !shard.capped.load(Ordering::Relaxed) {
            self.grow(home, now, Growth::Full);
        }
    }

    /// Rebuilds a shard without its idle keys, and enlarges it if needed, unless another thread
    /// just did. All its buckets are locked meanwhile.
    #[cold]
    pub(super) fn grow(&self, home: Home<'_>, now: Timestamp, growth: Growth) {
        let shard = &self.shards[home.shard as usize];
        let mut locked = vec![self.lock(home.shard, 0)];
        let buckets = shard.buckets.load(Ordering::Relaxed);
        if !home.is_current() || shard.capped.load(Ordering::Relaxed) {
            return;
        }
        locked.reserve(buckets as usize);
        locked.extend((1..buckets).map(|bucket| self.lock(home.shard, bucket)));
        let tenants = Self::clear_out(&mut locked, now);
        let crowded = tenants.len() as u64 * 5 > u64::from(buckets) * SLOTS as u64 * 3;
        let mut size = buckets;
        if crowded || growth == Growth::Needed {
            size = self.allow(buckets + (buckets / 16).next_multiple_of(CHUNK).max(CHUNK), buckets);
            shard.capped.store(size == buckets, Ordering::Relaxed);
        }
        loop {
            locked.extend((locked.len() as u32..size).map(|bucket| self.lock(home.shard, bucket)));
            if self.settle(&mut locked, &tenants) {
                break;
            }
            let larger = self.allow(size + CHUNK, size);
            if larger == size {
                shard.capped.store(true, Ordering::Relaxed);
                self.settle_most(&mut locked, &tenants);
                break;
            }
            size = larger;
        }
        let used = locked.iter().map(|bucket| (0..SLOTS).filter(|s| bucket.print(*s) != 0).count());
        shard.used.store(used.sum::<usize>() as u32, Ordering::Relaxed);
        shard.buckets.store(size, Ordering::Relaxed);
        self.publish_homes(home.shard, Self::homes_of(size));
    }

    /// How many of the wanted buckets a shard with `had` buckets may get.
    fn allow(&self, wanted: u32, had: u32) -> u32 {
        let wanted_rows = wanted / CHUNK;
        loop {
            let rows = self.rows.load(Ordering::Relaxed);
            let most = (rows + ROWS_AT_A_TIME).min(self.most_rows);
            let granted = wanted_rows.min(most);
            if granted <= rows {
                return (granted * CHUNK).max(had);
            }
            let bytes = u64::from(granted - rows) * self.bytes_per_row();
            if !self.budget.reserve(bytes, Purpose::Table) {
                return (rows.min(wanted_rows) * CHUNK).max(had);
            }
            let taken =
                self.rows.compare_exchange(rows, granted, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                return granted * CHUNK;
            }
            self.budget.release(bytes);
        }
    }

    /// Empties the buckets and returns the live slots.
    fn clear_out(
        locked: &mut [Locked<'_, SLOTS, STATE, WORDS>],
        now: Timestamp,
    ) -> Vec<Tenant<STATE>> {
        let idle_below = Self::idle_below(now);
        let mut tenants = Vec::with_capacity(locked.len() * SLOTS);
        for bucket in locked {
            for slot in 0..SLOTS {
                let (print, state) = (bucket.print(slot), bucket.state(slot));
                if print != 0 && state[0] > idle_below {
                    tenants.push(Tenant { print, class: bucket.class(slot), state });
                }
            }
            bucket.clear();
        }
        tenants
    }

    /// Puts all tenants into empty buckets; false if some found no room.
    ///
    /// Fills home buckets first, which leaves fewer keys outside of theirs than insertion in order
    /// would.
    fn settle(
        &self,
        locked: &mut [Locked<'_, SLOTS, STATE, WORDS>],
        tenants: &[Tenant<STATE>],
    ) -> bool {
        let homes = Self::homes_of(locked.len() as u32);
        let mut away = Vec::new();
        for tenant in tenants {
            let home = Self::home_among(tenant.print, homes) as usize;
            match locked[home].find(0) {
                Some(slot) => locked[home].occupy(slot, tenant.print, tenant.class, &tenant.state),
                None => away.push((home, tenant)),
            }
        }
        for (home, tenant) in away {
            if !put_near(locked, home, tenant) {
                locked.iter_mut().for_each(Locked::clear);
                return false;
            }
        }
        true
    }

    /// Like [`Self::settle`] where the shard cannot grow: keys without room are evicted and
    /// counted.
    fn settle_most(
        &self,
        locked: &mut [Locked<'_, SLOTS, STATE, WORDS>],
        tenants: &[Tenant<STATE>],
    ) {
        let homes = Self::homes_of(locked.len() as u32);
        // The largest debts first, so that the keys left over owe the least.
        let mut order: Vec<&Tenant<STATE>> = tenants.iter().collect();
        order.sort_by_key(|tenant| std::cmp::Reverse((tenant.class, tenant.state[0])));
        for tenant in order {
            let home = Self::home_among(tenant.print, homes) as usize;
            match locked[home].find(0) {
                Some(slot) => locked[home].occupy(slot, tenant.print, tenant.class, &tenant.state),
                None if put_near(locked, home, tenant) => {}
                None => self.losses.forget(tenant.class),
            }
        }
    }
}

/// Puts a tenant into the nearest free slot behind its home.
fn put_near<const SLOTS: usize, const STATE: usize, const WORDS: usize>(
    locked: &mut [Locked<'_, SLOTS, STATE, WORDS>],
    home: usize,
    tenant: &Tenant<STATE>,
) -> bool {
    let last = (home + MAX_REACH as usize).min(locked.len() - 1);
    for index in home + 1..=last {
        if let Some(slot) = locked[index].find(0) {
            locked[index].occupy(slot, tenant.print, tenant.class, &tenant.state);
            locked[home].extend_reach((index - home) as u32);
            return true;
        }
    }
    false
}
