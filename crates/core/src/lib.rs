//! Exact rate-limit arithmetic without I/O.
//!
//! A limit is a pure function of (state, now, operation). This crate holds those functions: no
//! clock, no store, no I/O, no floating point, no dependencies. The memory store, the Redis scripts
//! and the simulator only transport states; each is tested against these functions decision by
//! decision.
//!
//! | you want | use |
//! |---|---|
//! | any limit behind one type | [`Limit`], [`State`] |
//! | one algorithm | [`algorithm`] |
//! | operations and their results | [`Op`], [`Decision`] |
//! | the keys with the most traffic | [`sketch`] |
//! | a concurrency limit that follows the server | [`adaptive`], [`window`] |
//! | to shed the least important requests first | [`shed`] |
//! | to retry without causing overload | [`client`] |
//! | to test a new algorithm or store | `laws` (feature `laws`) |
//!
//! ```
//! use tidegate_core::{Algorithm, Limit, Op, Rate, State, Timestamp};
//!
//! let limit = Limit::token_bucket(Rate::per_minute(100)).burst(50).build()?;
//! let mut state = State::default();
//! let decision = limit.decide(&mut state, Timestamp::from_secs(0), Op::Take(1));
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining, 49);
//! # Ok::<(), tidegate_core::InvalidLimit>(())
//! ```

#![cfg_attr(not(test), no_std)]
#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    clippy::float_arithmetic
)]

extern crate alloc;

pub mod adaptive;
pub mod algorithm;
pub mod client;
mod decision;
mod explain;
mod invalid;
#[cfg(any(test, feature = "laws"))]
pub mod laws;
mod limit;
mod rate;
pub mod shed;
pub mod sketch;
mod time;
pub mod window;

pub use algorithm::Algorithm;
pub use decision::{Decision, LeaseId, MAX_COST, Op, Outcome};
pub use explain::{Detail, Explanation};
pub use invalid::InvalidLimit;
pub use limit::{AlgorithmName, Builder, Limit, State, UnknownAlgorithm};
pub use rate::Rate;
pub use time::{Span, Timestamp};
