//! The sliding log: every admission with its time, an exact rolling window.
//!
//! # Idea
//! The state records when each unit was admitted; a request passes if fewer units than the limit
//! were admitted within the last window. An entry leaves the window when it is exactly one window
//! old.
//!
//! # Promise
//! Any rolling window admits at most the limit. No other algorithm of this crate promises that.
//!
//! # State
//! One entry of 16 bytes per admission (admissions of the same microsecond share one), up to
//! `limit` entries: at 10,000 a minute, 160 kB per active key.
//!
//! # When to use, when not
//! Small limits that must be exact: five password resets an hour, an audit trail. Not above a few
//! thousand: [`SlidingLog::new`] refuses more than 10,000.
//!
//! # Reference
//! The sorted-set limiter known from Redis, except that expired entries are pruned before counting
//! and a denial writes nothing.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::algorithm::Algorithm;
use crate::decision::{Decision, MAX_COST, Op, Outcome};
use crate::explain::{Detail, Explanation};
use crate::invalid::InvalidLimit;
use crate::rate::check_period;
use crate::time::{Span, Timestamp};

/// The configured numbers of a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u64,
    length: u64,
}

/// Admissions, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlidingLogState {
    entries: VecDeque<Entry>,
    /// The sum of all weights, so that a decision need not add up the whole log.
    total: u64,
}

/// Units admitted at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Microseconds since the epoch.
    pub at: u64,
    /// Units.
    pub weight: u64,
}

/// The state as seen from one instant.
struct Seen {
    /// Number of entries that have left the window.
    expired: usize,
    /// Units within the window.
    sum: u64,
    /// Some entries are later than now; they are treated as admitted now.
    future: bool,
}

impl SlidingLog {
    /// The largest limit of [`SlidingLog::new`].
    pub const MAX: u64 = 10_000;
    /// The largest limit of [`SlidingLog::large`].
    pub const MAX_LARGE: u64 = 1_000_000;

    /// Maximum number of admissions after a take whose units [`Op::ReturnOwed`] returns. A store
    /// rewrites all of these entries, because each holds the sum of the entries before it.
    pub const MAX_LATER: usize = 10_000;

    /// Exactly `limit` units per rolling `length`.
    pub fn new(limit: u64, length: Span) -> Result<Self, InvalidLimit> {
        Self::up_to(Self::MAX, limit, length)
    }

    /// Like [`SlidingLog::new`], for limits up to [`SlidingLog::MAX_LARGE`], which take up to 16 MB
    /// per key.
    pub fn large(limit: u64, length: Span) -> Result<Self, InvalidLimit> {
        Self::up_to(Self::MAX_LARGE, limit, length)
    }

    fn up_to(most: u64, limit: u64, length: Span) -> Result<Self, InvalidLimit> {
        check_period(length)?;
        if limit > most {
            return Err(InvalidLimit::LogLength);
        }
        Ok(Self { limit, length: length.as_micros() })
    }

    /// Units that any rolling window admits.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The length of the window.
    pub const fn length(&self) -> Span {
        Span::from_micros(self.length)
    }

    fn seen(&self, state: &SlidingLogState, now: Timestamp) -> Seen {
        let now = now.as_micros();
        let old = |entry: &&Entry| entry.at + self.length <= now;
        let (mut expired, mut expired_weight) = (0, 0);
        for entry in state.entries.iter().take_while(old) {
            expired += 1;
            expired_weight += entry.weight;
        }
        let future = state.entries.back().is_some_and(|entry| entry.at > now);
        Seen { expired, sum: state.total - expired_weight, future }
    }

    fn test(&self, state: &SlidingLogState, seen: &Seen, now: Timestamp, cost: u64) -> Outcome {
        if cost > self.limit || cost > MAX_COST {
            return Outcome::Deny { retry_after: None };
        }
        let Some(mut missing) = (seen.sum + cost).checked_sub(self.limit).filter(|m| *m > 0) else {
            return Outcome::Allow;
        };
        let mut free_at = now.as_micros();
        for entry in state.entries.iter().skip(seen.expired) {
            free_at = entry.at.min(now.as_micros()) + self.length;
            missing = missing.saturating_sub(entry.weight);
            if missing == 0 {
                break;
            }
        }
        Outcome::Deny { retry_after: Some(Span::from_micros(free_at - now.as_micros())) }
    }

    /// Returns units of the take that leaves the window at `until`: from the oldest admission that is
    /// not older than the take, which is the take itself unless the clock went back.
    fn give_back_owed(
        &self,
        state: &mut SlidingLogState,
        seen: &Seen,
        now: Timestamp,
        (units, until): (u64, Timestamp),
    ) -> u64 {
        let (now_micros, until) = (now.as_micros(), until.as_micros());
        let Some(taken_at) = until.checked_sub(self.length).filter(|_| until > now_micros) else {
            return 0;
        };
        // The entries as they will be once future times are set to now.
        let is_later = |entry: &&Entry| entry.at.min(now_micros) >= taken_at;
        let later = state.entries.iter().rev().take_while(is_later);
        let (count, owed) = later.fold((0, 0), |(n, sum), entry| (n + 1, sum + entry.weight));
        let returned = units.min(owed);
        if returned == 0 || count > Self::MAX_LATER {
            return 0;
        }
        state.settle(seen, now);
        let first = state.entries.partition_point(|entry| entry.at < taken_at);
        state.remove_from(first, returned);
        returned
    }

    fn reset_after(&self, state: &SlidingLogState, now: Timestamp) -> Span {
        let newest = state.entries.back().map_or(0, |entry| entry.at.min(now.as_micros()));
        match state.entries.is_empty() {
            true => Span::ZERO,
            false => Span::from_micros((newest + self.length).saturating_sub(now.as_micros())),
        }
    }
}

