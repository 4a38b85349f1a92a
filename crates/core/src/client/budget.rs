//! The retries that a client may send.

use super::Counts;
use crate::time::Timestamp;

/// Bounds retries to a tenth of the requests, plus ten per second, over the last ten seconds.
///
/// If every request fails, unbounded retries multiply the load of a server that is overloaded already.
#[derive(Clone, Copy, Debug)]
pub struct RetryBudget {
    /// Requests, and retries.
    counts: Counts,
}

impl RetryBudget {
    /// Number of requests that earn one retry.
    const REQUESTS: u64 = 10;
    /// Retries allowed in ten seconds independently of the number of requests.
    const RESERVE: u64 = 100;

    /// A budget that has seen no request.
    pub const fn new() -> Self {
        Self { counts: Counts::new() }
    }

    /// Counts a request, but not its retries.
    pub fn requested(&mut self, now: Timestamp) {
        self.counts.current(now).0 += 1;
    }

    /// Takes a retry, if there is one left.
    pub fn take(&mut self, now: Timestamp) -> bool {
        let (requests, retries) = self.counts.totals(now);
        let is_left = retries < requests / Self::REQUESTS + Self::RESERVE;
        self.counts.current(now).1 += u64::from(is_left);
        is_left
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    #[test]
    fn ov_47_a_thousand_failures_in_ten_seconds_lead_to_two_hundred_retries() {
        let mut budget = RetryBudget::new();
        let mut retries = 0;
        for number in 0..1_000 {
            let now = Timestamp::from_secs(1_000) + Span::from_millis(number * 10);
            budget.requested(now);
            // Each request would like to be retried twice.
            retries += (0..2).filter(|_| budget.take(now)).count();
        }
        assert!((150..=200).contains(&retries), "{retries}");
    }

    #[test]
    fn a_few_requests_may_always_be_retried() {
        let mut budget = RetryBudget::new();
        for second in 0..100 {
            let now = Timestamp::from_secs(1_000 + second);
            budget.requested(now);
            assert!((0..10).all(|_| budget.take(now)), "{second}");
        }
    }
}
