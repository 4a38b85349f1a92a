//! What the layer did with a request, for metrics.

use tidegate::Verdict;
use tidegate::concurrency::{Class, Shed};
use tidegate::policy::CheckError;

/// What the layer decided about a request; see [`RateLimitLayer::observe`](crate::RateLimitLayer::observe).
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
    /// How important the request is to the concurrency limiter that it meets next.
    Class(Class),
    /// Refused by the concurrency limiter: 503.
    Shed(&'a Shed),
    /// Not decided: the store is unavailable (503), the request is ambiguous (400), or the limits are
    /// misconfigured (500). Also if the request is then admitted.
    Failed(&'a CheckError),
}
