//! A rate with a block: after a denial, the key is denied for a set time.
//!
//! # Idea
//! The rate decides as it does alone, and its state has a *block* beside it: the instants from and
//! until which every take is denied. The first denial starts the block; later denials do not extend
//! it. An operator can set a block and lift it ([`Op::Block`]).
//!
//! # Promise
//! The bound of the rate holds, because a block only adds denials. A block that a denial starts lasts
//! `block_for`; a block that an operator sets lasts at most 30 days.
//!
//! # State
//! The state of the rate and two instants.
//!
//! # When to use, when not
//! Guessed passwords, scrapers, clients that ignore `Retry-After`. A block punishes a client that is
//! over its limit by one request, so it is not for ordinary quotas.
//!
//! # Reference
//! Cloudflare's mitigation timeout; fail2ban's `bantime`.

use alloc::boxed::Box;

use crate::algorithm::Algorithm;
use crate::algorithm::bucket::Bucket;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::decision::{Decision, Op, Outcome};
use crate::explain::{Detail, Explanation};
use crate::invalid::InvalidLimit;
use crate::limit::{Limit, State};
use crate::time::{Span, Timestamp};

/// A rate whose denials start a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocking {
    rate: Rated,
    block_for: u64,
}

/// The limits that can have a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rated {
    Bucket(Bucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
}

/// The state of the rate, and the block beside it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockingState {
    /// The block.
    pub block: Block,
    /// The state of the rate.
    pub rate: Box<State>,
}

/// A time in which every take is denied. The default is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Block {
    /// The microsecond at which the block was set.
    pub from: u64,
    /// The microsecond from which the rate decides takes again.
    pub until: u64,
}

impl Block {
    /// The block as seen from `now`. If the clock went back to before the block was set, the block
    /// moves back with it and keeps its length.
    const fn seen(self, now: Timestamp) -> Self {
        let ahead = self.from.saturating_sub(now.as_micros());
        Self { from: self.from - ahead, until: self.until.saturating_sub(ahead) }
    }

    /// The remaining length of the block at `now`; `None` if it has ended.
    const fn left(self, now: Timestamp) -> Option<Span> {
        match self.until.checked_sub(now.as_micros()) {
            None | Some(0) => None,
            Some(left) => Some(Span::from_micros(left)),
        }
    }

    const fn lasting(now: Timestamp, span: u64) -> Self {
        if span == 0 {
            return Self { from: 0, until: 0 };
        }
        Self { from: now.as_micros(), until: now.as_micros() + span }
    }
}

impl Blocking {
    /// The longest block: 30 days.
    pub const MAX_BLOCK: Span = Span::from_secs(30 * 86_400);

    /// Adds a block of `block_for` after a denial to `limit`. In-flight limits have no blocks.
    pub fn new(limit: Limit, block_for: Span) -> Result<Self, InvalidLimit> {
        let rate = match limit {
            Limit::Bucket(it) => Rated::Bucket(it),
            Limit::FixedWindow(it) => Rated::FixedWindow(it),
            Limit::SlidingWindow(it) => Rated::SlidingWindow(it),
            Limit::SlidingLog(it) => Rated::SlidingLog(it),
            Limit::InFlight(_) | Limit::Blocking(_) => return Err(InvalidLimit::BlockOutsideRate),
        };
        if block_for.is_zero() || block_for > Self::MAX_BLOCK {
            return Err(InvalidLimit::BlockTime);
        }
        Ok(Self { rate, block_for: block_for.as_micros() })
    }

    /// The rate without its block.
    pub const fn rate(&self) -> Limit {
        match self.rate {
            Rated::Bucket(it) => Limit::Bucket(it),
            Rated::FixedWindow(it) => Limit::FixedWindow(it),
            Rated::SlidingWindow(it) => Limit::SlidingWindow(it),
            Rated::SlidingLog(it) => Limit::SlidingLog(it),
        }
    }

    /// How long a denial blocks its key.
    pub const fn block_for(&self) -> Span {
        Span::from_micros(self.block_for)
    }

