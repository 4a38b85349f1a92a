//! The last state that the store returned for a key, as the state of this node's share.
//!
//! A share is a fraction of the limit that refills in the same time. A state of the limit is
//! therefore converted to the state of the share with the same fraction used: a bucket is full at
//! the same instant, and a window has the same part of its units used.

use std::num::NonZeroU32;

use tidegate_core::algorithm::blocking::{Block, BlockingState};
use tidegate_core::algorithm::bucket::{BucketState, Moment};
use tidegate_core::algorithm::fixed_window::FixedWindow;
use tidegate_core::algorithm::sliding_log::{Entry, SlidingLogState};
use tidegate_core::{Algorithm, Decision, Limit, Op, State, Timestamp};

use crate::scaling::units_of_share;
use crate::store::shared::Layers;
use crate::store::{Charge, Store};

impl<S: Store + 'static> Layers<S> {
    /// Remembers the state behind a decision of the store, for use while the store is unavailable.
    /// A share that this node has charged further keeps its own state, because those debits may
    /// still be pending.
    pub(super) fn learn(&self, at: Timestamp, charge: &Charge<'_>, decision: &Decision) {
        if charge.op == Op::Reset {
            let limit = self.share_of(charge);
            self.fallback.shares.decide(at, &Charge { limit: &limit, ..*charge });
        }
        // A key that the store does not know gets a whole share.
        if decision.remaining == decision.limit && decision.reset_after.is_zero() {
            return;
        }
        if let Some(state) = share_state(charge.limit, self.fallback.nodes.count(), at, decision) {
            let print = self.print(charge);
            self.fallback.shares.put(at, print, charge.limit, (state, decision));
        }
    }
}

/// The state of a node's share after the store made this decision; `None` for a limit whose places are
/// released elsewhere.
fn share_state(
    limit: &Limit,
    nodes: NonZeroU32,
    at: Timestamp,
    decision: &Decision,
) -> Option<State> {
    let used = decision.limit.saturating_sub(decision.remaining);
    let used = || units_of_share(used, nodes);
    // The window that `at` lies in.
    let window = || {
        let mut state = State::default();
        limit.decide(&mut state, at, Op::Force(1));
        state
    };
    let full = at + decision.reset_after;
    Some(match limit {
        Limit::Bucket(_) => {
            let full_at = Moment { ticks: full.as_micros(), part: 0 };
            State::Bucket(BucketState { full_at })
        }
        Limit::FixedWindow(_) => match window() {
            State::FixedWindow(mut state) => {
                state.count = used().min(FixedWindow::MAX);
                State::FixedWindow(state)
            }
            _ => return None,
        },
        // The decision does not show how many units count in the previous window. Counting all of
        // them in the current window admits no more than the store would, and less until the next
        // window.
        Limit::SlidingWindow(_) => match window() {
            State::SlidingWindow(mut state) => {
                state.current = used().min(1 << 32);
                State::SlidingWindow(state)
            }
            _ => return None,
        },
        // The log is empty once its newest entry expires.
        Limit::SlidingLog(log) => {
            let at = full.as_micros().saturating_sub(log.length().as_micros());
            State::SlidingLog(SlidingLogState::restore([Entry { at, weight: used() }]))
        }
        Limit::Blocking(blocking) => {
            let rate = blocking.rate();
            // During a block, `reset_after` is the end of the block, which may be later than the
            // instant at which the rate is full.
            let used_up = rate.decide(&mut State::default(), at, Op::Force(decision.limit));
            let reset_after = decision.reset_after.min(used_up.reset_after);
            let of_rate = Decision { reset_after, ..*decision };
            let until = at + decision.retry_after().unwrap_or_default();
            let block = Block { from: at.as_micros(), until: until.as_micros() };
            let rate = Box::new(share_state(&rate, nodes, at, &of_rate)?);
            State::Blocking(BlockingState { block, rate })
        }
        _ => return None,
    })
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
