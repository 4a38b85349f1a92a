//! The [`Algorithm`] trait: a limit is a pure function of (state, now, operation).

pub mod blocking;
pub mod bucket;
pub mod fixed_window;
pub mod inflight;
pub mod sliding_log;
pub mod sliding_window;
pub(crate) mod window;

use core::fmt::Debug;

use crate::decision::{Decision, Op};
use crate::explain::Explanation;
use crate::time::{Span, Timestamp};

/// The arithmetic of a limit. `self` holds the configured numbers; the caller holds the state.
///
/// `decide` is pure: the state passed as `&mut` is its only input and output besides the arguments.
/// Every implementation obeys the laws below, which the module `laws` (feature `laws`) checks:
///
/// - **L1 bound**: no interval admits more than [`Algorithm::promise`] units.
/// - **L2 exact wait**: a denial with `retry_after` w is a denial at w - 1 and an admission at w.
/// - **L3 stable denial**: a denial does not change the state (except for a *repair*, see below, and
///   for the block that the first denial of a [`blocking`] rate starts).
/// - **L4 additivity**: taking a and then b at one instant equals taking a + b.
/// - **L5 peek**: `Take(0)` and `Read` write nothing.
/// - **L6 idle**: from [`Algorithm::idle_at`] on, the state decides like a fresh state.
/// - **L7 time**: a clock that goes back never panics, never frees units within one refill
///   (windows: within one window and one hour), and denies no key for longer than one full refill
///   (windows: at most one hour more, because a window that starts within the hour is kept).
/// - **L8 replay**: the same trace gives the same decisions.
///
/// *Repair.* A clock that stepped back or a lowered limit can leave a state that no history under
/// the current numbers could have produced. The first operation that may write, denied or not,
/// replaces such a state by a possible one: the debt of a bucket is clamped to its capacity, and a
/// window starts again. Without the repair, the key would stay locked until the stale state ends.
pub trait Algorithm {
    /// The state of one key. `Default` is the state of a new key.
    type State: Default + Clone + PartialEq + Debug;

    /// Decides one operation and changes the state accordingly.
    fn decide(&self, state: &mut Self::State, now: Timestamp, op: Op) -> Decision;

    /// From this instant on, `state` decides exactly as `State::default()` does.
    ///
    /// Stores expire and evict keys by this instant, so they need no time to live per algorithm.
    fn idle_at(&self, state: &Self::State) -> Timestamp;

    /// True if no history under these numbers could have left `state` by `now`.
    ///
    /// Either the clock went back or the numbers changed, and `decide` repairs the state. Or, where
    /// threads decide concurrently, the caller was delayed after it read the clock; it should then
    /// read the clock again instead of repairing a sound state.
    fn is_ahead(&self, state: &Self::State, now: Timestamp) -> bool;

    /// The most that any closed interval of length `within` can admit, not counting returned units,
    /// while time runs forward and the numbers stay. `None` if the limit does not bound a rate
    /// (in-flight).
    fn promise(&self, within: Span) -> Option<u64>;

    /// Describes the state in words and numbers.
    fn explain(&self, state: &Self::State, now: Timestamp) -> Explanation;
}