    /// The name of the state family, by that of the rate.
    pub(crate) const fn family(&self) -> &'static str {
        match self.rate {
            Rated::Bucket(_) => "blocking_bucket",
            Rated::FixedWindow(_) => "blocking_fixed_window",
            Rated::SlidingWindow(_) => "blocking_sliding_window",
            Rated::SlidingLog(_) => "blocking_sliding_log",
        }
    }

    /// Takes `cost` units. A denial starts the block, unless the cost can never fit.
    fn take(&self, state: &mut BlockingState, now: Timestamp, cost: u64) -> Decision {
        let block = state.block.seen(now);
        if block.left(now).is_some() {
            // Like every denial, this one repairs the state. Otherwise a rate that is ahead of a
            // clock that went back would still deny after the reported wait.
            state.block = block;
            self.repair(&mut state.rate, now);
            let decision = self.rate().decide(&mut state.rate, now, Op::Read(cost));
            return self.denied(decision, block, now, cost);
        }
        let decision = self.rate().decide(&mut state.rate, now, Op::Take(cost));
        if !decision.is_allowed() && !decision.is_never() {
            state.block = Block::lasting(now, self.block_for);
            return self.denied(decision, state.block, now, cost);
        }
        decision
    }

    /// Repairs the state of the rate and changes nothing else. A window that counts denied requests
    /// does not count requests denied by the block.
    fn repair(&self, rate: &mut State, now: Timestamp) {
        let limit = match self.rate {
            Rated::FixedWindow(window) => Limit::FixedWindow(window.ignoring_denied()),
            _ => self.rate(),
        };
        // A cost that can never fit is denied and takes no units.
        limit.decide(rate, now, Op::Take(u64::MAX));
    }

    /// The rate's decision, changed to a denial until the block ends.
    fn denied(&self, decision: Decision, block: Block, now: Timestamp, cost: u64) -> Decision {
        let left = block.left(now).unwrap_or(Span::ZERO);
        let outcome = match decision.outcome {
            _ if cost == 0 => decision.outcome,
            Outcome::Deny { retry_after: None } => decision.outcome,
            Outcome::Deny { retry_after: Some(wait) } => {
                Outcome::Deny { retry_after: Some(wait.max(left)) }
            }
            Outcome::Allow | Outcome::Delay(_) => Outcome::Deny { retry_after: Some(left) },
        };
        let reset_after = decision.reset_after.max(left);
        Decision { outcome, remaining: 0, reset_after, ..decision }
    }

    /// An operation that takes no units, as it is decided under the block.
    fn standing(&self, decision: Decision, state: &BlockingState, now: Timestamp) -> Decision {
        match state.block.seen(now).left(now) {
            None => decision,
            Some(left) => {
                let reset_after = decision.reset_after.max(left);
                Decision { remaining: 0, reset_after, ..decision }
            }
        }
    }
}

impl Algorithm for Blocking {
    type State = BlockingState;

    fn decide(&self, state: &mut BlockingState, now: Timestamp, op: Op) -> Decision {
        match op {
            Op::Take(cost @ 1..) => self.take(state, now, cost),
            Op::Take(cost) | Op::Read(cost) => {
                let decision = self.rate().decide(&mut state.rate, now, Op::Read(cost));
                let block = state.block.seen(now);
                match decision.outcome {
                    _ if block.left(now).is_some() => self.denied(decision, block, now, cost),
                    // A take would start the block.
                    Outcome::Deny { retry_after: Some(wait) } if cost > 0 => {
                        let retry_after = Some(wait.max(self.block_for()));
                        Decision { outcome: Outcome::Deny { retry_after }, ..decision }
                    }
                    _ => decision,
                }
            }
            Op::Block(span) => {
                state.block = Block::lasting(now, span.min(Self::MAX_BLOCK).as_micros());
                let decision = self.rate().decide(&mut state.rate, now, Op::Read(0));
                self.standing(Decision { outcome: Outcome::Allow, ..decision }, state, now)
            }
            Op::Reset => {
                state.block = Block::default();
                self.rate().decide(&mut state.rate, now, op)
            }
            Op::Return(_)
            | Op::ReturnOwed { .. }
            | Op::Force(_)
            | Op::Release(_)
            | Op::Renew(_) => {
                let decision = self.rate().decide(&mut state.rate, now, op);
                if let Op::Force(1..) = op {
                    // Like a forced cost on the rate, this repairs the state.
                    state.block = state.block.seen(now);
                }
                self.standing(decision, state, now)
            }
        }
    }

    fn idle_at(&self, state: &BlockingState) -> Timestamp {
        self.rate().idle_at(&state.rate).max(Timestamp::from_micros(state.block.until))
    }

    fn is_ahead(&self, state: &BlockingState, now: Timestamp) -> bool {
        state.block.from > now.as_micros() || self.rate().is_ahead(&state.rate, now)
    }

    fn promise(&self, within: Span) -> Option<u64> {
        self.rate().promise(within)
    }

    fn explain(&self, state: &BlockingState, now: Timestamp) -> Explanation {
        let rate = self.rate().explain(&state.rate, now);
        let until = state.block.seen(now).left(now).map(|left| now + left);
        let Some(until) = until else { return rate };
        Explanation {
            remaining: 0,
            next_allowed_at: rate.next_allowed_at.map(|at| at.max(until)),
            idle_at: self.idle_at(state),
            detail: Detail::Blocked { until, rate: Box::new(rate.detail) },
            ..rate
        }
    }
}

#[cfg(test)]
#[path = "blocking_tests.rs"]
mod tests;
