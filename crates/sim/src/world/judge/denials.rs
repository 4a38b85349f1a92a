//! No request is denied that the store has had room for, for as long as any node may repeat a denial.
//!
//! Nodes repeat a denial for up to [`HOLD`], and for up to [`STALENESS`] after units have come back. A key with
//! several shards has room if every shard has. Where units are leased, a node asks for several requests at once
//! and gets all or a part, so the store must have had room for what it asks at once, too. Places in flight are
//! never denied without asking.

use std::collections::{HashMap, VecDeque};

use tidegate::Scope;

/// How long a node repeats a denial at most, in microseconds: 100 ms, a lease's pause, and the time of one answer.
const HOLD: u64 = 100_000 + 20_000 + 6_000;
/// The same after units came back, in microseconds: a second longer.
const STALENESS: u64 = HOLD + 1_000_000;

#[derive(Debug)]
pub(crate) struct Denials {
    /// Units left after each command of the last seconds, with the time, by key and shard.
    left: Vec<HashMap<Scope, VecDeque<(u64, u64)>>>,
    /// When units of a key last came back, or its state last changed unseen by nodes.
    disturbed: Vec<Option<u64>>,
    in_flight: bool,
    /// The most units that a node requests at once, in addition to those of the request.
    at_once: u64,
}

impl Denials {
    pub(crate) fn new(keys: usize, in_flight: bool, at_once: u64) -> Self {
        let left = vec![HashMap::new(); keys];
        Self { left, disturbed: vec![None; keys], in_flight, at_once }
    }

    /// The store has executed a command, and has this many units left.
    pub(crate) fn carried_out(&mut self, now: u64, key: usize, shard: Scope, left: u64) {
        let history = self.left[key].entry(shard).or_default();
        history.push_back((now, left));
        // The last command before the period shows the units left at its beginning.
        while history.get(1).is_some_and(|(at, _)| at + 2 * STALENESS < now) {
            history.pop_front();
        }
    }

    /// Units came back, or a node may lack information that the store has.
    pub(crate) fn disturbed(&mut self, now: u64, key: usize) {
        self.disturbed[key] = Some(now);
    }

    pub(crate) fn all_disturbed(&mut self, now: u64) {
        self.disturbed.fill(Some(now));
    }

    /// Whether a request for `cost` units that arrived at `asked` had to be admitted.
    pub(crate) fn had_room(&self, key: usize, cost: u64, asked: u64) -> bool {
        let is_disturbed = |at: u64| asked < at + 2 * STALENESS;
        let before = match self.disturbed[key] {
            _ if self.in_flight => 0,
            Some(at) if is_disturbed(at) => STALENESS,
            _ => HOLD,
        };
        let Some(since) = asked.checked_sub(before) else { return false };
        let needed = cost + self.at_once;
        // A key that the store never heard of has room.
        self.left[key].values().all(|history| {
            let first = history.partition_point(|(at, _)| *at < since).saturating_sub(1);
            history.range(first..).all(|(_, left)| *left >= needed)
        })
    }
}
