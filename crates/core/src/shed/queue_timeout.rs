//! How long a request may wait for a permit.

use crate::time::{Span, Timestamp};

/// The queue timeout: long while the queue absorbs a burst, short while it only adds delay.
///
/// A queue that has not been empty for [`QueueTimeout::STANDING`] is *overloaded*: waiting longer
/// delays requests without serving more of them. A waiter keeps the queue from being empty, so the
/// instant at which it expires is known when it joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueTimeout {
    /// Longest wait.
    timeout: Span,
    /// Longest wait while overloaded.
    overloaded: Span,
    /// The time since which the queue has not been empty.
    standing_since: Option<Timestamp>,
}

impl QueueTimeout {
    /// The default timeout.
    pub const TIMEOUT: Span = Span::from_millis(100);
    /// After this long without being empty, a queue is overloaded.
    pub const STANDING: Span = Span::from_millis(100);

    /// A timeout for a queue that is empty; while overloaded, a tenth of it.
    pub const fn new(timeout: Span) -> Self {
        let overloaded = Span::from_micros(timeout.as_micros() / 10);
        Self { timeout, overloaded, standing_since: None }
    }

    /// The instant at which a waiter that joins `now` is shed: at its own deadline at the latest.
    /// `None` if the request cannot wait at all.
    pub fn join(&mut self, now: Timestamp, deadline: Option<Timestamp>) -> Option<Timestamp> {
        let standing_since = self.since(now);
        let short = (now + self.overloaded).max(standing_since + Self::STANDING);
        let expires = short.min(now + self.timeout).min(deadline.unwrap_or(Timestamp::MAX));
        if expires <= now {
            return None;
        }
        self.standing_since = Some(standing_since);
        Some(expires)
    }

    /// Notes that the queue is empty.
    pub const fn emptied(&mut self) {
        self.standing_since = None;
    }

    /// True if the queue has not been empty for [`QueueTimeout::STANDING`].
    pub fn is_overloaded(&self, now: Timestamp) -> bool {
        self.standing_since.is_some_and(|since| now.since(since) >= Self::STANDING)
    }

    /// Start of the time in which the queue has not been empty: `now` if it was empty. A clock that
    /// was set back starts a new time.
    fn since(&self, now: Timestamp) -> Timestamp {
        self.standing_since.map_or(now, |since| since.min(now))
    }
}

impl Default for QueueTimeout {
    fn default() -> Self {
        Self::new(Self::TIMEOUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Span::from_secs(1) + Span::from_millis(millis)
    }

    /// Once the queue has not been empty for 100 ms, a waiter gets 10 ms.
    #[test]
    fn ov_18_a_standing_queue_shortens_the_wait() {
        let mut timeout = QueueTimeout::default();
        assert_eq!(timeout.join(at(0), None), Some(at(100)));
        assert!(!timeout.is_overloaded(at(99)));
        assert!(timeout.is_overloaded(at(100)));
        // Joins before the overload, expires because of it.
        assert_eq!(timeout.join(at(50), None), Some(at(100)));
        assert_eq!(timeout.join(at(95), None), Some(at(105)));
        assert_eq!(timeout.join(at(300), None), Some(at(310)));
        timeout.emptied();
        assert!(!timeout.is_overloaded(at(400)));
        assert_eq!(timeout.join(at(400), None), Some(at(500)));
    }

    /// A deadline of 5 ms ends a wait of 10 ms.
    #[test]
    fn ov_19_a_deadline_ends_the_wait_earlier() {
        let mut timeout = QueueTimeout::default();
        assert!(timeout.join(at(0), None).is_some());
        assert_eq!(timeout.join(at(200), Some(at(205))), Some(at(205)));
        assert_eq!(timeout.join(at(200), Some(at(900))), Some(at(210)));
        assert_eq!(timeout.join(at(200), Some(at(200))), None);
    }

    #[test]
    fn a_waiter_without_time_does_not_make_the_queue_stand() {
        let mut timeout = QueueTimeout::default();
        assert_eq!(timeout.join(at(10), Some(at(10))), None);
        assert!(!timeout.is_overloaded(at(500)));
    }

    #[test]
    fn a_clock_set_back_starts_anew() {
        let mut timeout = QueueTimeout::default();
        assert!(timeout.join(at(1_000), None).is_some());
        assert_eq!(timeout.join(at(0), None), Some(at(100)));
        assert!(!timeout.is_overloaded(at(50)));
    }
}
