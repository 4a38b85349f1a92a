//! The sliding window counter: two counters that approximate a rolling window.
//!
//! # Idea
//! The state counts the units of the current and of the previous window. The estimate weighs the
//! previous count by the share of that window that a rolling window still covers.
//!
//! ```text
//!   ├──── previous ────┤──── current ────┤
//!            ├───── rolling ──────┤            estimate = previous × k/n + current
//! ```
//!
//! The weight k/n moves in at most 2^20 steps per window and is never below the true one, so every
//! product stays below 2^53 and Rust and Lua agree to the last unit.
//!
//! # Promise
//! Any interval of length w <= W admits at most `limit + ceil(limit × w / W)`. The bound is tight:
//! a client that fills the end of a window and then sends at the free rate gets **twice the limit
//! in a rolling window** (200 in 60 s at 100 per 60 s), but only 104 in any 2 s. For an exact
//! rolling window use a sliding log.
//!
//! # State
//! A window's end and two counts of at most 2^32: 16 bytes as the memory store packs them.
//!
//! # When to use, when not
//! Limits where a boundary burst is unacceptable and a small error is acceptable (edge protection,
//! log-ins at scale). An idle key saves up no credit. Not for exact audits (sliding log), nor where
//! idle clients should be able to burst above the limit (token bucket).
//!
//! # Reference
//! The counter Cloudflare published in 2017 for its edge rate limiting.

use crate::algorithm::Algorithm;
use crate::algorithm::window::{WindowPosition, Windows};
use crate::decision::{Decision, MAX_COST, Op, Outcome};
use crate::explain::{Detail, Explanation};
use crate::invalid::InvalidLimit;
use crate::time::{Span, Timestamp};

/// The configured numbers of a sliding window counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u64,
    windows: Windows,
    /// `u`: microseconds between two changes of the weight.
    step: u64,
    /// `n`: steps per window, at most 2^20.
    steps: u64,
}

/// The state of a key: two counts, and the window that the newer one belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SlidingWindowState {
    /// The end of the newer window, in microseconds since the epoch.
    pub end: u64,
    /// Units admitted in the previous window.
    pub previous: u64,
    /// Units admitted in the newer window.
    pub current: u64,
}

/// A state advanced to the window of `now`.
struct Seen {
    state: SlidingWindowState,
    /// `now`, or the start of the stored window if the clock went back before it.
    at: u64,
    repaired: bool,
}

impl SlidingWindow {
    /// The largest limit.
    pub const MAX: u64 = 1 << 32;
    const MAX_STEPS: u64 = 1 << 20;

    /// About `limit` units per rolling `length`.
    pub fn new(limit: u64, length: Span) -> Result<Self, InvalidLimit> {
        if limit > Self::MAX {
            return Err(InvalidLimit::WindowLimit);
        }
        let windows = Windows::new(length, Span::ZERO)?;
        let step = windows.length.div_ceil(Self::MAX_STEPS);
        Ok(Self { limit, windows, step, steps: windows.length.div_ceil(step) })
    }

    /// The length of a window.
    #[inline]
    pub const fn length(&self) -> Span {
        Span::from_micros(self.windows.length)
    }

    /// Approximate number of units that a rolling window admits.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// `u`: microseconds between two changes of the previous window's weight.
    pub const fn step(&self) -> u64 {
        self.step
    }

    /// `n`: number of weight changes per window.
    pub const fn steps(&self) -> u64 {
        self.steps
    }

    #[inline]
    fn seen(&self, state: &SlidingWindowState, now: Timestamp) -> Seen {
        let end = self.windows.end(now);
        let at = now.as_micros();
        let (state, at, repaired) = match self.windows.position(state.end, now) {
            WindowPosition::Current => (*state, at, false),
            WindowPosition::Ahead => (*state, state.end - self.windows.length, false),
            WindowPosition::Previous => {
                (SlidingWindowState { end, previous: state.current, current: 0 }, at, false)
            }
            WindowPosition::Past => {
                (SlidingWindowState { end, previous: 0, current: 0 }, at, false)
            }
            WindowPosition::Impossible => {
                (SlidingWindowState { end, previous: 0, current: 0 }, at, true)
            }
        };
        Seen { state, at, repaired }
    }

    #[inline]
    fn estimate(&self, seen: &Seen) -> u64 {
        if seen.state.previous == 0 {
            return seen.state.current;
        }
        let elapsed = seen.at + self.windows.length - seen.state.end;
        let weight = self.steps - elapsed / self.step;
        seen.state.previous * weight / self.steps + seen.state.current
    }

    #[inline]
    fn test(&self, seen: &Seen, now: Timestamp, cost: u64) -> Outcome {
        if cost > self.limit || cost > MAX_COST {
            return Outcome::Deny { retry_after: None };
        }
        if self.estimate(seen) + cost <= self.limit {
            return Outcome::Allow;
        }
        let wait = self.free_at(&seen.state, cost) - now.as_micros();
        Outcome::Deny { retry_after: Some(Span::from_micros(wait)) }
    }

