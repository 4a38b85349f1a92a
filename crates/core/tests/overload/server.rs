//! A server with workers and a queue behind a concurrency limit, in whole microseconds.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tidegate_core::adaptive::{Estimator, Probe, WindowStats};
use tidegate_core::window::{Due, Histogram, Window};
use tidegate_core::{Span, Timestamp};

/// Thousandths of the mean at the 32 middle quantiles of an exponential distribution.
const EXPONENTIAL: [u64; 32] = [
    16, 48, 81, 116, 152, 188, 227, 266, 308, 351, 396, 443, 493, 545, 600, 659, 721, 788, 859,
    936, 1_020, 1_112, 1_214, 1_329, 1_459, 1_611, 1_790, 2_014, 2_302, 2_708, 3_330, 4_600,
];

/// Seeded numbers (SplitMix64).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Exponentially distributed around `mean`.
    fn exponential(&mut self, mean: u64) -> u64 {
        let quantile = self.next() as usize % EXPONENTIAL.len();
        (EXPONENTIAL[quantile] * mean / 1_000).max(1)
    }
}

/// What a naive limiter would do instead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Plant {
    #[default]
    None,
    /// Windows end after 100 ms, whatever their median.
    ShortWindows,
    /// Windows end after a single sample.
    FewSamples,
    /// A probe counts what completes right after it has lowered the limit.
    NoDrain,
    /// Every window counts as saturated.
    AlwaysSaturated,
    /// The first probe does not take place.
    NoFirstProbe,
    /// A limit that falls after the twelfth second is not probed.
    NoEarlyProbe,
    /// Failed requests count as successful ones.
    FailuresCount,
}

/// The load and the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) workers: u32,
    /// Mean service time.
    pub(crate) service: u64,
    /// Arrivals in per cent of what the workers can serve.
    pub(crate) percent: u64,
    /// Share of requests that fail at once, in per cent.
    pub(crate) failing: u64,
}

pub(crate) struct Server {
    pub(crate) load: Load,
    pub(crate) plant: Plant,
    pub(crate) estimator: Box<dyn Estimator>,
    pub(crate) now: u64,
    pub(crate) shed: u64,
    pub(crate) arrived: u64,
    pub(crate) completed: u64,
    /// When each probe began.
    pub(crate) probes: Vec<u64>,
    chance: Chance,
    next_arrival: u64,
    in_flight: u32,
    /// Completion and admission of what is being served.
    serving: BinaryHeap<Reverse<(u64, u64, bool)>>,
    waiting: VecDeque<u64>,
    limit: u32,
    window: Window,
    histogram: Histogram,
    stats: WindowStats,
}

impl Server {
    pub(crate) fn new(load: Load, plant: Plant, estimator: impl Estimator + 'static) -> Self {
        let limit = estimator.limit();
        Self {
            load,
            plant,
            estimator: Box::new(estimator),
            now: 0,
            shed: 0,
            arrived: 0,
            completed: 0,
            probes: Vec::new(),
            chance: Chance(5),
            next_arrival: 0,
            in_flight: 0,
            serving: BinaryHeap::new(),
            waiting: VecDeque::new(),
            limit,
            window: Window::open(Timestamp::EPOCH, None),
            histogram: Histogram::new(),
            stats: WindowStats::default(),
        }
    }

    /// The limit of the estimator, without probes.
    pub(crate) fn limit(&self) -> u32 {
        self.estimator.limit()
    }

    pub(crate) fn run_until(&mut self, micros: u64) {
        while self.now < micros {
            let completion = self.serving.peek().map_or(u64::MAX, |Reverse(next)| next.0);
            if completion <= self.next_arrival {
                self.now = completion;
                self.complete();
            } else {
                self.now = self.next_arrival;
                self.arrive();
            }
        }
    }

    fn arrive(&mut self) {
        let Load { workers, service, percent, .. } = self.load;
        self.next_arrival +=
            self.chance.exponential(service * 100 / (u64::from(workers) * percent));
        self.arrived += 1;
        if self.in_flight >= self.limit {
            self.shed += 1;
            self.stats.refused += 1;
            return;
        }
        self.in_flight += 1;
        self.stats.peak = self.stats.peak.max(self.in_flight);
        self.waiting.push_back(self.now);
        self.serve();
    }

    fn serve(&mut self) {
        while self.serving.len() < self.load.workers as usize
            && let Some(admitted) = self.waiting.pop_front()
        {
            let fails = self.chance.next() % 100 < self.load.failing;
            let took = if fails { 1_000 } else { self.chance.exponential(self.load.service) };
            self.serving.push(Reverse((self.now + took, admitted, fails)));
        }
    }

    fn complete(&mut self) {
        let Some(Reverse((_, admitted, failed))) = self.serving.pop() else { return };
        self.in_flight -= 1;
        self.serve();
        self.completed += 1;
        let counts = self.at() >= self.window.counts_from() || self.plant == Plant::NoDrain;
        if counts && (!failed || self.plant == Plant::FailuresCount) {
            self.histogram.record(Span::from_micros(self.now - admitted));
            self.stats.samples += 1;
        }
        let due = self.window.due(self.at(), &self.histogram, 0);
        let age = self.at().since(self.window.counts_from());
        let is_due = match self.plant {
            _ if self.window.probe().is_some() => due == Due::Now,
            Plant::ShortWindows => age >= Window::SHORTEST && self.stats.samples > 10,
            Plant::FewSamples => age >= Window::SHORTEST && self.stats.samples > 0,
            _ => due == Due::Now,
        };
        if is_due {
            self.close();
        }
    }

    fn close(&mut self) {
        self.stats.median = self.histogram.median();
        if self.plant == Plant::AlwaysSaturated {
            self.stats.peak = self.limit;
        }
        let mut step = self.estimator.window(self.at(), &self.stats);
        while step.probe.is_some() {
            let is_left_out = match self.plant {
                Plant::NoFirstProbe => self.now < 5_000_000,
                Plant::NoEarlyProbe => self.now > 12_000_000,
                _ => false,
            };
            self.probes.push(self.now);
            if !is_left_out {
                break;
            }
            // As if the probe had found the baseline that is known already.
            let median = self.estimator.baseline().unwrap_or_default();
            self.stats = WindowStats { samples: 100, median, ..self.stats };
            step = self.estimator.window(self.at(), &self.stats);
        }
        self.limit = step.probe.map_or(step.limit, |Probe { limit, .. }| limit);
        self.window = Window::open(self.at(), step.probe);
        self.histogram = Histogram::new();
        self.stats = WindowStats { peak: self.in_flight, ..WindowStats::default() };
    }

    fn at(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }
}
