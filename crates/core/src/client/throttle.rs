//! Adaptive client throttling, from chapter 21 of "Site Reliability Engineering".

use super::Counts;
use crate::time::{Span, Timestamp};

/// Rejects requests on the client's side with the probability
/// `max(0, (requests − 2 · accepted) / (requests + 1))`, over the last ten seconds.
///
/// A request counts when it is about to be sent, so that requests in progress to a server that does not
/// answer count too. If no request was sent for a second, the next one is sent in any case: without such
/// trials a client would not notice that the server has recovered.
///
/// ```
/// use tidegate_core::Timestamp;
/// use tidegate_core::client::Throttle;
///
/// let (mut throttle, now) = (Throttle::new(), Timestamp::from_secs(100));
/// assert!(throttle.admits(now, 17));
/// throttle.accepted(now);
/// assert_eq!(throttle.rejection(now).0, 0);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    /// Requests, and requests that the server accepted.
    counts: Counts,
    sent_at: Option<Timestamp>,
}

impl Throttle {
    /// Accepted requests count this many times.
    const FACTOR: u64 = 2;
    /// Time between two trials.
    const TRIAL: Span = Span::from_secs(1);

    /// A throttle that has seen no request.
    pub const fn new() -> Self {
        Self { counts: Counts::new(), sent_at: None }
    }

    /// The probability of a rejection, as numerator and denominator.
    pub fn rejection(&mut self, now: Timestamp) -> (u64, u64) {
        let (requests, accepted) = self.counts.totals(now);
        (requests.saturating_sub(accepted.saturating_mul(Self::FACTOR)), requests + 1)
    }

    /// Counts a request, and decides whether to send it; `random` is a number of 64 random bits.
    pub fn admits(&mut self, now: Timestamp, random: u64) -> bool {
        let (part, whole) = self.rejection(now);
        self.counts.current(now).0 += 1;
        let is_trial = self.sent_at.is_none_or(|sent| now.since(sent) >= Self::TRIAL);
        // random / 2^64 < part / whole
        let is_rejected = u128::from(random) * u128::from(whole) < u128::from(part) << 64;
        let is_sent = is_trial || !is_rejected;
        if is_sent {
            self.sent_at = Some(now);
        }
        is_sent
    }

    /// Counts a request that the server accepted: it was neither rejected nor lost.
    pub fn accepted(&mut self, now: Timestamp) {
        self.counts.current(now).1 += 1;
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Span::from_millis(millis)
    }

    #[test]
    fn ov_46_the_probability_follows_accepted_requests() {
        let mut throttle = Throttle::new();
        for number in 0..100 {
            throttle.admits(at(0), u64::MAX);
            if number < 20 {
                throttle.accepted(at(0));
            }
        }
        assert_eq!(throttle.rejection(at(0)), (60, 101));
        let mut healthy = Throttle::new();
        for _ in 0..100 {
            assert!(healthy.admits(at(0), 0));
            healthy.accepted(at(0));
        }
        assert_eq!(healthy.rejection(at(0)).0, 0);
    }

    #[test]
    fn a_random_number_below_the_probability_rejects() {
        let mut throttle = Throttle::new();
        // 99 requests, none accepted: 99 of 100 are rejected.
        for _ in 0..99 {
            throttle.admits(at(0), u64::MAX);
        }
        let share = (99_u128 << 64) / 100;
        let share = u64::try_from(share).unwrap();
        assert!(!{ throttle }.admits(at(0), share), "just below");
        assert!({ throttle }.admits(at(0), share + 1), "just above");
    }

    #[test]
    fn one_trial_per_second_is_always_sent() {
        let mut throttle = Throttle::new();
        let sent = (0..10_000).filter(|millis| throttle.admits(at(*millis), 0)).count();
        assert_eq!(sent, 10);
    }

    /// With counts of two minutes, a client still rejected nine of ten requests of its own after a minute.
    #[test]
    fn a_client_recovers_within_35_seconds_of_an_outage_of_three_minutes() {
        const PAUSE: u64 = 20;
        let (mut throttle, mut random) = (Throttle::new(), 1_u64);
        let mut sent_between = |from: u64, to: u64, is_up: bool| {
            let mut sent = 0;
            for number in from * 1_000 / PAUSE..to * 1_000 / PAUSE {
                let millis = number * PAUSE;
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if throttle.admits(at(millis), random) {
                    sent += 1;
                    if is_up {
                        throttle.accepted(at(millis));
                    }
                }
            }
            sent * PAUSE * 100 / ((to - from) * 1_000)
        };
        assert_eq!(sent_between(0, 60, true), 100);
        let in_outage = sent_between(60, 240, false);
        assert!(in_outage < 15, "{in_outage} % in the outage");
        sent_between(240, 275, true);
        assert_eq!(sent_between(275, 280, true), 100);
    }

    #[test]
    fn counts_end_after_ten_seconds() {
        let mut throttle = Throttle::new();
        for _ in 0..50 {
            throttle.admits(at(0), 0);
        }
        assert_eq!(throttle.rejection(at(9_000)), (50, 51));
        assert_eq!(throttle.rejection(at(10_000)), (0, 1));
        // A clock that was set back revives nothing.
        assert_eq!(throttle.rejection(at(0)), (0, 1));
    }
}
