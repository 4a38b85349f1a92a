//! The latencies of one window, and when a window ends.
//!
//! An [`Estimator`](crate::adaptive::Estimator) computes its limit from windows of completed
//! requests, not from single requests. A carrier (the concurrency limiter or the simulator) records
//! each latency in a [`Histogram`], asks [`Window::due`] whether the window is complete, and then
//! hands [`WindowStats`](crate::adaptive::WindowStats) to the estimator.
//!
//! A window that ends too early contains only short requests, because those complete first. Its
//! median is too low and the limit falls although nothing is wrong. Therefore a window lasts for at
//! least four times its own median.

use crate::adaptive::Probe;
use crate::time::{Span, Timestamp};

/// Counts latencies in buckets: eight per power of two, so a bucket is at most 12.5 % wide.
///
/// Latencies below 16 µs are exact; those above 4.7 hours share the last bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u32; Self::BUCKETS],
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 256;

    /// Buckets per power of two, and its logarithm.
    const PER_OCTAVE: u64 = 1 << Self::OCTAVE_BITS;
    const OCTAVE_BITS: u32 = 3;

    /// An empty histogram.
    pub const fn new() -> Self {
        Self { counts: [0; Self::BUCKETS] }
    }

    /// A histogram from counts that a carrier kept itself, for example in atomics.
    pub const fn from_counts(counts: [u32; Self::BUCKETS]) -> Self {
        Self { counts }
    }

    /// The index of the bucket that `latency` belongs to, below [`Histogram::BUCKETS`].
    #[inline]
    pub fn bucket(latency: Span) -> usize {
        let micros = latency.as_micros();
        if micros < Self::PER_OCTAVE {
            return usize::try_from(micros).unwrap_or(0);
        }
        let octave = micros.ilog2();
        // Between 8 and 15: the first digits of the latency.
        let digits = micros >> (octave - Self::OCTAVE_BITS);
        let index = u64::from(octave - Self::OCTAVE_BITS) * Self::PER_OCTAVE + digits;
        usize::try_from(index).unwrap_or(Self::BUCKETS).min(Self::BUCKETS - 1)
    }

    /// Counts one latency.
    pub fn record(&mut self, latency: Span) {
        let count = &mut self.counts[Self::bucket(latency)];
        *count = count.saturating_add(1);
    }

    /// Number of recorded latencies.
    pub fn samples(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The median, interpolated within its bucket; zero if the histogram is empty.
    pub fn median(&self) -> Span {
        let samples = self.samples();
        // Doubled, so that half a sample has no fraction.
        let mut left = samples;
        for (index, count) in self.counts.iter().enumerate() {
            let twice = 2 * u64::from(*count);
            if twice >= left && twice > 0 {
                let (low, width) = Self::bounds(index);
                return Span::from_micros(low + width * left / twice);
            }
            left -= twice;
        }
        Span::ZERO
    }

    /// The lowest value of a bucket, and the bucket's width.
    const fn bounds(index: usize) -> (u64, u64) {
        let index = index as u64;
        if index < 2 * Self::PER_OCTAVE {
            // One value per bucket: no width to interpolate in.
            return (index, 0);
        }
        let shift = index / Self::PER_OCTAVE - 1;
        ((Self::PER_OCTAVE + index % Self::PER_OCTAVE) << shift, 1 << shift)
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The span over which latencies are collected for one call of an estimator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    opened: Timestamp,
    probe: Option<Probe>,
}

/// Whether a window is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// The window is complete: call the estimator and open the next one.
    Now,
    /// The window is incomplete at least until this instant.
    At(Timestamp),
}

impl Window {
    /// Completions after which a window may end.
    pub const SAMPLES: u64 = 50;
    /// Completions after which a window with little traffic may end.
    pub const FEW_SAMPLES: u64 = 10;
    /// The shortest window.
    pub const SHORTEST: Span = Span::from_millis(100);
    /// The shortest window with fewer than [`Window::SAMPLES`] completions.
    pub const SHORTEST_FEW: Span = Span::from_secs(5);

    /// Opens a window, or the window of a probe if the estimator asked for one.
    pub const fn open(now: Timestamp, probe: Option<Probe>) -> Self {
        Self { opened: now, probe }
    }

    /// The probe that this window measures, if any.
    pub const fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// The instant from which completions count. Requests that were admitted before a probe lowered
    /// the limit complete first and are not counted.
    pub fn counts_from(&self) -> Timestamp {
        self.probe.map_or(self.opened, |probe| self.opened + probe.drain)
    }

