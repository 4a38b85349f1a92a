//! Retry times of clients that are denied to protect the server: the larger the fraction of
//! denials, the longer the time over which retries are spread.

use tidegate_core::shed::{retry_after, retry_spread};
use tidegate_core::{Span, Timestamp};

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The denials of a limit in the current second, and the retry spread computed from the last
/// second.
#[derive(Debug)]
pub(in crate::policy) struct RetrySpread {
    second: AtomicU64,
    denied: AtomicU64,
    requests: AtomicU64,
    spread: AtomicU32,
    /// Numbers the denials.
    next: AtomicU64,
}

impl Default for RetrySpread {
    fn default() -> Self {
        Self {
            second: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            spread: AtomicU32::new(1),
            next: AtomicU64::new(0),
        }
    }
}

impl RetrySpread {
    /// Counts a request, and returns the wait to report if it is denied.
    pub(in crate::policy) fn count(&self, now: Timestamp, is_denied: bool) -> Option<Span> {
        let second = now.as_micros() / Span::from_secs(1).as_micros();
        let before = self.second.swap(second, Ordering::Relaxed);
        if before != second {
            let denied = self.denied.swap(0, Ordering::Relaxed);
            let requests = self.requests.swap(0, Ordering::Relaxed);
            let is_last = second.abs_diff(before) == 1;
            let spread = if is_last { retry_spread(denied, requests) } else { 1 };
            self.spread.store(spread, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !is_denied {
            return None;
        }
        self.denied.fetch_add(1, Ordering::Relaxed);
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        Some(retry_after(ticket, self.spread.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If nine of ten requests were denied in the last second, retries are spread over ten seconds.
    #[test]
    fn ov_33_the_wait_spreads_with_the_part_that_is_denied() {
        let spread = RetrySpread::default();
        let second = |seconds| {
            let wait = |number| spread.count(Timestamp::from_secs(seconds), number % 10 > 0);
            (0..1_000).filter_map(wait).map(|wait| wait.as_micros() / 1_000_000).max()
        };
        assert_eq!(second(1), Some(1), "nothing is known yet");
        assert_eq!(second(2), Some(10));
        assert_eq!(second(60), Some(1), "a busy second long ago");
    }
}
