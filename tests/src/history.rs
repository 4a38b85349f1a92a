//! Requests of several processes, and a check whether any order of decisions explains their answers.
//!
//! A decision is made at some instant between invocation and return. A request that lies entirely
//! inside an interval was therefore decided in it; a request that overlaps it may have been.

use std::fmt;
use std::str::FromStr;

use tidegate::{Algorithm, Limit, Op, State, Timestamp};
use tidegate_core::algorithm::fixed_window::FixedWindowState;
use tidegate_core::algorithm::sliding_window::SlidingWindowState;

/// One request as its client saw it, in microseconds of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time before the request was sent.
    pub invoked: u64,
    /// The time after the answer arrived.
    pub returned: u64,
    /// Units asked for.
    pub cost: u64,
    /// Whether the units were granted.
    pub allowed: bool,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invoked, returned, cost, allowed } = self;
        write!(f, "{invoked} {returned} {cost} {allowed}")
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [invoked, returned, cost, allowed] = fields[..] else {
            return Err(format!("{line:?} is no event"));
        };
        let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number"));
        let (invoked, returned, cost) = (number(invoked)?, number(returned)?, number(cost)?);
        Ok(Self { invoked, returned, cost, allowed: allowed == "true" })
    }
}

/// All requests for one key.
#[derive(Debug)]
pub struct History {
    limit: Limit,
    /// In the order of their answers.
    admitted: Vec<Event>,
    denied: Vec<Event>,
}

impl History {
    /// The history of a key that was new before the first event.
    pub fn new(limit: Limit, events: impl IntoIterator<Item = Event>) -> Self {
        let (mut admitted, denied): (Vec<Event>, Vec<Event>) =
            events.into_iter().partition(|event| event.allowed);
        admitted.sort_by_key(|event| event.returned);
        Self { limit, admitted, denied }
    }

    /// Units granted.
    pub fn units(&self) -> u64 {
        self.admitted.iter().map(|event| event.cost).sum()
    }

    /// An interval that admitted more than the limit promises, or an admission that no order of the
    /// decisions around it explains.
    pub fn breach(&self) -> Option<String> {
        for first in &self.admitted {
            let mut units = 0;
            for last in self.admitted.iter().filter(|event| event.invoked >= first.invoked) {
                units += last.cost;
                let within = last.returned - first.invoked;
                let promise = self.promise(first.invoked, last.returned);
                if units > promise {
                    return Some(format!("{units} units in {within} us, promised {promise}"));
                }
            }
        }
        let impossible = self.admitted.iter().find(|admitted| self.forbids(admitted));
        impossible.map(|admitted| format!("admitted though it did not fit: {admitted}"))
    }

    /// A denial that no order of the decisions around it explains.
    pub fn unjustified(&self) -> Option<String> {
        let unjustified = self.denied.iter().find(|denied| !self.justifies(denied));
        unjustified.map(|denied| format!("denied though it fitted: {denied}"))
    }

    /// The most that may be admitted between two instants.
    fn promise(&self, from: u64, to: u64) -> u64 {
        if let Limit::FixedWindow(window) = &self.limit {
            // The windows have known boundaries, so the bound is tighter than for an arbitrary
            // interval.
            let length = window.length().as_micros();
            return window.limit() * (to / length - from / length + 1);
        }
        let within = Timestamp::from_micros(to).since(Timestamp::from_micros(from));
        self.limit.promise(within).expect("a limit of units per time")
    }

    /// Whether an admission is denied even if as little as possible was admitted before it. For
    /// exact families, the promise is enough.
    fn forbids(&self, admitted: &Event) -> bool {
        let Some(length) = self.window() else { return false };
        touched(admitted, length).all(|start| {
            let surely = |start: u64, end: u64| {
                let inside = |event: &&Event| {
                    let before = event.returned < admitted.invoked;
                    before && event.invoked >= start && event.returned < end
                };
                self.admitted.iter().filter(inside).map(|event| event.cost).sum()
            };
            let state = self.counted(start, surely);
            self.denies(state, admitted.returned.min(start + length - 1), admitted.cost)
        })
    }

