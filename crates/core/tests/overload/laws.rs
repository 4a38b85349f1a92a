//! AD-1 to AD-9.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::adaptive::{
    Adaptive, Aimd, Estimator, Fixed, Gradient2, LimitRange, Probe, Step, WindowStats,
};
use tidegate_core::{Span, Timestamp};

use crate::server::{Load, Plant, Server};

const SECOND: u64 = 1_000_000;
const SMALL: Load = Load { workers: 4, service: 40_000, percent: 120, failing: 0 };

/// One window, and the time since the one before.
type Entry = (i64, WindowStats);

fn windows() -> impl Strategy<Value = Vec<Entry>> {
    let passed = prop_oneof![
        8 => 100_000..2_000_000_i64,
        1 => -20_000_000..0_i64,
        1 => 10_000_000..400_000_000_i64,
    ];
    let median = prop_oneof![0..100_u64, 1_000..100_000_u64, 0..1_u64 << 34];
    let stats = (median, 0..200_u64, 0..3_u64, 0..1_200_u32, prop_oneof![Just(0), 0..50_u64]);
    let stats = stats.prop_map(|(median, samples, dropped, peak, refused)| WindowStats {
        median: Span::from_micros(median),
        samples,
        dropped: dropped.saturating_sub(1) * samples,
        peak,
        refused,
    });
    vec((passed, stats), 1..200)
}

fn range() -> impl Strategy<Value = LimitRange> {
    (1..50_u32, 0..1_000_u32, 0..1_000_u32).prop_map(|(min, initial, more)| LimitRange {
        min,
        initial: min + initial.min(more),
        max: min + more,
    })
}

fn estimators(range: LimitRange, seed: u64) -> Vec<Box<dyn Estimator>> {
    vec![
        Box::new(Adaptive::new(range, seed)),
        Box::new(Aimd::new(range)),
        Box::new(Gradient2::new(range)),
        Box::new(Fixed::new(range.initial)),
    ]
}

/// Feeds the windows; returns each limit before and after its window, with the instant.
fn replay(estimator: &mut dyn Estimator, windows: &[Entry]) -> Vec<(u32, Step)> {
    let mut now = 1_000 * SECOND;
    let mut steps = Vec::new();
    for (passed, stats) in windows {
        now = now.saturating_add_signed(*passed);
        let before = estimator.limit();
        steps.push((before, estimator.window(Timestamp::from_micros(now), stats)));
    }
    steps
}

/// A server whose latency is `base · max(1, in flight / knee)`, always saturated: closes windows and
/// runs probes as a carrier does, without single requests.
struct Fluid {
    base: u64,
    knee: u64,
    now: u64,
    /// Beginning and end of each probe.
    probes: Vec<(u64, u64)>,
}

impl Fluid {
    fn latency(&self, in_flight: u32) -> Span {
        Span::from_micros(self.base * self.knee.max(u64::from(in_flight)) / self.knee)
    }

    fn stats(&self, limit: u32) -> WindowStats {
        WindowStats {
            median: self.latency(limit),
            samples: 100,
            dropped: 0,
            peak: limit,
            refused: 9,
        }
    }

    /// One window, and its probe if there is one.
    fn window(&mut self, estimator: &mut dyn Estimator) -> u32 {
        let stats = self.stats(estimator.limit());
        self.now += (4 * stats.median.as_micros()).max(100_000);
        let mut step = estimator.window(Timestamp::from_micros(self.now), &stats);
        let begun = self.now;
        while let Some(probe) = step.probe {
            step = self.probe(estimator, probe);
        }
        if self.now > begun {
            self.probes.push((begun, self.now));
        }
        step.limit
    }

