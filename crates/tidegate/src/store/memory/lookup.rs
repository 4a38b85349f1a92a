//! An operation on a stored state, and the time it is decided at.

use tidegate_core::{Algorithm, Decision, Op, Timestamp};

use super::debt;
use super::packing::Pack;
use super::table::{Change, StateOp};
use crate::clock::Clock;

/// An operation at a time.
pub(crate) struct Lookup<'a, A> {
    pub(super) algorithm: &'a A,
    pub(super) now: Timestamp,
    pub(super) op: Op,
    pub(super) clock: Option<&'a Clock>,
}

impl<A: Algorithm> Lookup<'_, A> {
    pub(super) fn decide(&self, state: &mut A::State) -> Decision {
        let now = up_to_date(self.now, self.algorithm.is_ahead(state, self.now), self.clock);
        self.algorithm.decide(state, now, self.op)
    }
}

impl<A: Pack<STATE>, const STATE: usize> StateOp<STATE> for Lookup<'_, A> {
    type Answer = Decision;

    fn run(&self, words: [u64; STATE]) -> (Decision, Change<STATE>) {
        packed(self, words)
    }
}

/// `Take(1)`, the most common operation, compiled separately from the same function.
pub(super) struct TakeOne<'a, A> {
    pub(super) algorithm: &'a A,
    pub(super) now: Timestamp,
    pub(super) clock: Option<&'a Clock>,
}

impl<A: Pack<STATE>, const STATE: usize> StateOp<STATE> for TakeOne<'_, A> {
    type Answer = Decision;

    #[inline(always)]
    fn run(&self, words: [u64; STATE]) -> (Decision, Change<STATE>) {
        let Self { algorithm, now, clock } = *self;
        packed(&Lookup { algorithm, now, op: Op::Take(1), clock }, words)
    }
}

/// Decides on a packed state.
#[inline(always)]
pub(super) fn packed<A: Pack<STATE>, const STATE: usize>(
    lookup: &Lookup<'_, A>,
    words: [u64; STATE],
) -> (Decision, Change<STATE>) {
    let Lookup { algorithm, now, op, clock } = *lookup;
    let mut state = algorithm.unpack(words);
    let now = up_to_date(now, algorithm.is_ahead(&state, now), clock);
    let decision = algorithm.decide(&mut state, now, op);
    let change = Change { state: algorithm.pack(&state), class: debt::class(&decision) };
    (decision, change)
}

/// `now`, or a new reading of the clock if a state seems to be ahead of it.
#[inline(always)]
pub(super) fn up_to_date(now: Timestamp, ahead: bool, clock: Option<&Clock>) -> Timestamp {
    if ahead { read_again(now, clock) } else { now }
}

#[cold]
#[inline(never)]
fn read_again(now: Timestamp, clock: Option<&Clock>) -> Timestamp {
    clock.map_or(now, |clock| clock.now().max(now))
}