    fn justifies(&self, denied: &Event) -> bool {
        let Some(length) = self.window() else {
            // Exact families deny only requests that would have broken their promise.
            let mut units = 0;
            let earlier = self.admitted.iter().rev();
            return earlier.filter(|event| event.invoked <= denied.returned).any(|event| {
                units += event.cost;
                let within = denied.invoked.saturating_sub(event.returned);
                units + denied.cost > self.promise(0, within)
            });
        };
        touched(denied, length).any(|start| {
            let perhaps = |start: u64, end: u64| {
                let touches = |event: &&Event| event.returned >= start && event.invoked < end;
                self.admitted.iter().filter(touches).map(|event| event.cost).sum()
            };
            let state = self.counted(start, perhaps);
            self.denies(state, denied.invoked.max(start), denied.cost)
        })
    }

    /// The length of the windows, if the limit counts by windows.
    fn window(&self) -> Option<u64> {
        match &self.limit {
            Limit::FixedWindow(window) => Some(window.length().as_micros()),
            Limit::SlidingWindow(window) => Some(window.length().as_micros()),
            _ => None,
        }
    }

    /// The state in the window from `start` on, given the units counted between two instants.
    fn counted(&self, start: u64, count: impl Fn(u64, u64) -> u64) -> State {
        let length = self.window().expect("only windows count");
        let (end, current) = (start + length, count(start, start + length));
        match self.limit {
            Limit::FixedWindow(_) => State::FixedWindow(FixedWindowState { end, count: current }),
            _ => {
                let previous = count(start - length, start);
                State::SlidingWindow(SlidingWindowState { end, previous, current })
            }
        }
    }

    fn denies(&self, mut state: State, at: u64, cost: u64) -> bool {
        let asked = self.limit.decide(&mut state, Timestamp::from_micros(at), Op::Read(cost));
        !asked.is_allowed()
    }
}

/// The starts of the windows in which an event may have been decided.
fn touched(event: &Event, length: u64) -> impl Iterator<Item = u64> {
    (event.invoked / length..=event.returned / length).map(move |window| window * length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::limit;

    const START: u64 = 1_800_000_000_000_000;

    /// A sound history of one client that asks every 30 ms for 6 s.
    fn sound(limit: &Limit) -> Vec<Event> {
        let mut state = State::default();
        let decided = (0..200).map(|i| {
            // No event lies on a window boundary, where it could belong to either window.
            let at = START + 500 + i * 30_000;
            let cost = 1 + i % 3;
            let decision = limit.decide(&mut state, Timestamp::from_micros(at), Op::Take(cost));
            let allowed = decision.is_allowed();
            Event { invoked: at - 40, returned: at + 60, cost, allowed }
        });
        decided.collect()
    }

    fn limits() -> [Limit; 5] {
        [
            "token_bucket:20:1000000:10",
            "leaky_bucket:20:1000000",
            "fixed_window:20:1000000",
            "sliding_window:20:1000000",
            "sliding_log:20:1000000",
        ]
        .map(limit)
    }

    #[test]
    fn the_model_own_histories_are_sound() {
        for limit in limits() {
            let history = History::new(limit, sound(&limit));
            assert!(!history.denied.is_empty(), "{limit:?}");
            assert_eq!((history.breach(), history.unjustified()), (None, None), "{limit:?}");
        }
    }

    /// Finds a single flipped verdict among two hundred.
    #[test]
    fn a_unit_too_many_and_a_unit_too_few_are_found() {
        for limit in limits() {
            let denied = (0..200).filter(|event| !sound(&limit)[*event].allowed);
            for flipped in denied {
                let mut events = sound(&limit);
                events[flipped].allowed = true;
                assert!(History::new(limit, events).breach().is_some(), "{limit:?}: {flipped}");
            }
            let mut events = sound(&limit);
            let first = events.iter_mut().find(|event| event.allowed).expect("a new key");
            first.allowed = false;
            assert!(History::new(limit, events).unjustified().is_some(), "{limit:?}");
        }
    }

    #[test]
    fn an_event_reads_back_as_it_was_written() {
        let event = Event { invoked: 1, returned: 2, cost: 3, allowed: true };
        assert_eq!(event.to_string().parse(), Ok(event));
        assert!("1 2 3".parse::<Event>().is_err());
    }
}
