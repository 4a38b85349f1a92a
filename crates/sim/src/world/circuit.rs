//! Whether a node leaves a store alone that does not answer. This is not the breaker's own reckoning: it
//! knows when a circuit has to be open, and not when it may be.

use std::collections::BTreeSet;

use tidegate_core::{Span, Timestamp};

/// So many silences in a row, and nobody but a probe asks.
const IN_A_ROW: u32 = 5;
/// Until then not all keys are back.
const FIRST_STEP: Span = Span::from_millis(100);
/// By then they are.
const RAMP: Span = Span::from_millis(400);
/// Of so many keys, all would not be back at once by chance.
const MANY: usize = 8;

/// What one node has heard, in one of its lives.
#[derive(Debug, Default)]
pub(crate) struct CircuitWatch {
    state: State,
    /// Grows with every change: what was sent before it says nothing.
    times: u64,
    asked: BTreeSet<usize>,
    sent: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { in_a_row: u32 },
    Open,
    Ramping { since: Timestamp, in_a_row: u32 },
}

impl Default for State {
    fn default() -> Self {
        Self::Closed { in_a_row: 0 }
    }
}

impl CircuitWatch {
    fn change(&mut self, state: State) {
        self.state = state;
        self.times += 1;
        (self.asked, self.sent) = Default::default();
    }

    fn is_in_first_step(&self, now: Timestamp) -> bool {
        matches!(self.state, State::Ramping { since, .. } if now.since(since) < FIRST_STEP)
    }

    /// A request comes in for a key.
    pub(crate) fn asked(&mut self, now: Timestamp, key: usize) {
        if self.is_in_first_step(now) {
            self.asked.insert(key);
        }
    }

    /// Something is sent to the store. Says in which times, or what is wrong with it.
    pub(crate) fn sent(
        &mut self,
        now: Timestamp,
        keys: impl Iterator<Item = usize>,
        is_probe: bool,
    ) -> Result<u64, &'static str> {
        if self.state == State::Open && !is_probe {
            return Err("asked a store that was known to be away");
        }
        if matches!(self.state, State::Ramping { since, .. } if now.since(since) >= RAMP) {
            self.change(State::default());
        }
        if self.is_in_first_step(now) {
            self.sent.extend(keys);
        }
        Ok(self.times)
    }

    /// The store has answered something that was sent in these times, or has not.
    pub(crate) fn heard(
        &mut self,
        now: Timestamp,
        times: u64,
        is_probe: bool,
        is_silent: bool,
    ) -> Result<(), &'static str> {
        let all_at_once = self.asked.len() >= MANY && self.asked.is_subset(&self.sent);
        if is_probe {
            self.change(if is_silent {
                State::Open
            } else {
                State::Ramping { since: now, in_a_row: 0 }
            });
            return Ok(());
        }
        if times != self.times {
            return Ok(());
        }
        match &mut self.state {
            // Of a ramp that is over nobody knows whether the node has noticed yet.
            State::Ramping { since, .. } if now.since(*since) >= RAMP => {}
            State::Closed { in_a_row } | State::Ramping { in_a_row, .. } => {
                *in_a_row = if is_silent { *in_a_row + 1 } else { 0 };
                if *in_a_row >= IN_A_ROW {
                    self.change(State::Open);
                }
            }
            State::Open => {}
        }
        if all_at_once {
            Err("sent every key at once to a store that was just back")
        } else {
            Ok(())
        }
    }
}
