//! A histogram of times, of fixed size.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per power of two: values are exact to one part in 32.
const PARTS: u32 = 32;
const BUCKETS: usize = 1_024;

/// Counts of times by their length in microseconds.
#[derive(Debug)]
pub(crate) struct Histogram(Box<[AtomicU64]>);

impl Default for Histogram {
    fn default() -> Self {
        Self((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        self.0[bucket(micros)].fetch_add(1, Ordering::Relaxed);
    }

    /// The time that this many thousandths did not exceed.
    pub(crate) fn within(&self, thousandths: u64) -> Duration {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let (wanted, mut seen) = ((total * thousandths).div_ceil(1_000), 0);
        let found = counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        Duration::from_micros(found.map_or(0, longest))
    }
}

const fn bucket(micros: u32) -> usize {
    if micros < PARTS {
        return micros as usize;
    }
    let power = micros.ilog2() - PARTS.ilog2();
    (power * PARTS + (micros >> power)) as usize
}

/// The longest time of a bucket.
const fn longest(bucket: usize) -> u64 {
    let (bucket, parts) = (bucket as u64, PARTS as u64);
    if bucket < parts {
        return bucket;
    }
    let power = bucket / parts - 1;
    ((bucket - power * parts + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_a_thirty_second() {
        for micros in (0..5_000).chain([1_000_000, u32::MAX]) {
            let answer = longest(bucket(micros));
            let (least, most) = (u64::from(micros), u64::from(micros) + u64::from(micros) / 32);
            assert!((least..=most).contains(&answer), "{micros} is told as {answer}");
        }
        let histogram = Histogram::default();
        (1..=1_000).for_each(|micros| histogram.add(Duration::from_micros(micros)));
        let p99 = histogram.within(990).as_micros();
        assert!((990..=1_023).contains(&p99), "{p99}");
    }
}
