//! Several charges at once: all of them, or none.
//!
//! Every bucket involved is locked, every charge is evaluated, and only then is anything written.
//! Locks are taken in ascending order, which rarely has to wait; a lock that is not free after a
//! short spin is not waited for but everything is let go and tried again, so nothing can deadlock,
//! and no request is refused that some order of requests would admit.

use std::array;
use std::hint::black_box;

use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use super::bucket::Locked;
use super::heap::{self, Copied, Heap, Tenant};
use super::packing::{Pack, is_narrow};
use super::table::{Change, Table};
use super::{MemoryStore, Question, packed, up_to_date};
use crate::clock::Clock;
use crate::store::{Charge, MAX_TOGETHER};
use crate::sync::{MutexGuard, lock, pause};

/// Attempts at one lock before everything is let go.
const SPINS: u32 = 64;
/// Times a key is given a slot that others take again, before it is decided on the shared state.
const MOST_ENSURED: u32 = 64;

/// Which part of the store a charge goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Heap,
    Narrow,
    Wide,
    Overflow,
}

/// What has to happen before the charges can be held.
enum Obstacle {
    /// A lock was not free, or a table was just growing.
    Busy,
    /// This charge's key has no slot.
    Missing(usize),
}

/// The charges of one request, in the order given.
struct Batch<'a, const N: usize> {
    now: Timestamp,
    charges: &'a [Charge<'a>],
    prints: [u64; N],
    parts: [Part; N],
    /// The nearest earlier charge on the same state.
    same: [Option<usize>; N],
}

/// What a charge was decided on and what it leaves.
#[derive(Clone)]
enum Evaluated {
    Words(Change<2>),
    State(State),
}

impl MemoryStore {
    /// Decides up to [`MAX_TOGETHER`] charges all or nothing: if one is denied, none is charged. A
    /// key may be named twice; the second charge sees the first. True if all were allowed; the
    /// decisions come in order.
    ///
    /// # Panics
    /// If there are more than [`MAX_TOGETHER`] charges.
    pub fn decide_together(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        each: impl FnMut(Decision),
    ) -> bool {
        match charges.len() {
            0..=2 => self.together::<2>(now, charges, each),
            3..=4 => self.together::<4>(now, charges, each),
            5..=MAX_TOGETHER => self.together::<MAX_TOGETHER>(now, charges, each),
            many => panic!("{many} charges together, at most {MAX_TOGETHER} are possible"),
        }
    }

