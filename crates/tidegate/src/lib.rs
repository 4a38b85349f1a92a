//! Rate limits and concurrency limits, in memory or shared through Redis: exact, fast and bounded in memory.
//!
//! # Quick start
//! ```
//! use tidegate::{Limit, Limiter, Rate};
//!
//! let limiter = Limiter::new(Limit::token_bucket(Rate::per_second(100)).burst(50).build()?);
//! if limiter.check("api-key-17").is_allowed() {
//!     // serve
//! }
//! # Ok::<(), tidegate::InvalidLimit>(())
//! ```
//!
//! A denial is a value, not an error, and its wait is exact: from [`Verdict::retry_after`] on, to the
//! microsecond, the same request passes.
//!
//! # Tasks
//! | task | use |
//! |---|---|
//! | a cost other than one | [`Limiter::check_cost`] |
//! | read the remaining units without taking any | [`Limiter::peek`] |
//! | return units; clear a key | [`Limiter::refund`], [`Limiter::reset`] |
//! | several limits, all or nothing | [`Limiter::builder`], [`Limiter::check_together`] |
//! | many keys in one call | [`Limiter::check_each`] |
//! | wait instead of being denied | `Limiter::until_ready` (feature `tokio`) |
//! | limit the operations in progress per key | [`Limiter::acquire`] |
//! | protect a server from overload | [`ConcurrencyLimiter`](concurrency::ConcurrencyLimiter) |
//! | share limits between nodes | `SharedStore` and `SharedLimiter` (feature `redis`) |
//! | read all limits from a file | `policy` (features `policy`, `watch`) |
//! | change a limit at run time | [`Limiter::set_limit`] |
//! | explain a decision | [`Limiter::explain`], [`Limiter::report`] |
//! | test with a manual clock | [`ManualClock`] |
//!
//! # Memory
//! A limiter takes at most [`LimiterBuilder::max_bytes`], about 22 bytes per key of a token bucket, and
//! reserves it as keys arrive. Expired state is free space, so there is no sweep and no background thread.
//! If more keys arrive than fit, the limiter evicts the keys with the least debt and never a key that is
//! being denied; [`Limiter::stats`] counts the evictions.
//!
//! A key is stored as 59 bits of a hash with a random secret: among 10 million live keys, the probability
//! that any two share one state is 1 in 10,000.

mod clock;
pub mod concurrency;
mod key;
mod limiter;
#[cfg(feature = "policy")]
pub mod policy;
mod scaling;
pub mod store;
mod sync;
pub mod verdict;

pub use clock::{Clock, ManualClock, SystemClock};
pub use key::{
    Hashing,
    to_key::{KeyBytes, ToKey},
};
#[doc(hidden)]
pub use key::{Key, Scope};
#[doc(hidden)]
pub use limiter::admit::Listing;
#[cfg(feature = "redis")]
#[doc(hidden)]
pub use limiter::shared::Shared;
#[cfg(feature = "redis")]
pub use limiter::shared::SharedLimiter;
#[cfg(feature = "tokio")]
#[doc(hidden)]
pub use limiter::wait::MAX_WAITING;
pub use limiter::{
    Limiter,
    builder::{BuildError, LimiterBuilder},
    permit::{Admission, Permit},
};
pub use tidegate_core::algorithm::inflight::InFlight;
#[doc(hidden)]
pub use tidegate_core::client;
pub use tidegate_core::{
    Algorithm, AlgorithmName, Decision, Detail, Explanation, InvalidLimit, LeaseId, Limit, Op,
    Outcome, Rate, Span, State, Timestamp,
};
pub use verdict::Verdict;

/// Compiles and runs the example of the README with the documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
