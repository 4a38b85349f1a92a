//! Layers for clients that do not make an overload worse: retries, throttling, pacing.
//!
//! They wrap any client that is a tower service of `http::Request`: hyper's, tonic's `Channel`, and reqwest's
//! through [`tower::service_fn`](https://docs.rs/tower/latest/tower/fn.service_fn.html).
//!
//! | layer | does |
//! |---|---|
//! | [`RetryLayer`] | retries failed requests within a budget, never before `Retry-After` |
//! | [`ThrottleLayer`] | rejects requests in the client while the server rejects most of them |
//! | [`PaceLayer`] | waits until a limit of the client's own admits the request |
//!
//! Outermost first: retry, throttle, pace.

mod pace;
mod replay;
mod reply;
mod retry;
mod throttle;

pub use pace::{Pace, PaceLayer};
pub use replay::{MAX_REPLAYED, ReplayBody};
pub use retry::{Retry, RetryLayer};
pub use throttle::{ClientThrottle, ThrottleLayer};

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