impl SlidingLogState {
    /// Rebuilds a state that a store serialised: admissions, oldest first.
    pub fn restore(entries: impl IntoIterator<Item = Entry>) -> Self {
        let entries: VecDeque<Entry> = entries.into_iter().collect();
        let total = entries.iter().map(|entry| entry.weight).sum();
        Self { entries, total }
    }

    /// The admissions, oldest first.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + '_ {
        self.entries.iter().copied()
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Bytes on the heap that one more entry may add: a full list doubles.
    pub fn growth_bytes(&self) -> usize {
        let full = self.entries.len() == self.entries.capacity();
        if full { self.entries.capacity().max(4) * size_of::<Entry>() } else { 0 }
    }

    /// Applies `seen` to the log: drops expired entries, sets future times to now.
    fn settle(&mut self, seen: &Seen, now: Timestamp) {
        self.entries.drain(..seen.expired);
        self.total = seen.sum;
        if !seen.future {
            return;
        }
        let now = now.as_micros();
        let mut weight = 0;
        while let Some(entry) = self.entries.back().filter(|entry| entry.at >= now) {
            weight += entry.weight;
            self.entries.pop_back();
        }
        self.entries.push_back(Entry { at: now, weight });
    }

    fn add(&mut self, now: Timestamp, weight: u64) {
        let at = now.as_micros();
        self.total += weight;
        match self.entries.back_mut().filter(|entry| entry.at == at) {
            Some(entry) => entry.weight += weight,
            None => self.entries.push_back(Entry { at, weight }),
        }
    }

    /// Removes units from the entry of this number and those after it, oldest first.
    fn remove_from(&mut self, first: usize, mut units: u64) {
        self.total -= units;
        let mut emptied = first;
        for entry in self.entries.range_mut(first..) {
            let removed = units.min(entry.weight);
            entry.weight -= removed;
            units -= removed;
            if entry.weight > 0 {
                break;
            }
            emptied += 1;
        }
        self.entries.drain(first..emptied);
    }

    /// Removes the newest units.
    fn remove(&mut self, mut units: u64) {
        while let Some(entry) = self.entries.back_mut().filter(|_| units > 0) {
            let removed = units.min(entry.weight);
            entry.weight -= removed;
            units -= removed;
            self.total -= removed;
            if entry.weight == 0 {
                self.entries.pop_back();
            }
        }
    }
}

impl Algorithm for SlidingLog {
    type State = SlidingLogState;

    fn decide(&self, state: &mut SlidingLogState, now: Timestamp, op: Op) -> Decision {
        let seen = self.seen(state, now);
        let mut sum = seen.sum;
        let mut unbooked = 0;
        let mut outcome = Outcome::Allow;
        match op {
            Op::Return(0) | Op::Release(_) | Op::Renew(_) | Op::Block(_) => {}
            Op::Read(cost) | Op::Take(cost @ 0) => outcome = self.test(state, &seen, now, cost),
            Op::Take(cost) => {
                outcome = self.test(state, &seen, now, cost);
                let allowed = outcome == Outcome::Allow;
                if allowed || seen.future {
                    state.settle(&seen, now);
                }
                if allowed {
                    state.add(now, cost);
                    sum += cost;
                }
            }
            Op::Return(units) => {
                state.settle(&seen, now);
                state.remove(units);
                sum = state.total;
            }
            Op::ReturnOwed { units, until } => {
                let returned = self.give_back_owed(state, &seen, now, (units, until));
                unbooked = units - returned;
                sum -= returned;
            }
            Op::Force(units) => {
                unbooked = units.saturating_sub(self.limit.saturating_sub(sum));
                let booked = units - unbooked;
                // Repairs even if nothing fits. Otherwise a key that gets only forced costs would
                // stay locked.
                if booked > 0 || (seen.future && units > 0) {
                    state.settle(&seen, now);
                }
                if booked > 0 {
                    state.add(now, booked);
                    sum = state.total;
                }
            }
            Op::Reset => {
                *state = SlidingLogState::default();
                sum = 0;
            }
        }
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.limit.saturating_sub(sum),
            reset_after: self.reset_after(state, now),
            unbooked,
            lease: None,
        }
    }

    fn idle_at(&self, state: &SlidingLogState) -> Timestamp {
        let newest = state.entries.back().map_or(0, |entry| entry.at + self.length);
        Timestamp::from_micros(newest)
    }

    fn is_ahead(&self, state: &SlidingLogState, now: Timestamp) -> bool {
        state.entries.back().is_some_and(|entry| entry.at > now.as_micros())
    }

    fn promise(&self, within: Span) -> Option<u64> {
        Some(self.limit.saturating_mul(within.as_micros() / self.length + 1))
    }

    fn explain(&self, state: &SlidingLogState, now: Timestamp) -> Explanation {
        let seen = self.seen(state, now);
        let next_allowed_at = match self.test(state, &seen, now, 1) {
            Outcome::Deny { retry_after } => retry_after.map(|wait| now + wait),
            Outcome::Allow | Outcome::Delay(_) => Some(now),
        };
        let entries: Vec<Entry> = state.entries.iter().skip(seen.expired).copied().collect();
        Explanation {
            limit: self.limit,
            remaining: self.limit.saturating_sub(seen.sum),
            next_allowed_at,
            idle_at: self.idle_at(state),
            detail: Detail::SlidingLog { sum: seen.sum, entries },
        }
    }
}

#[cfg(test)]
#[path = "sliding_log_tests.rs"]
mod tests;
