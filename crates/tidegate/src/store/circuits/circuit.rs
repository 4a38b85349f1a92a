//! One circuit: when a server counts as unavailable, and when as recovered. No clock, no I/O.
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
//! A *silence* is a request without an answer in time. A single silence does not end a ramp:
//! otherwise a server that is late once in a thousand requests would never complete one.
//!
//! # Promise
//! An open circuit sends only probes. A ramping circuit sends a growing part of the keys. The part
//! depends only on the key and the time: a key that was sent once is sent from then on, so it does
//! not alternate between store and fallback, and no key is held back for longer than the ramp.

use tidegate_core::{Span, Timestamp};

/// Silences in a row that open a circuit.
const IN_A_ROW: u32 = 5;
/// Fewest requests within [`SECOND`] for a share of one half silences to open a circuit.
const ENOUGH: u32 = 20;
const SECOND: Span = Span::from_secs(1);
/// Silences in a ramp that open the circuit again, if they are at least one in [`TENTH`] requests.
const TWO: u32 = 2;
const TENTH: u32 = 10;
/// After each step of a ramp, a quarter more of the keys is sent.
const STEP: Span = Span::from_millis(100);
const STEPS: u64 = 4;
/// The mean time between probes; each wait differs by up to a fifth.
pub(super) const PROBE_INTERVAL: Span = Span::from_millis(250);

/// Whether a server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It answered; a refusal is an answer.
    Answer,
    /// It did not answer in time, or could not be reached.
    Silence,
}

/// Permission to send a request. Its outcome counts only until the circuit changes: a silence from
/// before the circuit opened does not count against a server that has recovered.
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

/// The circuit of one server.
#[derive(Debug)]
pub(super) struct Circuit {
    state: State,
    /// Number of changes of the state.
    times: u64,
    trips: u64,
}

/// The states of the picture above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { tally: Tally },
    Open { probe_at: Timestamp },
    Ramping { since: Timestamp, tally: Tally },
}

/// Outcomes of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tally {
    in_a_row: u32,
    /// When the two counters below were reset.
    since: Timestamp,
    asked: u32,
    silent: u32,
}

impl Tally {
    const fn new(since: Timestamp) -> Self {
        Self { in_a_row: 0, since, asked: 0, silent: 0 }
    }

    /// Adds an outcome; true if the server now counts as unavailable.
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

    /// Whether a server that has just recovered fails too often.
    const fn is_shaky(&self) -> bool {
        self.silent >= TWO && self.silent.saturating_mul(TENTH) >= self.asked
    }
}

/// Which requests are sent to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitState {
    /// All requests.
    Closed,
    /// Only background probes.
    Open,
    /// Requests for a growing part of the keys.
    Ramping,
}

impl CircuitState {
    /// Every state.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::Ramping];

    /// The label value in metrics.
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
    /// A ticket for any key, if the circuit is closed.
    pub(super) fn enter_closed(&self) -> Option<Ticket> {
        self.is_closed().then_some(Ticket(self.times))
    }

    /// A ticket for the key of this number, or how long to wait until its requests are sent.
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

    /// Records an outcome; true if that opened the circuit, to be probed after `pause`.
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

    /// Opens a closed circuit, to be probed after `pause`; false if it is not closed.
    pub(super) fn trip(&mut self, now: Timestamp, pause: Span) -> bool {
        let trips = self.is_closed();
        if trips {
            self.trips += 1;
            self.change(State::Open { probe_at: now + pause });
        }
        trips
    }

    /// Records the outcome of a probe. True if no further probe is needed; otherwise the next one
    /// follows after `pause`.
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

    /// Whether all keys are sent, without reading the time.
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

    /// How often the circuit has opened.
    pub(super) const fn trips(&self) -> u64 {
        self.trips
    }
}

/// Whether a ramp that began at `since` is over.
const fn is_over(since: Timestamp, now: Timestamp) -> bool {
    now.since(since).as_micros() >= STEP.as_micros() * STEPS
}

/// The wait before the next probe: four to six fifths of [`PROBE_INTERVAL`], at random.
pub(super) const fn pause(chance: u64) -> Span {
    let fifth = PROBE_INTERVAL.as_micros() / 5;
    Span::from_micros(4 * fifth + chance % (2 * fifth + 1))
}

/// The step of a ramp, from 0, at which a key is first sent. The multiplication spreads similar
/// keys over all steps.
const fn quarter(key: u64) -> u64 {
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62
}

#[cfg(test)]
#[path = "circuit_tests.rs"]
mod tests;
