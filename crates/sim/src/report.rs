//! The figures of a run, counted exactly.

use tidegate_core::{Span, Timestamp};

use crate::run::Run;

/// The figures of one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Requests sent, including retries.
    pub offered: u64,
    /// Requests admitted.
    pub admitted: u64,
    /// Denials.
    pub denied: u64,
    /// Requests whose client gave up.
    pub gave_up: u64,
    /// The most that started within any rolling period of the rate.
    pub max_in_window: u64,
    /// The most that started within any 2 seconds.
    pub max_in_2s: u64,
    /// The longest delay given to an admitted request.
    pub max_delay: Span,
    /// The mean delay of admitted requests, rounded down.
    pub mean_delay: Span,
    /// The most bytes of state kept for the key.
    pub state_bytes: usize,
    /// When the last admitted request started.
    pub last_start: Option<Timestamp>,
}

impl Figures {
    /// Counts `run`, with `period` as the rolling window.
    pub fn of(run: &Run, period: Span) -> Self {
        let admitted = run.starts.len() as u64;
        let mean_us = run.total_delay_us.checked_div(u128::from(admitted)).unwrap_or(0);
        Self {
            offered: admitted + run.denied,
            admitted,
            denied: run.denied,
            gave_up: run.gave_up,
            max_in_window: most_within(&run.starts, period),
            max_in_2s: most_within(&run.starts, Span::from_secs(2)),
            max_delay: run.max_delay,
            mean_delay: Span::from_micros(u64::try_from(mean_us).unwrap_or(u64::MAX)),
            state_bytes: run.state_bytes,
            last_start: run.starts.last().copied(),
        }
    }
}

/// The most of `times` (in order) that any half-open interval of length `within` holds.
///
/// The interval is half-open, because "100 per 60 s" means that a request exactly 60 s after
/// another is in the next minute.
pub fn most_within(times: &[Timestamp], within: Span) -> u64 {
    let mut first = 0;
    let mut most = 0;
    for (last, time) in times.iter().enumerate() {
        while time.since(times[first]) >= within && first < last {
            first += 1;
        }
        most = most.max(last + 1 - first);
    }
    most as u64
}

/// How many of `times` fall into each of `bins` equal parts of `from..=until`. Times outside of the
/// range are ignored.
pub(crate) fn bins(
    times: &[Timestamp],
    from: Timestamp,
    until: Timestamp,
    bins: usize,
) -> Vec<u64> {
    let mut counts = vec![0; bins];
    let length = u128::from(until.since(from).as_micros()) + 1;
    for time in times.iter().filter(|time| (from..=until).contains(*time)) {
        let bin = u128::from(time.since(from).as_micros()) * bins as u128 / length;
        if let Some(count) = usize::try_from(bin).ok().and_then(|bin| counts.get_mut(bin)) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn instants(micros: &[u64]) -> Vec<Timestamp> {
        micros.iter().copied().map(Timestamp::from_micros).collect()
    }

    /// Every interval that starts with a request, counted one by one.
    fn brute_force(times: &[u64], within: u64) -> u64 {
        let count =
            |from: &u64| times.iter().filter(|t| (*from..from + within).contains(t)).count();
        times.iter().map(count).max().unwrap_or(0) as u64
    }

    proptest! {
        #[test]
        fn the_rolling_maximum_is_that_of_counting_every_interval(
            mut times in prop::collection::vec(0u64..300, 0..60),
            within in 1u64..120,
        ) {
            times.sort_unstable();
            let rolling = most_within(&instants(&times), Span::from_micros(within));
            prop_assert_eq!(rolling, brute_force(&times, within));
        }

        #[test]
        fn every_instant_of_the_view_falls_into_one_bin(
            mut times in prop::collection::vec(0u64..300, 0..60),
            parts in 1usize..400,
        ) {
            times.sort_unstable();
            let [from, until] = [50, 249].map(Timestamp::from_micros);
            let counts = bins(&instants(&times), from, until, parts);
            let inside = times.iter().filter(|t| (50..=249).contains(*t)).count() as u64;
            prop_assert_eq!(counts.len(), parts);
            prop_assert_eq!(counts.iter().sum::<u64>(), inside);
        }
    }

    #[test]
    fn a_request_exactly_one_window_later_is_outside() {
        let times = instants(&[0, 10, 20]);
        assert_eq!(most_within(&times, Span::from_micros(10)), 1);
        assert_eq!(most_within(&times, Span::from_micros(11)), 2);
        assert_eq!(most_within(&times, Span::from_micros(21)), 3);
        assert_eq!(most_within(&[], Span::from_micros(10)), 0);
    }
}
