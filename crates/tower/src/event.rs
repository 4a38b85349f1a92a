//! The layer's decisions about requests, for metrics.

use tidegate::Verdict;
use tidegate::concurrency::{Class, Shed};
use tidegate::policy::CheckError;

/// A decision of the layer about a request; see
/// [`RateLimitLayer::observe`](crate::RateLimitLayer::observe).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Within its limits, perhaps after a delay. It may still be [shed](Event::Shed).
    Admitted(&'a Verdict),
    /// Denied by a limit: 429, or 503 if the store is unavailable and the policy denies then.
    Denied(&'a Verdict),
    /// Would have been denied, but the layer is in shadow mode.
    WouldDeny(&'a Verdict),
    /// Denied because its delay ends after its deadline: 429.
    TooLate(&'a Verdict),
    /// The class that the next concurrency limiter sees for the request.
    Class(Class),
    /// Refused by the concurrency limiter: 503.
    Shed(&'a Shed),
    /// Not decided: the store is unavailable (503), the request is ambiguous (400), or the limits
    /// are misconfigured (500). Reported even if the request is then admitted.
    Failed(&'a CheckError),
}
