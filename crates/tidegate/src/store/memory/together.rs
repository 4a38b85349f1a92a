//! Several charges at once, all or nothing.
//!
//! The batch locks every bucket involved, evaluates every charge, and only then writes. It takes
//! locks in ascending order, which rarely has to wait. If a lock is not free after a short spin, it
//! releases all locks and tries again; so batches cannot deadlock, and no request is denied that
//! some order of requests would admit.

use std::array;
use std::hint::black_box;

use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use super::MemoryStore;
use super::locks::{HeapLocks, Locks};
use super::lookup::{Lookup, packed, up_to_date};
use super::packing::{Pack, is_narrow};
use super::table::Change;
use crate::clock::Clock;
use crate::store::{Charge, MAX_TOGETHER};
use crate::sync::{lock, pause};

/// Attempts to give a key a slot that other threads take again, before it is decided on the shared
/// state.
const MOST_ENSURED: u32 = 64;

/// The part of the store that a charge goes to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Heap,
    Narrow,
    Wide,
    Overflow,
}

/// Why a batch could not lock its charges.
pub(super) enum Obstacle {
    /// A lock was not free, or a table was growing.
    Busy,
    /// This charge's key has no slot.
    Missing(usize),
}

/// The charges of one request, in the order given.
pub(super) struct Batch<'a, const N: usize> {
    pub(super) now: Timestamp,
    /// The store's clock, for charges that are decided by wall time.
    clock: Option<&'a Clock>,
    pub(super) charges: &'a [Charge<'a>],
    pub(super) prints: [u64; N],
    pub(super) parts: [Part; N],
    /// The nearest earlier charge on the same state.
    same: [Option<usize>; N],
}

/// The state that a charge was decided on and the state it leaves.
#[derive(Clone)]
enum Evaluated {
    Words(Change<2>),
    State(State),
}

