//! What a store must answer: a map from keys to states, and the pure functions.
//!
//! A store may forget a state once it is idle, and a later step back of the clock then shows it. So
//! the reference keeps every state that a key may have, drops those that an answer rules out, and
//! finds a mismatch when none is left. While time runs forward there is always exactly one.

use std::collections::HashMap;

use tidegate::{Algorithm, Decision, Limit, Op, State, Timestamp};
use tidegate_core::algorithm::bucket::{BucketState, Moment};

/// The largest fraction of a tick that a store can keep for a bucket of a small denominator.
const NARROW: u64 = 1 << 10;

/// Which subject's limit, and which of its keys.
pub(crate) type Id = (usize, u64);

/// One operation, as the reference sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) id: Id,
    pub(crate) limit: Limit,
    pub(crate) op: Op,
}

/// All that was ever written, and the latest instant anything was decided at.
#[derive(Debug, Default)]
pub(crate) struct Reference {
    keys: HashMap<Id, Vec<Possible>>,
    latest: Timestamp,
}

/// A state that a key may have.
#[derive(Clone, Debug, PartialEq)]
struct Possible {
    state: State,
    idle_at: Timestamp,
}

impl Possible {
    fn new(limit: &Limit, state: State) -> Self {
        Self { idle_at: limit.idle_at(&state), state }
    }
}

/// What a batch leaves: whether it passed, every decision, and the states of its distinct keys.
struct Left {
    allowed: bool,
    decisions: Vec<Decision>,
    states: Vec<State>,
}

impl Reference {
    /// Checks one decision. On a mismatch: what could have been answered.
    pub(crate) fn decide(
        &mut self,
        now: Timestamp,
        asked: &Asked,
        answer: &Decision,
    ) -> Result<(), Vec<Decision>> {
        let mut expected = Vec::new();
        let mut kept = Vec::new();
        for mut state in self.possible(asked) {
            let decision = asked.limit.decide(&mut state, now, asked.op);
            match decision == *answer {
                true => push_new(&mut kept, Possible::new(&asked.limit, state)),
                false => expected.push(decision),
            }
        }
        self.keep(now, asked.id, kept).ok_or(expected)
    }

    /// Checks charges that were decided all or nothing.
    pub(crate) fn decide_together(
        &mut self,
        now: Timestamp,
        asked: &[Asked],
        (allowed, answers): (bool, &[Decision]),
    ) -> Result<(), Vec<Decision>> {
        // Making room for one key of a batch may already drop what is idle by now.
        self.latest = self.latest.max(now);
        let mut ids: Vec<Id> = Vec::new();
        asked.iter().for_each(|asked| push_new(&mut ids, asked.id));
        let place = |id: Id| ids.iter().position(|other| *other == id).unwrap_or(0);
        let places: Vec<usize> = asked.iter().map(|asked| place(asked.id)).collect();
        let last = |id: Id| asked.iter().rfind(|asked| asked.id == id).unwrap_or(&asked[0]);
        let choices: Vec<Vec<State>> = ids.iter().map(|id| self.possible(last(*id))).collect();
        let mut kept: Vec<Vec<Possible>> = vec![Vec::new(); ids.len()];
        let mut expected = Vec::new();
        let combinations: usize = choices.iter().map(Vec::len).product();
        for mut number in 0..combinations {
            let choose = |states: &Vec<State>| {
                let state = states[number % states.len()].clone();
                number /= states.len();
                state
            };
            let before: Vec<State> = choices.iter().map(choose).collect();
            let left = together(now, asked, &places, &before);
            if (left.allowed, left.decisions.as_slice()) == (allowed, answers) {
                for ((kept, state), id) in kept.iter_mut().zip(left.states).zip(&ids) {
                    push_new(kept, self.possible_after(*id, &last(*id).limit, state));
                }
            } else {
                expected = left.decisions;
            }
        }
        for (id, kept) in ids.into_iter().zip(kept) {
            self.keep(now, id, kept).ok_or_else(|| expected.clone())?;
        }
        Ok(())
    }

    /// The only state that a key can have, if there is only one.
    pub(crate) fn state(&self, asked: &Asked) -> Option<State> {
        let mut possible = self.possible(asked);
        (possible.len() == 1).then(|| possible.remove(0))
    }

    fn possible(&self, asked: &Asked) -> Vec<State> {
        let mut states = Vec::new();
        for possible in self.keys.get(&asked.id).into_iter().flatten() {
            push_new(&mut states, possible.state.clone());
            states.extend(rounded(&asked.limit, &possible.state));
            if possible.idle_at <= self.latest {
                push_new(&mut states, State::Absent);
            }
        }
        if states.is_empty() {
            states.push(State::Absent);
        }
        states
    }

    /// A state that a batch left as it was may still pass at the instant its old numbers said.
    fn possible_after(&self, id: Id, limit: &Limit, state: State) -> Possible {
        let mut possible = Possible::new(limit, state);
        let before = self.keys.get(&id).into_iter().flatten();
        for unchanged in before.filter(|before| before.state == possible.state) {
            possible.idle_at = possible.idle_at.min(unchanged.idle_at);
        }
        possible
    }

    fn keep(&mut self, now: Timestamp, id: Id, kept: Vec<Possible>) -> Option<()> {
        self.latest = self.latest.max(now);
        let some = !kept.is_empty();
        self.keys.insert(id, kept);
        some.then_some(())
    }
}

fn push_new<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}

/// A fraction of a tick in large parts may be rounded up when the denominator becomes small.
fn rounded(limit: &Limit, state: &State) -> Option<State> {
    match (limit, state) {
        (Limit::Bucket(bucket), State::Bucket(BucketState { full_at: Moment { ticks, part } }))
            if bucket.denominator() <= NARROW && *part >= NARROW =>
        {
            let full_at = Moment { ticks: ticks + 1, part: 0 };
            Some(State::Bucket(BucketState { full_at }))
        }
        _ => None,
    }
}

/// All or nothing: every charge sees those before it. If one is denied, a limit that denied by
/// itself leaves what its denial leaves, and one that would have allowed says how it stands.
fn together(now: Timestamp, asked: &[Asked], places: &[usize], before: &[State]) -> Left {
    let mut states = before.to_vec();
    let decide =
        |(asked, place): (&Asked, &usize)| asked.limit.decide(&mut states[*place], now, asked.op);
    let mut decisions: Vec<Decision> = asked.iter().zip(places).map(decide).collect();
    let allowed = decisions.iter().all(Decision::is_allowed);
    if allowed {
        return Left { allowed, decisions, states };
    }
    let mut states = before.to_vec();
    for ((asked, place), decision) in asked.iter().zip(places).zip(&mut decisions) {
        let mut trial = states[*place].clone();
        if decision.is_allowed() {
            let standing = match asked.op {
                Op::Take(cost) | Op::Read(cost) => Op::Read(cost),
                _ => Op::Take(0),
            };
            *decision = asked.limit.decide(&mut trial, now, standing);
            continue;
        }
        let alone = asked.limit.decide(&mut trial, now, asked.op);
        if !alone.is_allowed() {
            (states[*place], *decision) = (trial, alone);
        }
    }
    Left { allowed, decisions, states }
}