    /// The instant at which both counts have no weight left; may be after the last timestamp.
    #[inline]
    fn gone_at(&self, state: &SlidingWindowState) -> u64 {
        let tail = if state.current > 0 { self.windows.length } else { 0 };
        state.end + tail
    }

    /// The first instant at which `cost` fits if no further units are taken. `cost` is at most the
    /// limit.
    fn free_at(&self, state: &SlidingWindowState, cost: u64) -> u64 {
        let room = self.limit - cost;
        let start = state.end - self.windows.length;
        room.checked_sub(state.current)
            .and_then(|room| self.faded(state.previous, room))
            .map(|elapsed| start + elapsed)
            .or_else(|| self.faded(state.current, room).map(|elapsed| state.end + elapsed))
            .unwrap_or(state.end + self.windows.length)
    }

    /// The time into a window after which the weighted `count` of the previous window is at most
    /// `room`; `None` if that time is not before the window's end.
    fn faded(&self, count: u64, room: u64) -> Option<u64> {
        if count <= room {
            return Some(0);
        }
        // The largest weight k with floor(count * k / n) <= room; below n because count > room.
        let weight = ((room + 1) * self.steps - 1) / count;
        (weight > 0).then(|| (self.steps - weight) * self.step)
    }
}

impl Algorithm for SlidingWindow {
    type State = SlidingWindowState;

    #[inline]
    fn decide(&self, state: &mut SlidingWindowState, now: Timestamp, op: Op) -> Decision {
        let mut seen = self.seen(state, now);
        let mut unbooked = 0;
        let (outcome, write) = match op {
            Op::Read(cost) | Op::Take(cost @ 0) => (self.test(&seen, now, cost), false),
            Op::Take(cost) => match self.test(&seen, now, cost) {
                Outcome::Deny { retry_after } => (Outcome::Deny { retry_after }, seen.repaired),
                outcome => {
                    seen.state.current += cost;
                    (outcome, true)
                }
            },
            Op::Return(units) => {
                let counted = seen.state.current + seen.state.previous > 0;
                let newest = units.min(seen.state.current);
                seen.state.current -= newest;
                seen.state.previous = seen.state.previous.saturating_sub(units - newest);
                (Outcome::Allow, counted && units > 0)
            }
            Op::ReturnOwed { units, until } => {
                // The units of a take count until the end of the window after their own.
                let is_current = seen.state.end + self.windows.length == until.as_micros();
                let returned = units.min(if is_current { seen.state.current } else { 0 });
                seen.state.current -= returned;
                unbooked = units - returned;
                (Outcome::Allow, returned > 0)
            }
            Op::Force(units) => {
                unbooked = units.saturating_sub(self.limit.saturating_sub(self.estimate(&seen)));
                seen.state.current += units - unbooked;
                (Outcome::Allow, units > unbooked || (seen.repaired && units > 0))
            }
            Op::Reset => {
                *state = SlidingWindowState::default();
                seen = self.seen(state, now);
                (Outcome::Allow, false)
            }
            Op::Release(_) | Op::Renew(_) | Op::Block(_) => (Outcome::Allow, false),
        };
        if write {
            *state = seen.state;
        }
        Decision {
            outcome,
            limit: self.limit,
            remaining: self.limit.saturating_sub(self.estimate(&seen)),
            reset_after: Span::from_micros(self.gone_at(&seen.state) - now.as_micros()),
            unbooked,
            lease: None,
        }
    }

    #[inline]
    fn idle_at(&self, state: &SlidingWindowState) -> Timestamp {
        Timestamp::from_micros(self.gone_at(state))
    }

    #[inline]
    fn is_ahead(&self, state: &SlidingWindowState, now: Timestamp) -> bool {
        state.end > now.as_micros() + self.windows.length
    }

    fn promise(&self, within: Span) -> Option<u64> {
        let (within, length) = (within.as_micros(), self.windows.length);
        if within > length {
            return Some(self.limit.saturating_mul(within / length + 2));
        }
        let part = (u128::from(self.limit) * u128::from(within)).div_ceil(u128::from(length));
        Some(self.limit + crate::rate::narrow(part))
    }

    fn explain(&self, state: &SlidingWindowState, now: Timestamp) -> Explanation {
        let seen = self.seen(state, now);
        let estimate = self.estimate(&seen);
        let next_allowed_at = match self.test(&seen, now, 1) {
            Outcome::Deny { retry_after } => retry_after.map(|wait| now + wait),
            Outcome::Allow | Outcome::Delay(_) => Some(now),
        };
        let end = Timestamp::from_micros(seen.state.end);
        Explanation {
            limit: self.limit,
            remaining: self.limit.saturating_sub(estimate),
            next_allowed_at,
            idle_at: self.idle_at(state),
            detail: Detail::SlidingWindow {
                start: end - Span::from_micros(self.windows.length),
                end,
                previous: seen.state.previous,
                current: seen.state.current,
                estimate,
            },
        }
    }
}

#[cfg(test)]
#[path = "sliding_window_tests.rs"]
mod tests;
