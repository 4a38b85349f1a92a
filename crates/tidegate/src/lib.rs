//! A rate limiter people enjoy: exact, fast, bounded.
//!
//! # Three lines
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
//! A denial is a value, not an error, and it is honest: [`Verdict::retry_after`] is the exact time
//! after which the same request passes, to the microsecond.
//!
//! # What else
//! | you want | use |
//! |---|---|
//! | a cost other than one | [`Limiter::check_cost`] |
//! | to ask without taking | [`Limiter::peek`] |
//! | to give back, to start afresh | [`Limiter::refund`], [`Limiter::reset`] |
//! | several limits, all or nothing | [`Limiter::builder`], [`Limiter::check_together`] |
//! | many keys at once, faster | [`Limiter::check_each`] |
//! | to wait instead of being denied | `Limiter::until_ready` (feature `tokio`) |
//! | to limit what runs at once | [`Limiter::acquire`] |
//! | to protect a server from overload | [`ConcurrencyLimiter`] |
//! | the same limits on every node | `RedisStore` and `SharedLimiter` (feature `redis`) |
//! | every limit in one file | `policy` (features `policy`, `watch`) |
//! | other numbers while running | [`Limiter::set_limit`] |
//! | to know why | [`Limiter::explain`], [`Limiter::report`] |
//! | to test without waiting | [`ManualClock`] |
//!
//! # Memory
//! A limiter takes at most [`LimiterBuilder::max_bytes`], about 22 bytes per key of a token bucket, and
//! only as keys come. State that has expired is free space, so nothing is swept and no thread runs
//! in the background. Under an attack with more keys than fit, keys that owe least are forgotten
//! first, keys that are being denied never, and [`Limiter::stats`] counts it.
//!
//! Keys are kept as 59 bits of a hash with a secret drawn at start: among 10 million live keys the
//! odds that any two share a budget are 1 in 10,000.

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
pub use concurrency::ConcurrencyLimiter;
pub use key::{Hashing, Key, KeyBytes, Scope, ToKey};
#[cfg(feature = "tokio")]
pub use limiter::MAX_WAITING;
pub use limiter::{Admission, BuildError, Limiter, LimiterBuilder, Listing, Permit};
#[cfg(feature = "redis")]
pub use limiter::{Shared, SharedLimiter};
pub use store::memory::MemoryStats;
pub use tidegate_core::algorithm::inflight::InFlight;
pub use tidegate_core::client;
pub use tidegate_core::{
    Algorithm, AlgorithmName, Decision, Detail, Explanation, InvalidLimit, LeaseId, Limit, Op,
    Outcome, Rate, Span, State, Timestamp,
};
pub use verdict::Verdict;

/// The example of the readme is compiled and run with those of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
