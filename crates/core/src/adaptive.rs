//! Estimators: how many requests a server can have in progress at once.
//!
//! | estimator | use it for |
//! |---|---|
//! | [`Adaptive`] | most services; no number to set |
//! | [`Fixed`] | a known limit, or fewer than two requests per second |
//! | [`Aimd`] | a backend that refuses or times out when it is overloaded |
//! | [`Gradient2`] | comparison with Netflix's limiter; its limit drifts under sustained overload |
//!
//! # Idea
//! `Adaptive` compares the median latency of each window with a *baseline*, the median latency
//! without queueing. While requests take up to 1.5 times the baseline the limit grows; above that it
//! shrinks in proportion. A baseline taken from saturated traffic contains the queueing that the
//! limit itself admits, so it would rise with every window until nothing is limited. Therefore the
//! baseline follows unsaturated windows only, and under sustained overload a short *probe* lowers
//! the limit to just below the estimated capacity and measures it there.
//!
//! # Promise
//! The limit stays between `min` and `max`, never grows in an unsaturated window, and changes by at
//! most a quarter downwards and `√limit / 2` upwards per window. Scheduled probes take at most 2 %
//! of the time and 25 % of the work during it.

mod aimd;
mod fixed;
mod gradient2;

pub use aimd::Aimd;
pub use fixed::Fixed;
pub use gradient2::Gradient2;

use crate::time::{Span, Timestamp};

/// Computes one limit step per window. Uses no clock, and no randomness except the seed.
///
/// A step that asks for a [`Probe`] is followed by the window of that probe.
pub trait Estimator: Send {
    /// The limit for the next window, from the statistics of the last one.
    fn window(&mut self, now: Timestamp, stats: &WindowStats) -> Step;

    /// The limit at the moment.
    fn limit(&self) -> u32;

    /// The latency without queueing, if the estimator has one.
    fn baseline(&self) -> Option<Span> {
        None
    }
}

/// The statistics of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowStats {
    /// Median latency of the successful requests.
    pub median: Span,
    /// Number of successful requests.
    pub samples: u64,
    /// Number of requests that the server refused or that timed out.
    pub dropped: u64,
    /// Most requests in progress at once.
    pub peak: u32,
    /// Number of requests that found no permit: shed, or put into a queue.
    pub refused: u64,
}

/// The outcome of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The new limit.
    pub limit: u32,
    /// Set if the next window has to measure the baseline.
    pub probe: Option<Probe>,
}

/// A measurement of the baseline under a lowered limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The limit during the probe. It may be below [`LimitRange::min`].
    pub limit: u32,
    /// Time in which requests admitted before the probe complete; nothing is counted.
    pub drain: Span,
    /// Completions after which the probe ends.
    pub samples: u32,
    /// Time after `drain` at which the probe ends in any case.
    pub within: Span,
}

/// Where a limit starts and how far it may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRange {
    /// The lowest limit; at least 1.
    pub min: u32,
    /// The limit at the start.
    pub initial: u32,
    /// The highest limit.
    pub max: u32,
}

impl LimitRange {
    /// The limit at the start, in thousandths and within the range.
    fn start(&self) -> u64 {
        self.clamp(u64::from(self.initial) * MILLI)
    }

    fn clamp(&self, milli: u64) -> u64 {
        let min = u64::from(self.min.max(1)) * MILLI;
        milli.clamp(min, (u64::from(self.max) * MILLI).max(min))
    }
}

impl Default for LimitRange {
    fn default() -> Self {
        Self { min: 4, initial: 20, max: 1_000 }
    }
}

/// Limits are kept in thousandths, so that a slow change is not lost to rounding.
const MILLI: u64 = 1_000;

/// Unit of ratios, which are stored as multiples of 2^-20.
const ONE: u64 = 1 << 20;

/// Latencies that are averaged are kept as multiples of 2^-16 µs.
const LATENCY_BITS: u32 = 16;

fn whole(milli: u64) -> u32 {
    u32::try_from(milli / MILLI).unwrap_or(u32::MAX)
}

/// A latency with its fraction. At least 1 µs, because it is divided by.
fn latency(span: Span) -> u64 {
    span.as_micros().clamp(1, 1 << 40) << LATENCY_BITS
}

/// `part / of` as a multiple of 2^-20.
fn ratio(part: u64, of: u64) -> u64 {
    let ratio = u128::from(part) * u128::from(ONE) / u128::from(of.max(1));
    u64::try_from(ratio).unwrap_or(u64::MAX)
}

