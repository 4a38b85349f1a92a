//! When a server counts as gone, and when as back. No clock, no I/O: whoever asks tells it the time.
//!
//! ```text
//!            5 silences in a row, or half of 20 and more within a second
//!   closed ───────────────────────────────────────────────────────────▶ open ◀──┐ silent probe
//!     ▲                                                                │ ▲ └─────┘
//!     │ 400 ms                                     a probe is answered │ │ the same silences, or
//!     └──────────────────────── ramping ◀──────────────────────────────┘ │ two that are a tenth
//!                                  └─────────────────────────────────────┘
//! ```
//!
//! A ramp is not ended by a single silence: a server of which one answer in a thousand is late would be
//! found gone in every ramp, and never be back. One that is late more often is not well yet.
//!
//! # Promise
//! While it is open, nobody but the probe asks. While it is ramping, a key that may ask once may ask
//! from then on: which share of the keys it is depends on the key and the time alone, so none is kept
//! away for longer than the ramp takes, and none goes to and fro between the store and what stands in
//! for it.

use tidegate_core::{Span, Timestamp};

/// So many silences in a row open a circuit.
const IN_A_ROW: u32 = 5;
/// Of so many requests within [`SECOND`], half silent open it too.
const ENOUGH: u32 = 20;
const SECOND: Span = Span::from_secs(1);
/// So many silences in a ramp open it again, if they are one of [`TENTH`] requests or more.
const TWO: u32 = 2;
const TENTH: u32 = 10;
/// A quarter more of the keys may ask after each of these.
const STEP: Span = Span::from_millis(100);
const STEPS: u64 = 4;
/// Between probes, give or take a fifth.
pub(super) const PROBES_APART: Span = Span::from_millis(250);

/// What was heard of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It answered, be it that it refused.
    Answer,
    /// It did not answer in time, or could not be reached.
    Silence,
}

/// What lets a request ask. What comes of it counts only in the times that it was given in: a silence
/// from before the circuit opened says nothing of a server that has come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Ticket {
    pub(super) const fn of(number: u64) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u64 {
        self.0
    }
}

/// Whether a server may be asked.
#[derive(Debug)]
pub(super) struct Circuit {
    state: State,
    /// Grows with every change of the state.
    times: u64,
    trips: u64,
}

/// As the picture above has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { tally: Tally },
    Open { probe_at: Timestamp },
    Ramping { since: Timestamp, tally: Tally },
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tally {
    in_a_row: u32,
    /// Since when the following are counted.
    since: Timestamp,
    asked: u32,
    silent: u32,
}

impl Tally {
    const fn new(since: Timestamp) -> Self {
        Self { in_a_row: 0, since, asked: 0, silent: 0 }
    }

    /// Takes note of one more; true if the server counts as gone by now.
    fn add(&mut self, now: Timestamp, heard: Heard) -> bool {
        if now.since(self.since) >= SECOND {
            (self.since, self.asked, self.silent) = (now, 0, 0);
        }
        let is_silent = heard == Heard::Silence;
        self.asked = self.asked.saturating_add(1);
        self.silent = self.silent.saturating_add(u32::from(is_silent));
        self.in_a_row = if is_silent { self.in_a_row.saturating_add(1) } else { 0 };
        let is_half = self.asked >= ENOUGH && self.silent >= self.asked.div_ceil(2);
        self.in_a_row >= IN_A_ROW || is_half
    }

    /// Whether a server that was just back is not well.
    const fn is_shaky(&self) -> bool {
        self.silent >= TWO && self.silent.saturating_mul(TENTH) >= self.asked
    }
}

/// How a server is asked at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// By everybody.
    Closed,
    /// By nobody but a probe in the background.
    Open,
    /// By more and more.
    Ramping,
}

impl CircuitState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::Ramping];

    /// As metrics spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Ramping => "ramping",
        }
    }
}