    fn together<const N: usize>(
        &self,
        now: Timestamp,
        charges: &[Charge<'_>],
        each: impl FnMut(Decision),
    ) -> bool {
        let mut batch = self.batch::<N>(now, charges);
        let mut order: [usize; N] = array::from_fn(|i| i);
        order[..charges.len()].sort_unstable_by_key(|i| (batch.parts[*i], batch.prints[*i]));
        let order = &order[..charges.len()];
        let (mut attempt, mut ensured) = (0, 0);
        loop {
            match self.attempt(&batch, order) {
                Ok((allowed, decisions)) => {
                    let overflowed = batch.parts.iter().filter(|part| **part == Part::Overflow);
                    self.count_overflowed(overflowed.count());
                    decisions.into_iter().flatten().for_each(each);
                    return allowed;
                }
                Err(Obstacle::Busy) => {
                    pause(attempt);
                    attempt += 1;
                }
                Err(Obstacle::Missing(i)) => {
                    let print = batch.prints[i];
                    ensured += 1;
                    let placed = ensured <= MOST_ENSURED
                        && match batch.parts[i] {
                            Part::Narrow => self.narrow.ensure(print, now),
                            Part::Wide => self.wide.ensure(print, now),
                            Part::Heap | Part::Overflow => false,
                        };
                    if !placed {
                        batch.overflow(i);
                    }
                }
            }
        }
    }

    #[inline]
    fn batch<'a, const N: usize>(&self, now: Timestamp, charges: &'a [Charge<'a>]) -> Batch<'a, N> {
        let mut batch =
            Batch { now, charges, prints: [0; N], parts: [Part::Heap; N], same: [None; N] };
        let mut touched = 0;
        for (i, charge) in charges.iter().enumerate() {
            let print = self.print(charge.key);
            batch.prints[i] = print;
            batch.parts[i] = match charge.limit {
                Limit::Bucket(bucket) => {
                    self.bring_home(print, now, bucket);
                    if is_narrow(bucket) { Part::Narrow } else { Part::Wide }
                }
                Limit::FixedWindow(_) | Limit::SlidingWindow(_) => Part::Wide,
                _ => Part::Heap,
            };
            touched ^= self.read_ahead(charge.limit, print);
            batch.same[i] = (0..i).rev().find(|j| batch.prints[*j] == print);
        }
        black_box(touched);
        batch
    }

    /// Locks, evaluates, writes; or says what stood in the way, with nothing locked or written.
    fn attempt<const N: usize>(
        &self,
        batch: &Batch<'_, N>,
        order: &[usize],
    ) -> Result<(bool, [Option<Decision>; N]), Obstacle> {
        let mut narrow = Locks::<N, 4, 1, 8>::new();
        let mut wide = Locks::<N, 5, 2, 16>::new();
        let mut heap = HeapLocks::new(&self.heap, batch)?;
        let mut overflow = None;
        let mut slots = [None; N];
        for &i in order {
            slots[i] = match batch.parts[i] {
                Part::Heap => None,
                Part::Narrow => narrow.hold(&self.narrow, batch, i)?,
                Part::Wide => wide.hold(&self.wide, batch, i)?,
                Part::Overflow => {
                    overflow.get_or_insert_with(|| lock(&self.overflow));
                    None
                }
            };
        }
        let before = |i: usize| match (batch.parts[i], slots[i]) {
            (Part::Narrow, Some((held, slot))) => words([narrow.state(held, slot)[0], 0]),
            (Part::Wide, Some((held, slot))) => words(wide.state(held, slot)),
            (Part::Narrow | Part::Wide, None) => words([0; 2]),
            (Part::Heap, _) => Evaluated::State(heap.state(batch.prints[i])),
            (Part::Overflow, _) => {
                let scope = batch.charges[i].key.scope;
                Evaluated::State(overflow.as_ref().map(|o| o.state(scope)).unwrap_or_default())
            }
        };
        let now = batch.up_to_date(&before, self.clock.as_ref());
        let (allowed, decisions, after) = batch.evaluate(now, before);
        for (i, after) in after.into_iter().enumerate() {
            let Some(decision) = &decisions[i] else { continue };
            let Some(after) = after else {
                match (batch.parts[i], slots[i]) {
                    (Part::Narrow, Some((held, slot))) => narrow.let_go(held, slot),
                    (Part::Wide, Some((held, slot))) => wide.let_go(held, slot),
                    _ => {}
                }
                continue;
            };
            match (after, batch.parts[i], slots[i]) {
                (Evaluated::Words(change), Part::Narrow, Some((held, slot))) => {
                    narrow.write(held, slot, [change.state[0]], change.class);
                }
                (Evaluated::Words(change), Part::Wide, Some((held, slot))) => {
                    wide.write(held, slot, change.state, change.class);
                }
                (Evaluated::State(state), Part::Heap, _) => {
                    heap.put(batch.prints[i], batch.charges[i].limit, decision, state);
                }
                (Evaluated::State(state), Part::Overflow, _) => {
                    let charge = &batch.charges[i];
                    if let Some(overflow) = &mut overflow {
                        overflow.put(charge.key.scope, charge.limit, state, batch.now);
                    }
                }
                _ => {}
            }
        }
        Ok((allowed, decisions))
    }
}

fn words(state: [u64; 2]) -> Evaluated {
    Evaluated::Words(Change { state, class: 0 })
}

impl<const N: usize> Batch<'_, N> {
    /// Decides all charges in order; if one is denied, decides again what each leaves then.
    fn evaluate(
        &self,
        now: Timestamp,
        before: impl Fn(usize) -> Evaluated,
    ) -> (bool, [Option<Decision>; N], [Option<Evaluated>; N]) {
        let mut decisions = [None; N];
        let mut after: [Option<Evaluated>; N] = array::from_fn(|_| None);
        let mut allowed = true;
        for (i, charge) in self.charges.iter().enumerate() {
            let start = self.same[i].and_then(|j| after[j].clone()).unwrap_or_else(|| before(i));
            let (decision, left) = decide(charge.limit, start, now, charge.op);
            allowed &= decision.is_allowed();
            (decisions[i], after[i]) = (Some(decision), Some(left));
        }
        if !allowed {
            after = self.evaluate_denied(now, before, &mut decisions);
        }
        (allowed, decisions, after)
    }

    /// Nothing is charged. A limit that denied leaves what its own denial leaves (a repair, a
    /// counted denial); one that would have allowed leaves nothing and says how it stands.
    #[cold]
    fn evaluate_denied(
        &self,
        now: Timestamp,
        before: impl Fn(usize) -> Evaluated,
        decisions: &mut [Option<Decision>; N],
    ) -> [Option<Evaluated>; N] {
        let mut base: [Option<Evaluated>; N] = array::from_fn(|_| None);
        let mut after: [Option<Evaluated>; N] = array::from_fn(|_| None);
        for (i, charge) in self.charges.iter().enumerate() {
            let start = self.same[i].and_then(|j| base[j].clone()).unwrap_or_else(|| before(i));
            base[i] = Some(start.clone());
            if decisions[i].is_some_and(|decision| decision.is_allowed()) {
                let op = match charge.op {
                    Op::Take(cost) | Op::Read(cost) => Op::Read(cost),
                    _ => Op::Take(0),
                };
                decisions[i] = Some(decide(charge.limit, start, now, op).0);
                continue;
            }
            let (decision, left) = decide(charge.limit, start, now, charge.op);
            // Allowed now, if only an earlier charge on the same key stood in its way.
            if !decision.is_allowed() {
                base[i] = Some(left.clone());
                (decisions[i], after[i]) = (Some(decision), Some(left));
            }
        }
        after
    }

    /// The time to decide at: `now`, or a fresh one if some state was left after it.
    fn up_to_date(&self, before: &impl Fn(usize) -> Evaluated, clock: Option<&Clock>) -> Timestamp {
        let limits = self.charges.iter().map(|charge| charge.limit).enumerate();
        let latest = limits.map(|(i, limit)| not_before(limit, &before(i))).max();
        up_to_date(self.now, latest.unwrap_or_default(), clock)
    }

    /// Decides a charge, and all others on its key, on the state that is shared by all who found
    /// no room.
    fn overflow(&mut self, i: usize) {
        for j in 0..self.charges.len() {
            if self.prints[j] == self.prints[i] {
                self.parts[j] = Part::Overflow;
            }
        }
        for j in 0..self.charges.len() {
            if self.parts[j] == Part::Overflow {
                let scope = self.charges[j].key.scope;
                self.same[j] = (0..j).rev().find(|k| {
                    self.parts[*k] == Part::Overflow && self.charges[*k].key.scope == scope
                });
            }
        }
    }
}

#[inline(always)]
fn not_before(limit: &Limit, state: &Evaluated) -> Timestamp {
    match (limit, state) {
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) if is_narrow(bucket) => {
            bucket.not_before(&bucket.unpack([state[0]]))
        }
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) => {
            bucket.not_before(&bucket.unpack(*state))
        }
        (Limit::FixedWindow(window), Evaluated::Words(Change { state, .. })) => {
            window.not_before(&window.unpack(*state))
        }
        (Limit::SlidingWindow(window), Evaluated::Words(Change { state, .. })) => {
            window.not_before(&window.unpack(*state))
        }
        (limit, Evaluated::State(state)) => limit.not_before(state),
        (_, Evaluated::Words(_)) => Timestamp::EPOCH,
    }
}

