//! The results of a scenario, second by second.

use std::ops::Range;

use tidegate_core::Span;

use super::scenario::CLASSES;

/// The result of one contender in one scenario.
#[derive(Clone, Debug)]
pub struct OverloadReport {
    /// Every second, in order.
    pub seconds: Vec<Second>,
    /// Requests per second that the healthy server can serve, in thousandths.
    pub capacity: u64,
}

/// The figures of one second.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// Requests of users by class, without retries.
    pub requests: [u64; CLASSES.len()],
    /// Requests answered within their deadline, by class.
    pub served: [u64; CLASSES.len()],
    /// Attempts that were shed, by class.
    pub shed: [u64; CLASSES.len()],
    /// Attempts that were sent, including retries.
    pub attempts: u64,
    /// Requests in progress at the end of the second.
    pub in_flight: u32,
    /// The limit at the end of the second, if there is one.
    pub limit: Option<u32>,
    /// The median time from arrival to response of the requests that were admitted.
    pub p50: Span,
    /// The 99th percentile of these times.
    pub p99: Span,
}

impl OverloadReport {
    /// Requests answered in time, in per cent of the healthy server's capacity.
    pub fn goodput(&self, seconds: Range<usize>) -> u64 {
        let length = seconds.len() as u64;
        let served: u64 =
            self.within(seconds).map(|second| second.served.iter().sum::<u64>()).sum();
        served * 100_000 / (self.capacity * length).max(1)
    }

    /// Requests of a class answered in time, in thousandths of those sent.
    pub fn success(&self, class: usize, seconds: Range<usize>) -> u64 {
        let (mut served, mut requests) = (0, 0);
        for second in self.within(seconds) {
            served += second.served[class];
            requests += second.requests[class];
        }
        (served * 1_000).checked_div(requests).unwrap_or(1_000)
    }

    /// Attempts that were shed, in hundredths of a per cent of those sent.
    pub fn shed(&self, seconds: Range<usize>) -> u64 {
        let (mut shed, mut attempts) = (0, 0);
        for second in self.within(seconds) {
            shed += second.shed.iter().sum::<u64>();
            attempts += second.attempts;
        }
        (shed * 10_000).checked_div(attempts).unwrap_or(0)
    }

    /// The largest limit.
    pub fn highest_limit(&self, seconds: Range<usize>) -> Option<u32> {
        self.within(seconds).filter_map(|second| second.limit).max()
    }

    /// The median of the seconds' 99th percentiles.
    pub fn p99(&self, seconds: Range<usize>) -> Span {
        let mut all: Vec<Span> = self.within(seconds).map(|second| second.p99).collect();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }

    fn within(&self, seconds: Range<usize>) -> impl Iterator<Item = &Second> {
        self.seconds.iter().skip(seconds.start).take(seconds.len())
    }
}