impl MemoryStore {
    /// Decides up to [`MAX_TOGETHER`] charges all or nothing: if one is denied, none is charged. A
    /// key may occur twice; the second charge sees the first. Returns true if all were allowed; the
    /// decisions are in order.
    ///
    /// # Panics
    /// If there are more than [`MAX_TOGETHER`] charges.
    #[doc(hidden)]
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
            many => panic!("{many} charges together; the maximum is {MAX_TOGETHER}"),
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
            let attempt_made = match self.attempt_narrow(&batch, order) {
                Ok(None) => self.attempt(&batch, order),
                Ok(Some(decisions)) => Ok((true, decisions)),
                Err(obstacle) => Err(obstacle),
            };
            match attempt_made {
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
                            Part::Wide => self.wide.ensure(print, self.past(now)),
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
    fn batch<'a, const N: usize>(
        &'a self,
        now: Timestamp,
        charges: &'a [Charge<'a>],
    ) -> Batch<'a, N> {
        let (prints, parts, same) = ([0; N], [Part::Heap; N], [None; N]);
        let mut batch = Batch { now, clock: self.clock.as_ref(), charges, prints, parts, same };
        let mut touched = 0;
        for (i, charge) in charges.iter().enumerate() {
            let print = self.print(charge.key);
            batch.prints[i] = print;
            batch.parts[i] = match charge.limit {
                Limit::Bucket(bucket) => {
                    self.move_to_current_table(print, now, bucket);
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

    /// Fast path for the most common batch: buckets of different keys that all allow. `None` for
    /// other batches, or if one denies.
    fn attempt_narrow<const N: usize>(
        &self,
        batch: &Batch<'_, N>,
        order: &[usize],
    ) -> Result<Option<[Option<Decision>; N]>, Obstacle> {
        let simple = |i: &usize| batch.parts[*i] == Part::Narrow && batch.same[*i].is_none();
        if !order.iter().all(simple) {
            return Ok(None);
        }
        let mut locks = Locks::<N, 4, 1, 8>::new();
        let mut slots = [(0, 0); N];
        for &i in order {
            slots[i] = locks.hold(&self.narrow, batch, i)?;
        }
        let mut decisions = [None; N];
        let mut changes = [Change { state: [0], class: 0 }; N];
        for (i, charge) in batch.charges.iter().enumerate() {
            let Limit::Bucket(bucket) = charge.limit else { return Ok(None) };
            let words = locks.state(slots[i].0, slots[i].1);
            if bucket.is_ahead(&bucket.unpack(words), batch.now) {
                return Ok(None);
            }
            let lookup = Lookup { algorithm: bucket, now: batch.now, op: charge.op, clock: None };
            let (decision, change) = packed::<_, 1>(&lookup, words);
            if !decision.is_allowed() {
                return Ok(None);
            }
            (decisions[i], changes[i]) = (Some(decision), change);
        }
        for (change, (held, slot)) in changes.iter().zip(slots).take(batch.charges.len()) {
            locks.write(held, slot, change.state, change.class);
        }
        Ok(Some(decisions))
    }

    /// Locks, evaluates and writes; on an obstacle nothing is locked or written.
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
                Part::Narrow => Some(narrow.hold(&self.narrow, batch, i)?),
                Part::Wide => Some(wide.hold(&self.wide, batch, i)?),
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
                        let past = self.past(batch.now);
                        overflow.put(charge.key.scope, charge.limit, state, past);
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
    /// The time a charge is decided at when the caller's clock shows `now`.
    fn time_of(&self, charge: &Charge<'_>, now: Timestamp) -> Timestamp {
        match self.clock {
            Some(clock) if charge.options.is_calendar => clock.wall(now),
            _ => now,
        }
    }

    /// Decides all charges in order; if one is denied, computes what each leaves in that case.
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
            let at = self.time_of(charge, now);
            let (decision, left) = decide(charge.limit, start, at, charge.op);
            allowed &= decision.is_allowed();
            (decisions[i], after[i]) = (Some(decision), Some(left));
        }
        if !allowed {
            after = self.evaluate_denied(now, before, &mut decisions);
        }
        (allowed, decisions, after)
    }

    /// Nothing is charged. A limit that denied keeps what its denial writes (a repair, a counted
    /// denial); one that would have allowed writes nothing and reports its state.
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
            let now = self.time_of(charge, now);
            if decisions[i].is_some_and(|decision| decision.is_allowed()) {
                let op = match charge.op {
                    Op::Take(cost) | Op::Read(cost) => Op::Read(cost),
                    _ => Op::Take(0),
                };
                decisions[i] = Some(decide(charge.limit, start, now, op).0);
                continue;
            }
            let (decision, left) = decide(charge.limit, start, now, charge.op);
            // Allowed now, if only an earlier charge on the same key caused the denial.
            if !decision.is_allowed() {
                base[i] = Some(left.clone());
                (decisions[i], after[i]) = (Some(decision), Some(left));
            }
        }
        after
    }

    /// The time to decide at: `now`, or a new reading if some state is later.
    fn up_to_date(&self, before: &impl Fn(usize) -> Evaluated, clock: Option<&Clock>) -> Timestamp {
        // A calendar period that starts next is kept, so the clock need not be read again.
        let charges = self.charges.iter().enumerate().filter(|(_, it)| !it.options.is_calendar);
        let mut ahead = charges.map(|(i, it)| is_ahead(it.limit, &before(i), self.now));
        up_to_date(self.now, ahead.any(|ahead| ahead), clock)
    }

    /// Decides a charge, and all others on its key, on the state shared by keys without room.
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
fn is_ahead(limit: &Limit, state: &Evaluated, now: Timestamp) -> bool {
    match (limit, state) {
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) if is_narrow(bucket) => {
            bucket.is_ahead(&bucket.unpack([state[0]]), now)
        }
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) => {
            bucket.is_ahead(&bucket.unpack(*state), now)
        }
        (Limit::FixedWindow(window), Evaluated::Words(Change { state, .. })) => {
            window.is_ahead(&window.unpack(*state), now)
        }
        (Limit::SlidingWindow(window), Evaluated::Words(Change { state, .. })) => {
            window.is_ahead(&window.unpack(*state), now)
        }
        (limit, Evaluated::State(state)) => limit.is_ahead(state, now),
        (_, Evaluated::Words(_)) => false,
    }
}

#[inline(always)]
fn decide(limit: &Limit, before: Evaluated, now: Timestamp, op: Op) -> (Decision, Evaluated) {
    match (limit, before) {
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) if is_narrow(bucket) => {
            let lookup = Lookup { algorithm: bucket, now, op, clock: None };
            let (decision, Change { state: [word], class }) = packed::<_, 1>(&lookup, [state[0]]);
            (decision, Evaluated::Words(Change { state: [word, 0], class }))
        }
        (Limit::Bucket(bucket), Evaluated::Words(Change { state, .. })) => {
            let lookup = Lookup { algorithm: bucket, now, op, clock: None };
            let (decision, change) = packed::<_, 2>(&lookup, state);
            (decision, Evaluated::Words(change))
        }
        (Limit::FixedWindow(window), Evaluated::Words(Change { state, .. })) => {
            let lookup = Lookup { algorithm: window, now, op, clock: None };
            let (decision, change) = packed(&lookup, state);
            (decision, Evaluated::Words(change))
        }
        (Limit::SlidingWindow(window), Evaluated::Words(Change { state, .. })) => {
            let lookup = Lookup { algorithm: window, now, op, clock: None };
            let (decision, change) = packed(&lookup, state);
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