    fn probe(&mut self, estimator: &mut dyn Estimator, probe: Probe) -> Step {
        let Probe { limit, drain, samples, within } = probe;
        // As many complete in each round as are served at once.
        let at_once = u64::from(limit).min(self.knee);
        let rounds = u64::from(samples).div_ceil(at_once).min(within.as_micros() / self.base);
        self.now += drain.as_micros() + rounds * self.base;
        let stats = WindowStats { samples: rounds * at_once, ..self.stats(limit) };
        estimator.window(Timestamp::from_micros(self.now), &stats)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn ad_1_the_limit_stays_within_its_range(range in range(), windows in windows(), seed: u64) {
        for mut estimator in estimators(range, seed) {
            for (_, step) in replay(&mut *estimator, &windows) {
                prop_assert!((range.min..=range.max).contains(&step.limit), "{step:?}");
                prop_assert!(step.probe.is_none_or(|probe| probe.limit >= 2));
                prop_assert_eq!(estimator.limit().clamp(range.min, range.max), estimator.limit());
            }
        }
    }

    #[test]
    fn ad_2_an_unsaturated_window_never_raises_the_limit(windows in windows(), seed: u64) {
        let mut estimator = Adaptive::new(LimitRange::default(), seed);
        for (window, (before, step)) in windows.iter().zip(replay(&mut estimator, &windows)) {
            let stats = &window.1;
            let is_saturated = stats.refused > 0 || u64::from(stats.peak) * 10 >= u64::from(before) * 9;
            prop_assert!(is_saturated || step.limit <= before, "{stats:?}: {before} → {step:?}");
        }
    }

    #[test]
    fn ad_3_the_same_windows_give_the_same_limits(windows in windows(), seed: u64) {
        let range = LimitRange::default();
        for (mut one, mut other) in estimators(range, seed).into_iter().zip(estimators(range, seed)) {
            prop_assert_eq!(replay(&mut *one, &windows), replay(&mut *other, &windows));
        }
    }

    #[test]
    fn ad_5_constant_latency_raises_the_limit_to_its_maximum(
        base in 100..1_000_000_u64, seed: u64, range in range()
    ) {
        let mut fluid = Fluid { base, knee: 1 << 40, now: 0, probes: Vec::new() };
        let mut estimator = Adaptive::new(range, seed);
        let mut last = estimator.limit();
        for _ in 0..2_500 {
            let limit = fluid.window(&mut estimator);
            prop_assert!(limit >= last, "{last} → {limit}");
            last = limit;
        }
        prop_assert_eq!(last, range.max);
    }

    #[test]
    fn ad_6_the_limit_settles_at_the_tolerated_multiple_of_the_knee(
        base in 500..1_000_000_u64, knee in 8..400_u64, seed: u64
    ) {
        let mut fluid = Fluid { base, knee, now: 0, probes: Vec::new() };
        let mut estimator = Adaptive::new(LimitRange::default(), seed);
        for _ in 0..300 {
            fluid.window(&mut estimator);
        }
        for _ in 0..600 {
            let limit = u64::from(fluid.window(&mut estimator));
            prop_assert!((knee * 9 / 8 - 1..=knee * 15 / 8 + 1).contains(&limit), "{limit}, {knee}");
        }
    }

    /// Scheduled probes only: a limit that falls by 40 % may be probed early, once for each fall.
    #[test]
    fn ad_8_probes_take_two_per_cent_of_the_time(
        base in 100..100_000_u64, knee in 8..400_u64, seed: u64
    ) {
        let mut fluid = Fluid { base, knee, now: 0, probes: Vec::new() };
        let mut estimator = Adaptive::new(LimitRange::default(), seed);
        while fluid.now < 2_000 * SECOND {
            fluid.window(&mut estimator);
        }
        // The first one belongs to the cold start.
        let probes = &fluid.probes[1..];
        prop_assert!(probes.len() > 5);
        for (index, (begun, _)) in probes.iter().enumerate() {
            let span = 100 * SECOND;
            let within = probes[index..].iter().take_while(|(other, _)| *other < begun + span);
            let taken: u64 = within.map(|(begun, ended)| ended - begun).sum();
            let longest = probes.iter().map(|(begun, ended)| ended - begun).max().unwrap_or(0);
            prop_assert!(taken <= span / 50 + longest, "{taken} from {begun}");
        }
        let (first, last) = (probes[0].0, probes[probes.len() - 1].0);
        let taken: u64 = probes[..probes.len() - 1].iter().map(|(begun, ended)| ended - begun).sum();
        prop_assert!(taken * 50 <= last - first, "{taken} of {}", last - first);
    }

    /// Whatever the clock does, one window is one step, and probes go on.
    #[test]
    fn ad_9_a_clock_step_or_a_stall_moves_the_limit_by_one_step(windows in windows(), seed: u64) {
        let mut estimator = Adaptive::new(LimitRange::default(), seed);
        for (before, step) in replay(&mut estimator, &windows) {
            let (least, most) = (before - before.div_ceil(4), before + before.isqrt().div_ceil(2) + 1);
            prop_assert!((least.max(4)..=most).contains(&step.limit), "{before} → {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Above the floors of 100 ms per window and 10 s between probes.
    #[test]
    fn ad_4_scaling_all_times_leaves_the_limits_alone(
        fifths in 4..20_u64, knee in 4..200_u64, factor in 2..16_u64, seed: u64
    ) {
        let run = |factor: u64| {
            // A multiple of the knee: every latency is a whole number of microseconds.
            let base = fifths * 5_000 * knee * factor;
            let mut fluid = Fluid { base, knee, now: 0, probes: Vec::new() };
            let mut estimator = Adaptive::new(LimitRange::default(), seed);
            (0..300).map(|_| fluid.window(&mut estimator)).collect::<Vec<_>>()
        };
        prop_assert_eq!(run(1), run(factor));
    }
}

#[test]
fn ad_9_a_clock_set_back_by_an_hour_does_not_end_the_probes() {
    let mut fluid = Fluid { base: 10_000, knee: 16, now: 7_200 * SECOND, probes: Vec::new() };
    let mut estimator = Adaptive::new(LimitRange::default(), 3);
    while fluid.now < 7_260 * SECOND {
        fluid.window(&mut estimator);
    }
    fluid.now -= 3_600 * SECOND;
    let (before, start) = (fluid.probes.len(), fluid.now);
    while fluid.now < start + 60 * SECOND {
        fluid.window(&mut estimator);
    }
    assert!(fluid.probes.len() - before >= 4);
}

/// The drift of the limit over an hour, as the largest limit of the last minute in per cent of that
/// of the second minute.
fn drift(percent: u64, estimator: impl Estimator + 'static) -> u32 {
    let mut server = Server::new(Load { percent, ..SMALL }, Plant::None, estimator);
    server.run_until(60 * SECOND);
    let mut largest = |from: u64, to: u64| {
        server.run_until(from * SECOND);
        let mut largest = 0;
        for second in from..to {
            server.run_until(second * SECOND);
            largest = largest.max(server.limit());
        }
        largest
    };
    let second = largest(60, 120);
    largest(3_540, 3_600) * 100 / second
}

#[test]
fn ad_7_an_hour_of_overload_does_not_raise_the_limit() {
    for percent in [120, 300, 1_000] {
        let drift = drift(percent, Adaptive::new(LimitRange::default(), 11));
        assert!(drift <= 150, "{drift} % at {percent} %");
    }
}

/// The naive version of AD-7: Gradient2 averages saturated windows into its baseline.
#[test]
fn ad_7_gradient2_drifts_to_its_maximum() {
    let range = LimitRange { max: 200, ..LimitRange::default() };
    let mut server = Server::new(SMALL, Plant::None, Gradient2::new(range));
    server.run_until(3_600 * SECOND);
    assert!(server.limit() > 150, "{}", server.limit());
}