#[inline(always)]
fn decide(limit: &Limit, before: Evaluated, now: Timestamp, op: Op) -> (Decision, Evaluated) {
    match (limit, before) {
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) if is_narrow(bucket) => {
            let question = Question { algorithm: bucket, now, op, clock: None };
            let (decision, Change { state: [word], class }) = packed::<_, 1>(&question, [state[0]]);
            (decision, Evaluated::Words(Change { state: [word, 0], class }))
        }
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) => {
            let question = Question { algorithm: bucket, now, op, clock: None };
            let (decision, change) = packed::<_, 2>(&question, state);
            (decision, Evaluated::Words(change))
        }
        (Limit::FixedWindow(window), Evaluated::Words(Change { state, .. })) => {
            let question = Question { algorithm: window, now, op, clock: None };
            let (decision, change) = packed(&question, state);
            (decision, Evaluated::Words(change))
        }
        (Limit::SlidingWindow(window), Evaluated::Words(Change { state, .. })) => {
            let question = Question { algorithm: window, now, op, clock: None };
            let (decision, change) = packed(&question, state);
            (decision, Evaluated::Words(change))
        }
        (limit, before) => {
            let mut state = match before {
                Evaluated::State(state) => state,
                Evaluated::Words(_) => State::Absent,
            };
            let decision = limit.decide(&mut state, now, op);
            (decision, Evaluated::State(state))
        }
    }
}