impl Default for Circuit {
    fn default() -> Self {
        let tally = Tally::new(Timestamp::EPOCH);
        Self { state: State::Closed { tally }, times: 0, trips: 0 }
    }
}

impl Circuit {
    /// Lets any key ask, if everybody may.
    pub(super) fn enter_closed(&self) -> Option<Ticket> {
        self.is_closed().then_some(Ticket(self.times))
    }

    /// Whether the key of this number may ask; if not, how long until it is worth trying again.
    pub(super) fn enter(&mut self, now: Timestamp, key: u64) -> Result<Ticket, Span> {
        match self.state {
            State::Closed { .. } => {}
            State::Open { probe_at } => return Err(probe_at.since(now)),
            State::Ramping { since, .. } => {
                let quarter = quarter(key);
                if quarter > now.since(since).as_micros() / STEP.as_micros() {
                    let turn = Span::from_micros(STEP.as_micros() * quarter);
                    return Err((since + turn).since(now));
                }
                if is_over(since, now) {
                    self.change(State::Closed { tally: Tally::new(now) });
                }
            }
        }
        Ok(Ticket(self.times))
    }

    /// Takes note of what came of asking; true if that opened the circuit, to be probed `pause` later.
    pub(super) fn leave(
        &mut self,
        now: Timestamp,
        ticket: Ticket,
        heard: Heard,
        pause: Span,
    ) -> bool {
        if ticket.0 != self.times {
            return false;
        }
        let opens = match &mut self.state {
            State::Closed { tally } => tally.add(now, heard),
            State::Ramping { tally, .. } => tally.add(now, heard) || tally.is_shaky(),
            State::Open { .. } => false,
        };
        if opens {
            self.trips += 1;
            self.change(State::Open { probe_at: now + pause });
        }
        opens
    }

    /// Opens a closed circuit, to be probed `pause` later; false if it is not closed.
    pub(super) fn trip(&mut self, now: Timestamp, pause: Span) -> bool {
        let trips = self.is_closed();
        if trips {
            self.trips += 1;
            self.change(State::Open { probe_at: now + pause });
        }
        trips
    }

    /// Takes note of what came of a probe; true if that was the last, or else the next is `pause` later.
    pub(super) fn probed(&mut self, now: Timestamp, heard: Heard, pause: Span) -> bool {
        match (self.state, heard) {
            (State::Open { .. }, Heard::Silence) => {
                self.state = State::Open { probe_at: now + pause };
                false
            }
            (State::Open { .. }, Heard::Answer) => {
                self.change(State::Ramping { since: now, tally: Tally::new(now) });
                true
            }
            _ => true,
        }
    }

    fn change(&mut self, state: State) {
        self.state = state;
        self.times += 1;
    }

    /// Whether everybody may ask, without a look at the time.
    pub(super) const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed { .. })
    }

    pub(super) fn state(&self, now: Timestamp) -> CircuitState {
        match self.state {
            State::Closed { .. } => CircuitState::Closed,
            State::Open { .. } => CircuitState::Open,
            State::Ramping { since, .. } if is_over(since, now) => CircuitState::Closed,
            State::Ramping { .. } => CircuitState::Ramping,
        }
    }

    /// How often it has opened.
    pub(super) const fn trips(&self) -> u64 {
        self.trips
    }
}

/// Whether a ramp that began then has been climbed.
const fn is_over(since: Timestamp, now: Timestamp) -> bool {
    now.since(since).as_micros() >= STEP.as_micros() * STEPS
}

/// Between this probe and the next: four to six fifths of [`PROBES_APART`], as chance has it.
pub(super) const fn pause(chance: u64) -> Span {
    let fifth = PROBES_APART.as_micros() / 5;
    Span::from_micros(4 * fifth + chance % (2 * fifth + 1))
}

/// In which step of a ramp a key is let in, from 0 on. Keys that differ little are spread all the same.
const fn quarter(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62
}

#[cfg(test)]
#[path = "circuit_tests.rs"]
mod tests;
