//! The wait before a retry.

use crate::time::Span;

/// Waits between attempts: a random part of a length that doubles, or the wait that the server
/// gave.
///
/// The first retry waits for up to 100 ms, the next for up to 200 ms, and so on up to 10 s. If the
/// server gave a wait, the retry is never earlier, and up to a tenth later (at most 5 s). In this
/// way clients that were rejected together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    attempts: u32,
}

impl Backoff {
    const FIRST: Span = Span::from_millis(100);
    const LONGEST: Span = Span::from_secs(10);
    const LONGEST_JITTER: Span = Span::from_secs(5);

    /// At most this many attempts of one request, the first included.
    pub const fn attempts(attempts: u32) -> Self {
        Self { attempts }
    }

    /// The wait after attempt number `attempt` (the first is 1), which failed; `None` if the
    /// request has failed for good.
    ///
    /// `retry_after` is the server's `Retry-After` or pushback, `left` the time until the deadline
    /// of the request. A retry that would start after the deadline is not sent. `random` is a
    /// number of 64 random bits.
    pub fn wait(
        &self,
        attempt: u32,
        retry_after: Option<Span>,
        left: Option<Span>,
        random: u64,
    ) -> Option<Span> {
        if attempt >= self.attempts {
            return None;
        }
        let wait = match retry_after {
            Some(retry_after) => {
                let jitter = (retry_after.as_micros() / 10).min(Self::LONGEST_JITTER.as_micros());
                retry_after + part(jitter, random)
            }
            None => {
                let doublings = attempt.saturating_sub(1).min(16);
                let longest = Self::FIRST.as_micros() << doublings;
                part(longest.min(Self::LONGEST.as_micros()), random)
            }
        };
        left.is_none_or(|left| wait < left).then_some(wait)
    }
}

impl Default for Backoff {
    /// Three attempts.
    fn default() -> Self {
        Self::attempts(3)
    }
}

/// A random part of a length, from zero to the whole.
fn part(micros: u64, random: u64) -> Span {
    let part = (u128::from(random) * (u128::from(micros) + 1)) >> 64;
    Span::from_micros(u64::try_from(part).unwrap_or(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ov_48_a_retry_after_the_deadline_is_not_waited_for() {
        let (retry_after, deadline) = (Some(Span::from_secs(7)), Some(Span::from_secs(5)));
        let backoff = Backoff::default();
        assert_eq!(backoff.wait(1, retry_after, deadline, 0), None);
        let wait = backoff.wait(1, retry_after, Some(Span::from_secs(8)), u64::MAX);
        assert_eq!(wait, Some(Span::from_millis(7_700)));
    }

    #[test]
    fn a_retry_is_never_earlier_than_told() {
        let backoff = Backoff::attempts(9);
        for seconds in [1, 10, 60, 3_600] {
            let retry_after = Span::from_secs(seconds);
            let wait = |random| backoff.wait(1, Some(retry_after), None, random).unwrap();
            assert_eq!(wait(0), retry_after);
            let longest = (seconds * 100_000).min(5_000_000);
            assert_eq!(wait(u64::MAX), retry_after + Span::from_micros(longest));
        }
    }

    #[test]
    fn waits_double_up_to_ten_seconds() {
        let backoff = Backoff::attempts(100);
        for (attempt, longest) in
            [(1, 100), (2, 200), (3, 400), (7, 6_400), (8, 10_000), (99, 10_000)]
        {
            assert_eq!(backoff.wait(attempt, None, None, 0), Some(Span::ZERO));
            let wait = backoff.wait(attempt, None, None, u64::MAX);
            assert_eq!(wait, Some(Span::from_millis(longest)), "{attempt}");
        }
        assert_eq!(backoff.wait(100, None, None, 0), None);
    }
}
