//! The store's server: states, a clock, and a journal for failovers.

use std::collections::{HashMap, VecDeque};

use tidegate::Scope;
use tidegate::store::DeniedState;
use tidegate_core::{Algorithm, Decision, LeaseId, Op, State};

use super::clock::DriftingClock;
use super::network::{Answer, Sent};

/// The longest replication lag, in microseconds.
const MAX_LAG: u64 = 1_000_000;

/// The server. The order of the map does not matter, because keys are looked up and never listed.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) clock: DriftingClock,
    places: HashMap<(Scope, Box<[u8]>), usize>,
    states: Vec<(Box<[u8]>, State)>,
    /// The previous values of the last writes, for a failover.
    journal: VecDeque<Write>,
}

#[derive(Debug)]
struct Write {
    at: u64,
    place: usize,
    before: State,
    units: u64,
    lease: Option<LeaseId>,
}

/// A write that was lost in a failover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) text: Box<[u8]>,
    /// Units that were granted.
    pub(crate) units: u64,
    /// The place in flight that was taken, if one was.
    pub(crate) lease: Option<LeaseId>,
}

impl Lost {
    /// The number of the key.
    pub(crate) fn number(&self) -> Option<usize> {
        std::str::from_utf8(&self.text).ok()?.parse().ok()
    }
}

impl Server {
    pub(crate) fn new(clock: DriftingClock) -> Self {
        Self { clock, places: HashMap::new(), states: Vec::new(), journal: VecDeque::new() }
    }

    /// Carries out a command.
    pub(crate) fn carry_out(&mut self, now: u64, charges: &[Sent], is_each: bool) -> Answer {
        let places: Vec<usize> = charges.iter().map(|charge| self.place(charge)).collect();
        if !is_each && charges.len() > 1 {
            // All or nothing: try first, and restore the states if one charge is denied.
            let copies: Vec<State> = places.iter().map(|it| self.states[*it].1.clone()).collect();
            let tried = self.apply(now, charges, &places, |_, op| op);
            if tried.decisions.iter().all(Decision::is_allowed) {
                return tried;
            }
            for (place, state) in places.iter().zip(copies).rev() {
                self.states[*place].1 = state;
                self.journal.pop_back();
            }
            // A denial may change its own state; the other charges are only read.
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
        let (mut decisions, mut denied_states) = (Vec::with_capacity(charges.len()), Vec::new());
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
            denied_states.push(is_seen.then(|| DeniedState { state: before.clone(), at: time }));
            // The store admits requests on takes, and not on debits.
            let units = match op {
                Op::Take(cost) if is_allowed => cost,
                _ => 0,
            };
            let (at, place, lease) = (now, *place, decision.lease);
            self.journal.push_back(Write { at, place, before, units, lease });
            decisions.push(decision);
        }
        while self.journal.front().is_some_and(|write| write.at + MAX_LAG < now) {
            self.journal.pop_front();
        }
        Answer { at: time, decisions, denied_states }
    }

    fn place(&mut self, charge: &Sent) -> usize {
        let key = (charge.scope, charge.text.clone());
        let states = &mut self.states;
        *self.places.entry(key).or_insert_with(|| {
            states.push((charge.text.clone(), State::default()));
            states.len() - 1
        })
    }

    /// A replica takes over without the writes after `since`. Returns the lost writes that granted
    /// units.
    pub(crate) fn fail_over(&mut self, since: u64) -> Vec<Lost> {
        let mut lost = Vec::new();
        while self.journal.back().is_some_and(|write| write.at > since)
            && let Some(write) = self.journal.pop_back()
        {
            let (text, state) = &mut self.states[write.place];
            *state = write.before;
            if write.units > 0 {
                let Write { units, lease, .. } = write;
                lost.push(Lost { text: text.clone(), units, lease });
            }
        }
        lost
    }
}