/// The buckets of one table that a batch has locked.
struct Locks<'a, const N: usize, const SLOTS: usize, const STATE: usize, const WORDS: usize> {
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
    fn new() -> Self {
        Self { held: [const { None }; N], count: 0 }
    }

    /// Locks the bucket of charge `i`, and says which it is and which slot in it.
    #[inline(always)]
    fn hold<const FLAGS: u64>(
        &mut self,
        table: &'a Table<SLOTS, STATE, WORDS, FLAGS>,
        batch: &Batch<'_, N>,
        i: usize,
    ) -> Result<Option<(usize, usize)>, Obstacle> {
        let print = batch.prints[i];
        let (home, bucket, slot) = table.glimpse(print).ok_or(Obstacle::Missing(i))?;
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
        if current && home.is_current() { Ok(Some((held, slot))) } else { Err(Obstacle::Busy) }
    }

    fn state(&self, held: usize, slot: usize) -> [u64; STATE] {
        self.held[held].as_ref().map_or([0; STATE], |held| held.locked.state(slot))
    }

    /// Nothing was charged: a slot that was kept free for this is anybody's again.
    fn let_go(&mut self, held: usize, slot: usize) {
        if let Some(held) = &mut self.held[held]
            && held.locked.is_kept_free(slot)
        {
            held.locked.set_class(slot, 0);
        }
    }

    fn write(&mut self, held: usize, slot: usize, state: [u64; STATE], class: u64) {
        if let Some(held) = &mut self.held[held] {
            held.locked.set_state(slot, &state);
            held.locked.set_class(slot, class);
        }
    }
}

/// The heap shards that a batch has locked, and the bytes it has reserved there.
struct HeapLocks<'a> {
    heap: &'a Heap,
    shards: Vec<(usize, MutexGuard<'a, heap::Shard>)>,
    reserved: u64,
}

impl<'a> HeapLocks<'a> {
    /// Locks in ascending order, before any table: nobody waits for these while holding those.
    fn new<const N: usize>(heap: &'a Heap, batch: &Batch<'_, N>) -> Result<Self, Obstacle> {
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
            let (print, Charge { limit, op, .. }) = (batch.prints[i], batch.charges[i]);
            let question = Question { algorithm: limit, now: batch.now, op, clock: None };
            let shard = locks.shard(print).ok_or(Obstacle::Busy)?;
            let room = heap.make_room(shard, print, &question, Copied::Yes);
            locks.reserved += room.ok_or(Obstacle::Missing(i))?;
        }
        Ok(locks)
    }

    fn shard(&mut self, print: u64) -> Option<&mut heap::Shard> {
        let wanted = self.heap.shard_of(print);
        self.shards.iter_mut().find(|(shard, _)| *shard == wanted).map(|(_, guard)| &mut **guard)
    }

    fn state(&self, print: u64) -> State {
        let wanted = self.heap.shard_of(print);
        let shard = self.shards.iter().find(|(shard, _)| *shard == wanted);
        shard.map(|(_, guard)| guard.state(print)).unwrap_or_default()
    }

    fn put(&mut self, print: u64, limit: &Limit, decision: &Decision, state: State) {
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
