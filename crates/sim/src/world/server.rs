//! The store itself: states, its own clock, and what a server that takes over does not know.

use std::collections::{HashMap, VecDeque};

use tidegate::Scope;
use tidegate::store::DeniedState;
use tidegate_core::{Algorithm, Decision, LeaseId, Limit, Op, State, Timestamp};

use super::network::{Answer, Sent};

/// A clock that runs a little fast or slow, and may be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriftingClock {
    /// Parts of a million, give or take.
    pub(crate) drift: i64,
    offset: i64,
}

impl DriftingClock {
    /// The start of a window of any usual length, late enough that no step leads before the epoch.
    const START: i64 = 1_577_836_800_000_000;

    pub(crate) const fn new(drift: i64) -> Self {
        Self { drift, offset: 0 }
    }

    /// What it says so many microseconds after the world began.
    pub(crate) const fn at(&self, now: u64) -> Timestamp {
        let now = now.cast_signed();
        let micros = Self::START + now + now * self.drift / 1_000_000 + self.offset;
        Timestamp::from_micros(micros.cast_unsigned())
    }

    /// Sets it back or forth.
    pub(crate) const fn step(&mut self, micros: u64, is_back: bool) {
        let micros = micros.cast_signed();
        self.offset += if is_back { -micros } else { micros };
    }
}

/// How far behind a server that takes over may be, in microseconds.
const MAX_LAG: u64 = 1_000_000;

/// Decides by the pure functions. Keys are looked up and never listed, so no order of theirs shows.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) clock: DriftingClock,
    places: HashMap<(Scope, Box<[u8]>), usize>,
    states: Vec<(Box<[u8]>, State)>,
    /// What the last writes replaced.
    journal: VecDeque<Write>,
}

#[derive(Debug)]
struct Write {
    at: u64,
    place: usize,
    before: State,
    units: u64,
    limit: Limit,
    lease: Option<LeaseId>,
}

/// What a server that took over does not know of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) text: Box<[u8]>,
    /// Units that were taken.
    pub(crate) units: u64,
    /// By which numbers, and which place it was.
    pub(crate) limit: Limit,
    pub(crate) lease: Option<LeaseId>,
}

impl Server {
    pub(crate) fn new(clock: DriftingClock) -> Self {
        Self { clock, places: HashMap::new(), states: Vec::new(), journal: VecDeque::new() }
    }

    /// Carries out a command.
    pub(crate) fn carry_out(&mut self, now: u64, charges: &[Sent], is_each: bool) -> Answer {
        let places: Vec<usize> = charges.iter().map(|charge| self.place(charge)).collect();
        if !is_each && charges.len() > 1 {
            // All or nothing: tried on copies first.
            let copies: Vec<State> = places.iter().map(|it| self.states[*it].1.clone()).collect();
            let tried = self.apply(now, charges, &places, |_, op| op);
            if tried.decisions.iter().all(Decision::is_allowed) {
                return tried;
            }
            for (place, state) in places.iter().zip(copies).rev() {
                self.states[*place].1 = state;
                self.journal.pop_back();
            }
            // Who denies leaves what a denial leaves.
            let denies = |number: usize| !tried.decisions[number].is_allowed();
            return self.apply(now, charges, &places, |number, op| match op {
                Op::Take(cost) if !denies(number) => Op::Read(cost),
                other => other,
            });
        }
        self.apply(now, charges, &places, |_, op| op)
    }

    fn apply(
        &mut self,
        now: u64,
        charges: &[Sent],
        places: &[usize],
        as_op: impl Fn(usize, Op) -> Op,
    ) -> Answer {
        let time = self.clock.at(now);
        let (mut decisions, mut sights) = (Vec::with_capacity(charges.len()), Vec::new());
        for (number, (charge, place)) in charges.iter().zip(places).enumerate() {
            let state = &mut self.states[*place].1;
            let before = state.clone();
            let op = as_op(number, charge.op);
            let decision = charge.limit.decide(state, time, op);
            let is_allowed = decision.is_allowed();
            if !is_allowed && !charge.repairs {
                state.clone_from(&before);
            }
            let is_seen = charge.is_watched && !is_allowed;
            sights.push(is_seen.then(|| DeniedState { state: before.clone(), at: time }));
            // What was booked was let in by others: nobody is let in by the store on it.
            let units = match op {
                Op::Take(cost) if is_allowed => cost,
                _ => 0,
            };
            let (at, place, limit, lease) = (now, *place, charge.limit, decision.lease);
            self.journal.push_back(Write { at, place, before, units, limit, lease });
            decisions.push(decision);
        }
        while self.journal.front().is_some_and(|write| write.at + MAX_LAG < now) {
            self.journal.pop_front();
        }
        Answer { at: time, decisions, sights }
    }

    fn place(&mut self, charge: &Sent) -> usize {
        let key = (charge.scope, charge.text.clone());
        let states = &mut self.states;
        *self.places.entry(key).or_insert_with(|| {
            states.push((charge.text.clone(), State::default()));
            states.len() - 1
        })
    }

    /// Another server takes over, which knows nothing written after `since`. Tells what is lost.
    pub(crate) fn fail_over(&mut self, since: u64) -> Vec<Lost> {
        let mut lost = Vec::new();
        while self.journal.back().is_some_and(|write| write.at > since)
            && let Some(write) = self.journal.pop_back()
        {
            let (text, state) = &mut self.states[write.place];
            *state = write.before;
            if write.units > 0 {
                let Write { units, limit, lease, .. } = write;
                lost.push(Lost { text: text.clone(), units, limit, lease });
            }
        }
        lost
    }
}