/// `value` times a ratio.
fn scale(value: u64, ratio: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(ratio) / u128::from(ONE);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// `from` moved towards `to` by one part in `parts`.
fn approach(from: u64, to: u64, parts: u64) -> u64 {
    if to >= from { from + (to - from) / parts } else { from - (from - to) / parts }
}

/// Follows the server's capacity by latency, with a baseline that sustained overload cannot raise.
#[derive(Clone, Debug)]
pub struct Adaptive {
    range: LimitRange,
    /// Maximum latency of an unsaturated window, as a ratio of the baseline.
    tolerance: u64,
    /// In thousandths.
    limit: u64,
    baseline: Option<Baseline>,
    /// Set while the next window is that of a probe.
    probing: Option<Probing>,
    /// Age at which the baseline is measured again.
    probe_after: Span,
    jitter: u64,
}

#[derive(Clone, Copy, Debug)]
struct Baseline {
    /// In microseconds, with [`LATENCY_BITS`] of fraction.
    latency: u64,
    measured: Timestamp,
    /// The limit when the baseline was measured, in thousandths.
    limit: u64,
}

#[derive(Clone, Copy, Debug)]
struct Probing {
    since: Timestamp,
    /// The latency under the full limit, with its fraction.
    loaded: u64,
    /// The limit of the probe.
    limit: u32,
    compared: Compared,
}

/// The reference for a probe's latency, which shows whether requests still queue.
#[derive(Clone, Copy, Debug)]
enum Compared {
    /// No reference: at the start, the first window is only a guess.
    Nothing,
    /// The previous baseline.
    Baseline,
    /// The previous baseline and the latency at the full limit: the server may have become slower.
    BaselineAndLimit,
    /// The latency of a probe at twice the limit.
    TwiceTheLimit,
}

impl Adaptive {
    /// The limit shrinks when latency is above this percentage of the baseline.
    pub const TOLERANCE_PERCENT: u32 = 150;

    /// The lowest limit of a probe.
    const PROBE_LIMIT: u32 = 2;
    /// Completions that a probe waits for (half as many in a search, where the differences are
    /// larger), and the minimum below which it has failed.
    const PROBE_SAMPLES: u32 = 200;
    const PROBE_NEEDS: u64 = 20;
    const PROBE_WITHIN: Span = Span::from_millis(500);
    /// The shortest time between two scheduled probes, and its multiple of the probe's length.
    const PROBE_AFTER: Span = Span::from_secs(10);
    const PROBE_SPACING: u64 = 50;

    /// Creates an estimator that starts at `range.initial`. Nodes with different seeds probe at
    /// different times.
    pub fn new(range: LimitRange, seed: u64) -> Self {
        let mut estimator = Self {
            range,
            tolerance: 0,
            limit: range.start(),
            baseline: None,
            probing: None,
            probe_after: Span::ZERO,
            jitter: seed,
        };
        estimator.probe_after = estimator.jittered(Self::PROBE_AFTER);
        estimator.tolerance(Self::TOLERANCE_PERCENT)
    }

    /// Sets how slow requests may get before the limit shrinks, in per cent of the baseline.
    #[must_use]
    pub fn tolerance(mut self, percent: u32) -> Self {
        self.tolerance = ratio(u64::from(percent.max(100)), 100);
        self
    }

    /// Takes the first window as the first guess at the baseline. The window may be saturated, so
    /// the guess is checked at once.
    fn begin(&mut self, now: Timestamp, loaded: u64, is_saturated: bool) -> Option<Probe> {
        self.baseline = Some(Baseline { latency: loaded, measured: now, limit: self.limit });
        is_saturated.then(|| self.search(now, whole(self.limit), loaded, Compared::Nothing))
    }

    fn unsaturated(&mut self, now: Timestamp, base: &mut Baseline, loaded: u64, peak: u32) {
        base.latency = approach(base.latency, loaded, 10);
        base.measured = now;
        let is_slow = ratio(scale(base.latency, self.tolerance), loaded) < ONE * 8 / 10;
        if is_slow && u64::from(peak) * MILLI > self.limit / 2 {
            self.limit = self.range.clamp(self.limit - self.limit / 20);
        }
        base.limit = self.limit;
    }

    fn saturated(&mut self, base: &mut Baseline, loaded: u64) {
        if loaded < base.latency {
            base.latency = approach(base.latency, loaded, 10);
        }
        let gradient = ratio(scale(base.latency, self.tolerance), loaded).clamp(ONE / 2, ONE);
        self.step(gradient);
    }

    fn step(&mut self, gradient: u64) {
        let limit = if gradient < ONE {
            self.limit - scale(self.limit, ONE - gradient) / 2
        } else {
            self.limit + (self.limit * MILLI).isqrt() / 2
        };
        self.limit = self.range.clamp(limit);
    }

    fn is_probe_due(&self, now: Timestamp, base: &Baseline) -> bool {
        let age = now.since(base.measured);
        let has_fallen = self.limit < base.limit * 6 / 10;
        age > self.probe_after || has_fallen && age.as_micros() > self.probe_after.as_micros() / 10
    }

    /// Lowers the limit to just below the estimated capacity, `limit · baseline / latency`.
    ///
    /// If latency is above twice the baseline, the server may have become slower, and the estimate
    /// would be too low. In this case the capacity is searched from above.
    fn probe(&mut self, now: Timestamp, base: u64, loaded: u64) -> Probe {
        if loaded > 2 * base {
            return self.search(now, whole(self.limit), loaded, Compared::BaselineAndLimit);
        }
        let capacity = scale(self.limit, ratio(base, loaded).min(ONE));
        let limit = whole(capacity * 3 / 4).max(Self::PROBE_LIMIT);
        let compared = Compared::Baseline;
        self.probing = Some(Probing { since: now, loaded, limit, compared });
        Self::probe_at(limit, Self::PROBE_SAMPLES, base, loaded)
    }

    /// Probes at half the limit while requests still queue.
    fn search(&mut self, since: Timestamp, limit: u32, loaded: u64, compared: Compared) -> Probe {
        let limit = (limit / 2).max(Self::PROBE_LIMIT);
        self.probing = Some(Probing { since, loaded, limit, compared });
        Self::probe_at(limit, Self::PROBE_SAMPLES / 2, loaded, loaded)
    }

    fn probe_at(limit: u32, samples: u32, base: u64, loaded: u64) -> Probe {
        let (base, loaded) = (base >> LATENCY_BITS, loaded >> LATENCY_BITS);
        Probe {
            limit,
            drain: Span::from_micros(2 * (base + loaded)),
            samples,
            within: Self::PROBE_WITHIN.max(Span::from_micros(20 * loaded)),
        }
    }

    /// Takes the baseline from a probe. After a failed probe the baseline rises, because a baseline
    /// that is too low would keep the limit too low permanently.
    fn measured(&mut self, now: Timestamp, probing: Probing, stats: &WindowStats) -> Option<Probe> {
        let before = self.baseline.map_or(probing.loaded, |base| base.latency);
        let has_failed = stats.samples < Self::PROBE_NEEDS;
        let found = if has_failed {
            probing.loaded.min(before + before / 2)
        } else {
            latency(stats.median)
        };
        let is_guess = matches!(probing.compared, Compared::Nothing);
        let is_near = !is_guess && !has_failed && found.abs_diff(before) < before / 4;
        // The median of 200 requests varies by about a tenth.
        let latency = if is_near { found.midpoint(before) } else { found };
        self.baseline = Some(Baseline { latency, measured: now, limit: self.limit });
        let length = now.since(probing.since).as_micros();
        let spacing = Span::from_micros(length.saturating_mul(Self::PROBE_SPACING));
        self.probe_after = self.jittered(Self::PROBE_AFTER.max(spacing));
        // If the limit is far above the capacity, so is the limit of the probe. If latency falls
        // along with the limit, requests still queue; if all of them queue, latency falls by half.
        let still_queues = match probing.compared {
            Compared::Nothing => true,
            Compared::Baseline => found < before / 5 * 4,
            Compared::BaselineAndLimit => found < probing.loaded / 4 * 3 && found > before / 4 * 5,
            Compared::TwiceTheLimit => found < probing.loaded / 4 * 3,
        };
        let goes_on = still_queues && !has_failed && probing.limit > Self::PROBE_LIMIT;
        let compared = Compared::TwiceTheLimit;
        goes_on.then(|| self.search(probing.since, probing.limit, found, compared))
    }

    /// Returns `span` plus up to 20 %, derived from the seed.
    fn jittered(&mut self, span: Span) -> Span {
        self.jitter = mix(self.jitter);
        let extra = scale(span.as_micros() / 5, self.jitter >> 44);
        Span::from_micros(span.as_micros().saturating_add(extra))
    }
}

impl Estimator for Adaptive {
    fn window(&mut self, now: Timestamp, stats: &WindowStats) -> Step {
        if let Some(probing) = self.probing.take() {
            let probe = self.measured(now, probing, stats);
            return Step { limit: self.limit(), probe };
        }
        let peak = u64::from(stats.peak) * MILLI;
        let is_saturated = stats.refused > 0 || peak * 10 >= self.limit * 9;
        if stats.dropped > stats.samples {
            // The median of the few successful requests does not describe the others.
            if is_saturated {
                self.step(ONE / 2);
            }
            return Step { limit: self.limit(), probe: None };
        }
        let loaded = latency(stats.median);
        let Some(mut base) = self.baseline else {
            let probe = self.begin(now, loaded, is_saturated);
            return Step { limit: self.limit(), probe };
        };
        // A clock that was set back must not postpone probes.
        base.measured = base.measured.min(now);
        if is_saturated {
            self.saturated(&mut base, loaded);
        } else {
            self.unsaturated(now, &mut base, loaded, stats.peak);
        }
        self.baseline = Some(base);
        let is_due = is_saturated && self.is_probe_due(now, &base);
        let probe = is_due.then(|| self.probe(now, base.latency, loaded));
        Step { limit: self.limit(), probe }
    }

    fn limit(&self) -> u32 {
        whole(self.limit)
    }

    fn baseline(&self) -> Option<Span> {
        self.baseline.map(|base| Span::from_micros(base.latency >> LATENCY_BITS))
    }
}

/// Spreads a number over 64 bits (SplitMix64).
pub(crate) const fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
#[path = "adaptive_tests.rs"]
mod tests;
