//! The fixed window: one counter per key and window.
//!
//! # Idea
//! Time is cut into windows of equal length, which are the same for all keys. The state counts the
//! units admitted in the current window; each new window starts at 0.
//!
//! # Promise
//! Each window admits at most its limit, so an interval of length w admits at most `limit × (ceil(w
//! / W) + 1)`: **twice the limit across a boundary**, however short the window.
//!
//! # State
//! The window's end and a count: 16 bytes.
//!
//! # When to use, when not
//! Quotas that follow the calendar ("10,000 a day"), where all keys reset at the same instant. Not
//! for limits that must stop bursts (log-ins, expensive calls): see *Promise*.
//!
//! # Reference
//! The counter-and-expiry limiter of envoyproxy/ratelimit, whose variant also counts denied
//! requests ([`Denied::Counted`]).

use crate::algorithm::Algorithm;
use crate::algorithm::window::{WindowPosition, Windows};
use crate::decision::{Decision, MAX_COST, Op, Outcome};
use crate::explain::{Detail, Explanation};
use crate::invalid::InvalidLimit;
use crate::rate::Interval;
use crate::time::{Span, Timestamp};

/// The configured numbers of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u64,
    windows: Windows,
    denied: Denied,
}

/// Whether denied requests count towards the window too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Denied {
    /// Only admitted units count.
    #[default]
    Ignored,
    /// All requests count, as in envoyproxy/ratelimit.
    Counted,
}

/// The state of a key: a count, and the window it belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FixedWindowState {
    /// The end of the window, in microseconds since the epoch.
    pub end: u64,
    /// Units counted in it.
    pub count: u64,
}

impl FixedWindow {
    /// The largest limit, and the largest count a state holds.
    pub const MAX: u64 = Interval::MAX_COUNT;

    /// `limit` units per window of `length`; windows start at the epoch plus `offset`.
    ///
    /// A limit of 0 is legal and denies everything.
    pub fn new(
        limit: u64,
        length: Span,
        offset: Span,
        denied: Denied,
    ) -> Result<Self, InvalidLimit> {
        if limit > Self::MAX {
            return Err(InvalidLimit::WindowLimit);
        }
        Ok(Self { limit, windows: Windows::new(length, offset)?, denied })
    }

    /// The length of a window.
    pub const fn length(&self) -> Span {
        Span::from_micros(self.windows.length)
    }

    /// Distance from the multiples of the length since the epoch to the start of a window.
    pub const fn offset(&self) -> Span {
        self.windows.offset()
    }

    /// Units that each window admits.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether denied requests count towards the window too.
    pub const fn denied(&self) -> Denied {
        self.denied
    }

    /// The same window, without counting denied requests.
    pub(crate) const fn ignoring_denied(self) -> Self {
        Self { denied: Denied::Ignored, ..self }
    }

    /// The state as seen from `now`, and whether it had to be repaired.
    #[inline]
    fn seen(&self, state: &FixedWindowState, now: Timestamp) -> (FixedWindowState, bool) {
        let end = self.windows.end(now);
        match self.windows.position(state.end, now) {
            WindowPosition::Current | WindowPosition::Ahead => (*state, false),
            WindowPosition::Previous | WindowPosition::Past => {
                (FixedWindowState { end, count: 0 }, false)
            }
            WindowPosition::Impossible => (FixedWindowState { end, count: 0 }, true),
        }
    }

    #[inline]
    fn test(&self, seen: &FixedWindowState, now: Timestamp, cost: u64) -> Outcome {
        if cost > self.limit || cost > MAX_COST {
            Outcome::Deny { retry_after: None }
        } else if seen.count + cost > self.limit {
            Outcome::Deny { retry_after: Some(Span::from_micros(seen.end - now.as_micros())) }
        } else {
            Outcome::Allow
        }
    }

    /// Counts a denied `cost`, if the limit counts denied requests. Returns whether the state
    /// changed.
    fn count_denied(&self, seen: &mut FixedWindowState, cost: u64) -> bool {
        match self.denied {
            Denied::Ignored => false,
            Denied::Counted => {
                seen.count = seen.count.saturating_add(cost).min(Self::MAX);
                true
            }
        }
    }
}

impl Algorithm for FixedWindow {
    type State = FixedWindowState;

    #[inline]
    fn decide(&self, state: &mut FixedWindowState, now: Timestamp, op: Op) -> Decision {
        let (mut seen, repaired) = self.seen(state, now);
        let free = self.limit.saturating_sub(seen.count);
        let mut unbooked = 0;
        let (outcome, write) = match op {
            Op::Read(cost) | Op::Take(cost @ 0) => (self.test(&seen, now, cost), false),
            Op::Take(cost) => match self.test(&seen, now, cost) {
                Outcome::Deny { retry_after } => {
                    let counted = self.count_denied(&mut seen, cost);
                    (Outcome::Deny { retry_after }, counted || repaired)
                }
                outcome => {
                    seen.count += cost;
                    (outcome, true)
                }
            },
            Op::Return(units) => {
                let counted = seen.count > 0;
                seen.count = seen.count.saturating_sub(units);
                (Outcome::Allow, counted && units > 0)
            }
            Op::ReturnOwed { units, until } => {
                let owed = if seen.end == until.as_micros() { seen.count } else { 0 };
                let returned = units.min(owed);
                seen.count -= returned;
                unbooked = units - returned;
                (Outcome::Allow, returned > 0)
            }
            Op::Force(units) => {
                unbooked = units.saturating_sub(free);
                seen.count += units - unbooked;
                (Outcome::Allow, units > unbooked || (repaired && units > 0))
            }
            Op::Reset => {
                *state = FixedWindowState::default();
                seen = self.seen(state, now).0;
                (Outcome::Allow, false)
            }
            Op::Release(_) | Op::Renew(_) | Op::Block(_) => (Outcome::Allow, false),
        };
        if write {
            *state = seen;
        }
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.limit.saturating_sub(seen.count),
            reset_after: Span::from_micros(seen.end - now.as_micros()),
            unbooked,
            lease: None,
        }
    }

    #[inline]
    fn idle_at(&self, state: &FixedWindowState) -> Timestamp {
        Timestamp::from_micros(state.end)
    }

    #[inline]
    fn is_ahead(&self, state: &FixedWindowState, now: Timestamp) -> bool {
        state.end > now.as_micros() + self.windows.length
    }

    fn promise(&self, within: Span) -> Option<u64> {
        let windows = within.as_micros().div_ceil(self.windows.length) + 1;
        Some(self.limit.saturating_mul(windows))
    }

    fn explain(&self, state: &FixedWindowState, now: Timestamp) -> Explanation {
        let (seen, _) = self.seen(state, now);
        let end = Timestamp::from_micros(seen.end);
        let start = end - Span::from_micros(self.windows.length);
        let next_allowed_at = match self.test(&seen, now, 1) {
            Outcome::Deny { retry_after } => retry_after.map(|wait| now + wait),
            Outcome::Allow | Outcome::Delay(_) => Some(now),
        };
        Explanation {
            limit: self.limit,
            remaining: self.limit.saturating_sub(seen.count),
            next_allowed_at,
            idle_at: self.idle_at(state),
            detail: Detail::FixedWindow { start, end, count: seen.count },
        }
    }
}

#[cfg(test)]
#[path = "fixed_window_tests.rs"]
mod tests;
