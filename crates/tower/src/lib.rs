//! Rate limits and concurrency limits for [tower](https://docs.rs/tower) services: axum, tonic, hyper.
//!
//! ```
//! use tidegate::{Limit, Limiter, Rate};
//! use tidegate_tower::{ApiKey, RateLimitLayer};
//!
//! let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(100)).build()?);
//! let layer = RateLimitLayer::limit(limiter).identify(ApiKey);
//! // axum: Router::new().route("/", get(handler)).layer(layer)
//! # let _ = layer;
//! # Ok::<(), tidegate::InvalidLimit>(())
//! ```
//!
//! | you want | use |
//! |---|---|
//! | one limit, or several, per key | [`RateLimitLayer::limit`] |
//! | limits by route, client and plan from a file | [`RateLimitLayer::policy`] |
//! | to choose the key | [`ClientIp`], [`Header`], [`ApiKey`], [`FromExtension`], `MatchedRoute`, a closure |
//! | to protect the server from overload | [`RateLimitLayer::protect`]; beside limits, [`RateLimitLayer::concurrency`] |
//! | other header fields or bodies | [`RateLimitLayer::answers`] |
//! | another cost or key for a request | [`RateLimitLayer::cost`], [`Cost`], [`Key`] |
//! | to charge by the response | a policy with `count`, `refund` or `actual`; [`ActualCost`] |
//! | to try a limit without denying | [`RateLimitLayer::shadow`] |
//! | metrics | [`RateLimitLayer::observe`] |
//! | a client that retries, throttles and paces itself | `client` (feature `client`) |
//!
//! # State
//! Clones of a layer and of its services share one state, so a limit on a route holds for all requests of
//! that route. `poll_ready` only forwards the readiness of the inner service; a request waits in its
//! response future, where its key is known.
//!
//! # Order of layers
//! Outermost first: trace, authentication, [`RateLimitLayer`], timeout, handler.

mod answer;
mod body;
mod charge;
#[cfg(feature = "client")]
pub mod client;
mod event;
mod future;
mod identify;
mod layer;
mod outcome;
mod request;
mod service;
mod settle;
mod source;
mod waiting;

pub use answer::{AnswerBody, Answers};
pub use body::ResponseBody;
pub use event::Event;
pub use future::ResponseFuture;
#[cfg(feature = "axum")]
pub use identify::MatchedRoute;
pub use identify::{ApiKey, ClientIp, FromExtension, Header, Identify, OneKey};
pub use layer::{Hold, RateLimitLayer, Unkeyed};
pub use request::{Cost, Key, Lease, Timeout};
pub use service::RateLimit;
pub use settle::ActualCost;

/// Compiles and runs the example of the readme as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
