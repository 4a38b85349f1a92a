//! Permits: a request that holds one is in progress.

use tidegate_core::{Span, Timestamp};

use super::ConcurrencyLimiter;

/// The outcome of a request, as far as it matters to the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served: its latency counts.
    Success,
    /// Failed for a reason other than load, or cancelled: nothing counts.
    Ignored,
    /// Refused by the server, or too late: a sign of overload.
    Dropped,
}

/// The permit of one request in progress. Dropping it releases the permit and counts as
/// [`Outcome::Ignored`].
#[derive(Debug)]
#[must_use = "dropping a permit ends the request"]
pub struct Permit {
    limiter: ConcurrencyLimiter,
    /// When the request started. The wait for the permit is not part of its latency.
    started: Timestamp,
    /// The latency, once it is known.
    latency: Option<Span>,
    is_sampled: bool,
}

impl Permit {
    pub(super) fn new(limiter: ConcurrencyLimiter, started: Timestamp) -> Self {
        Self { limiter, started, latency: None, is_sampled: false }
    }

    /// Ends the measured latency; the outcome is reported later. For gRPC responses, whose status
    /// follows the body.
    #[doc(hidden)]
    pub fn stop_clock(&mut self) {
        let now = self.limiter.shared.clock.now();
        self.latency.get_or_insert(now.since(self.started));
    }

    /// Reports the outcome and keeps the permit. For a response whose head is ready: a slow reader
    /// of the body then does not count as a slow server. Later reports are ignored.
    #[inline]
    #[doc(hidden)]
    pub fn report(&mut self, outcome: Outcome) {
        if self.is_sampled {
            return;
        }
        self.is_sampled = true;
        let shared = &self.limiter.shared;
        let now = shared.clock.now();
        let latency = self.latency.unwrap_or_else(|| now.since(self.started));
        shared.record(latency, outcome, now);
    }

    /// Reports the outcome and ends the request.
    #[inline]
    pub fn finish(mut self, outcome: Outcome) {
        self.report(outcome);
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.report(Outcome::Ignored);
        let shared = &self.limiter.shared;
        shared.release(|| shared.clock.now());
    }
}
