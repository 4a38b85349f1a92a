//! Random times.

use tidegate_core::Span;

use super::scenario::ServiceTimes;
use crate::seed::Seed;

/// Random numbers in a fixed order. Each use has its own stream, so that all contenders get the
/// same requests.
#[derive(Debug)]
pub(super) struct Draws {
    seed: Seed,
    drawn: usize,
}

impl Draws {
    pub(super) fn new(seed: Seed, stream: u64) -> Self {
        Self { seed: Seed(seed.draw(usize::try_from(stream).unwrap_or(0), 0)), drawn: 0 }
    }

    /// Uniform over all 64 bits.
    fn next(&mut self) -> u64 {
        self.drawn = self.drawn.wrapping_add(1);
        self.seed.draw(self.drawn, 1)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        scale(bound, self.next())
    }

    /// Exponentially distributed with this mean, by von Neumann's comparisons: whole numbers only,
    /// so that every machine draws the same.
    pub(super) fn exponential(&mut self, mean: Span) -> Span {
        let mean = mean.as_micros();
        let mut whole = 0;
        loop {
            let first = self.next();
            let (mut last, mut run) = (first, 1_u32);
            loop {
                let next = self.next();
                if next >= last {
                    break;
                }
                (last, run) = (next, run + 1);
            }
            if run % 2 == 1 {
                return Span::from_micros(whole + scale(mean, first));
            }
            whole += mean;
        }
    }

    /// The work of one request.
    pub(super) fn work(&mut self, mean: Span, times: ServiceTimes) -> Span {
        let micros = mean.as_micros();
        let work = match times {
            ServiceTimes::Constant => mean,
            ServiceTimes::Exponential => self.exponential(mean),
            // One request in ten takes eleven times as long as the others.
            ServiceTimes::Bimodal if self.below(10) == 0 => Span::from_micros(micros * 11 / 2),
            ServiceTimes::Bimodal => Span::from_micros(micros / 2),
        };
        work.max(Span::from_micros(1))
    }
}

fn scale(value: u64, fraction: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(fraction)) >> 64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(times: ServiceTimes) -> Vec<u64> {
        let mut draws = Draws::new(Seed(3), 1);
        let mut work: Vec<u64> =
            (0..20_000).map(|_| draws.work(Span::from_millis(10), times).as_micros()).collect();
        work.sort_unstable();
        work
    }

    #[test]
    fn every_distribution_has_the_mean_it_was_given() {
        for times in [ServiceTimes::Constant, ServiceTimes::Exponential, ServiceTimes::Bimodal] {
            let work = work(times);
            let mean = work.iter().sum::<u64>() / work.len() as u64;
            assert!(mean.abs_diff(10_000) < 300, "{times:?}: {mean}");
        }
    }

    #[test]
    fn exponential_quantiles_are_those_of_the_logarithm() {
        let work = work(ServiceTimes::Exponential);
        for (percent, expected) in [(10, 1_054), (50, 6_931), (90, 23_026), (99, 46_052)] {
            let quantile = work[work.len() * percent / 100];
            assert!(quantile.abs_diff(expected) < expected / 15 + 30, "{percent}: {quantile}");
        }
    }
}