    /// Decides whether the window is complete, from the latencies of successful requests and the
    /// number of dropped requests since [`Window::counts_from`].
    ///
    /// If the clock was set back, only the window's age starts again.
    pub fn due(&mut self, now: Timestamp, histogram: &Histogram, dropped: u64) -> Due {
        self.opened = self.opened.min(now);
        let samples = histogram.samples();
        if let Some(probe) = &self.probe {
            let end = self.opened + probe.drain + probe.within;
            let is_complete = samples >= u64::from(probe.samples) || now >= end;
            return if is_complete { Due::Now } else { Due::At(now.max(self.counts_from())) };
        }
        let (completed, median) = (samples + dropped, histogram.median().as_micros());
        let long = Self::SHORTEST.max(Span::from_micros(4 * median));
        let longer = Self::SHORTEST_FEW.max(Span::from_micros(8 * median));
        let age = now.since(self.opened);
        if completed >= Self::SAMPLES && age >= long
            || completed >= Self::FEW_SAMPLES && age >= longer
        {
            return Due::Now;
        }
        Due::At(now.max(self.opened + long))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Span {
        Span::from_micros(micros)
    }

    fn histogram(latencies: &[u64]) -> Histogram {
        let mut histogram = Histogram::new();
        latencies.iter().for_each(|latency| histogram.record(micros(*latency)));
        histogram
    }

    #[test]
    fn buckets_are_contiguous_and_an_eighth_of_an_octave_wide() {
        for index in 0..Histogram::BUCKETS {
            let (low, width) = Histogram::bounds(index);
            assert_eq!(Histogram::bucket(micros(low)), index);
            assert_eq!(Histogram::bucket(micros(low + width.max(1) - 1)), index);
            assert!(width <= 1 || width * 8 <= low, "{index}: {low} + {width}");
        }
        assert_eq!(Histogram::bucket(Span::MAX), Histogram::BUCKETS - 1);
        assert_eq!(Histogram::bounds(255).0 >> 30, 15, "the last bucket starts above four hours");
    }

    #[test]
    fn the_median_is_exact_below_16_us_and_within_a_bucket_above() {
        assert_eq!(histogram(&[]).median(), Span::ZERO);
        assert_eq!(histogram(&[7]).median(), micros(7));
        assert_eq!(histogram(&[3, 7, 9]).median(), micros(7));
        let spread: Vec<u64> = (9_000..11_000).collect();
        assert!(histogram(&spread).median().as_micros().abs_diff(10_000) < 100);
        // Half of the requests take much longer: the median does not see them.
        let two: Vec<u64> = (0..1_000).map(|n| if n % 2 == 0 { 1_000 } else { 50_000 }).collect();
        assert!(histogram(&two).median() <= micros(1_024));
    }

    /// The naive median, the lower bound of a bucket, is up to 12 % off and jumps between buckets.
    #[test]
    fn interpolation_follows_a_latency_that_rises_by_one_per_cent() {
        let median = |base: u64| {
            histogram(&(0..200).map(|n| base + n * base / 200).collect::<Vec<_>>()).median()
        };
        let mut last = Span::ZERO;
        for percent in 100..140 {
            let now = median(percent * 100);
            assert!(now > last, "{percent}: {now} after {last}");
            last = now;
        }
    }

    fn due(latency: u64, samples: usize, age: Span, dropped: u64) -> bool {
        let start = Timestamp::from_secs(9);
        let histogram = histogram(&vec![latency; samples]);
        Window::open(start, None).due(start + age, &histogram, dropped) == Due::Now
    }

    #[test]
    fn a_window_needs_fifty_samples_and_four_medians() {
        assert!(due(10_000, 50, Span::from_millis(100), 0));
        assert!(!due(10_000, 49, Span::from_millis(100), 0));
        assert!(!due(10_000, 50, Span::from_millis(99), 0));
        assert!(!due(1_000_000, 50, Span::from_secs(3), 0));
        assert!(due(1_000_000, 50, Span::from_millis(4_300), 0));
        assert!(due(10_000, 20, Span::from_millis(100), 30), "dropped requests count too");
    }

    #[test]
    fn ov_25_nine_samples_never_complete_a_window() {
        assert!(!due(10_000, 9, Span::from_secs(60), 0));
        assert!(due(10_000, 10, Span::from_secs(5), 0));
        assert!(!due(10_000, 10, Span::from_millis(4_999), 0));
        assert!(!due(1_000_000, 10, Span::from_millis(7_500), 0));
    }

    #[test]
    fn an_incomplete_window_says_when_to_look_again() {
        let (start, later) = (Timestamp::from_secs(9), Span::from_millis);
        let mut window = Window::open(start, None);
        // The middle of the bucket is 69,632 µs.
        let (slow, long) = (histogram(&[65_536; 60]), micros(4 * 69_632));
        assert_eq!(window.due(start + later(100), &slow, 0), Due::At(start + long));
        let few = histogram(&[65_536; 3]);
        assert_eq!(window.due(start + later(900), &few, 0), Due::At(start + later(900)));
        // A clock that was set back restarts the age.
        let back = start - later(5_000);
        assert_eq!(window.due(back, &slow, 0), Due::At(back + long));
        assert_eq!(window.due(back + later(300), &slow, 0), Due::Now);
    }

    #[test]
    fn a_probe_drains_first_and_ends_by_count_or_by_time() {
        let probe =
            Probe { limit: 3, drain: Span::from_millis(60), samples: 100, within: micros(500_000) };
        let start = Timestamp::from_secs(9);
        let mut window = Window::open(start, Some(probe));
        assert_eq!(window.counts_from(), start + Span::from_millis(60));
        let now = start + Span::from_millis(80);
        assert_eq!(window.due(now, &histogram(&[5; 99]), 0), Due::At(now));
        assert_eq!(window.due(now, &histogram(&[5; 100]), 0), Due::Now);
        assert_eq!(window.due(start + Span::from_millis(560), &histogram(&[]), 0), Due::Now);
    }
}
