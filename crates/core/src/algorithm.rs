//! The one idea: a limit is a pure function of (state, now, operation).

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

/// A limit's arithmetic. `self` is the numbers; the state lives with the caller.
///
/// `decide` is pure: a `&mut` is one value in and one value out. Every implementation keeps the
/// laws below, which the module `laws` (feature `laws`) checks for each:
///
/// - **L1 bound**: no interval admits more than [`Algorithm::promise`] says.
/// - **L2 exact wait**: a denial with `retry_after` w is a denial at w - 1 and an admission at w.
/// - **L3 stable denial**: a denial changes nothing (but see *repair* below).
/// - **L4 additivity**: a and then b at one instant is a + b.
/// - **L5 peek**: `Take(0)` and `Read` write nothing.
/// - **L6 idle**: from [`Algorithm::idle_at`] on, the state decides as no state does.
/// - **L7 time**: a clock that goes back never panics, never frees units within one refill
///   (windows: within one window and one hour), and denies no key for longer than one full refill
///   (windows: at most one hour more, because a window that starts within the hour is kept).
/// - **L8 replay**: the same trace gives the same decisions.
///
/// *Repair.* A state that no history under these numbers could have left (a clock stepped back, a
/// limit was lowered) is brought to the fullest possible one and written, by the first operation
/// that may write, denied or not. Otherwise a key would stay locked for as long as the stale state
/// says.
pub trait Algorithm {
    /// What is remembered of a key. `Default` means never seen.
    type State: Default + Clone + PartialEq + Debug;

    /// Decides one operation and changes the state accordingly.
    fn decide(&self, state: &mut Self::State, now: Timestamp, op: Op) -> Decision;

    /// From this instant on, `state` decides exactly as `State::default()` does.
    ///
    /// It is what makes expiry and eviction algorithm-free: nobody guesses a time to live.
    fn idle_at(&self, state: &Self::State) -> Timestamp;

    /// True if no history under these numbers could have left `state` by `now`.
    ///
    /// Either the clock went back or the numbers changed, and deciding repairs the state; or, where
    /// many decide at once, whoever read the clock was held up since, and had better read it again
    /// than repair what is sound.
    fn is_ahead(&self, state: &Self::State, now: Timestamp) -> bool;

    /// The most that any closed interval of length `within` can admit, returns aside, while time
    /// runs forward and the numbers stay. `None` if the limit bounds something else (in-flight).
    fn promise(&self, within: Span) -> Option<u64>;

    /// What the state means, in words and numbers.
    fn explain(&self, state: &Self::State, now: Timestamp) -> Explanation;
}
