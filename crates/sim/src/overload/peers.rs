//! The arithmetic of other limiters, with their defaults. They use floating point, as the originals
//! do.

use tidegate_core::{Span, Timestamp};

use super::arrivals::Draws;

/// `Gradient2Limit` in a `WindowedLimit` of Netflix's concurrency-limits.
#[derive(Debug)]
pub(super) struct Gradient2 {
    limit: f64,
    /// The long-term average and how many values it has seen.
    long: f64,
    count: u32,
    window_ends: Timestamp,
    sum: f64,
    samples: u32,
    most_in_flight: u32,
}

impl Gradient2 {
    pub(super) fn new() -> Self {
        Self {
            limit: 20.0,
            long: 0.0,
            count: 0,
            window_ends: Timestamp::EPOCH,
            sum: 0.0,
            samples: 0,
            most_in_flight: 0,
        }
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit as u32
    }

    pub(super) fn sample(&mut self, now: Timestamp, latency: Span, in_flight: u32) {
        self.sum += latency.as_micros() as f64;
        self.samples += 1;
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if now < self.window_ends || self.samples < 10 {
            return;
        }
        let short = self.sum / f64::from(self.samples);
        let in_flight = self.most_in_flight;
        self.window_ends = now + Span::from_secs(1);
        (self.sum, self.samples, self.most_in_flight) = (0.0, 0, 0);
        self.update(short, in_flight);
    }

    fn update(&mut self, short: f64, in_flight: u32) {
        self.average(short);
        if self.long / short > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(in_flight) < self.limit / 2.0 {
            return;
        }
        let gradient = (1.5 * self.long / short).clamp(0.5, 1.0);
        let limit = self.limit * gradient + 4.0;
        self.limit = (self.limit * 0.8 + limit * 0.2).clamp(20.0, 200.0);
    }

    /// `ExpAvgMeasurement` over 600 values, the first ten of which have equal weights.
    fn average(&mut self, value: f64) {
        self.count += 1;
        if self.count <= 10 {
            self.long += (value - self.long) / f64::from(self.count);
        } else {
            let factor = 2.0 / 601.0;
            self.long = self.long * (1.0 - factor) + value * factor;
        }
    }
}

/// `VegasLimit` of Netflix's concurrency-limits.
#[derive(Debug)]
pub(super) struct Vegas {
    limit: f64,
    no_load: f64,
    samples: u64,
    jitter: f64,
    draws: Draws,
}

impl Vegas {
    pub(super) fn new(mut draws: Draws) -> Self {
        let jitter = Self::jitter(&mut draws);
        Self { limit: 20.0, no_load: 0.0, samples: 0, jitter, draws }
    }

    fn jitter(draws: &mut Draws) -> f64 {
        0.5 + draws.below(1_000) as f64 / 2_000.0
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit as u32
    }

    pub(super) fn sample(&mut self, latency: Span, in_flight: u32) {
        let latency = latency.as_micros().max(1) as f64;
        self.samples += 1;
        if self.jitter * 30.0 * self.limit <= self.samples as f64 {
            self.jitter = Self::jitter(&mut self.draws);
            self.samples = 0;
            self.no_load = latency;
            return;
        }
        if self.no_load == 0.0 || latency < self.no_load {
            self.no_load = latency;
            return;
        }
        if f64::from(in_flight) * 2.0 < self.limit {
            return;
        }
        let queue = (self.limit * (1.0 - self.no_load / latency)).ceil();
        let log = self.limit.log10().floor().max(1.0);
        let (alpha, beta) = (3.0 * log, 6.0 * log);
        let limit = if queue <= log {
            self.limit + beta
        } else if queue < alpha {
            self.limit + log
        } else if queue > beta {
            self.limit - log
        } else {
            return;
        };
        self.limit = limit.clamp(1.0, 1_000.0);
    }
}
