//! Pitfalls of adaptive limits. Each test also runs the naive version and sees it fail.
//!
//! Drift is in `laws`: AD-7 and its naive version. Pitfalls of permits (slow readers, the limiter's
//! own queue) are tested where permits are.

use tidegate_core::adaptive::{Adaptive, Estimator, LimitRange, WindowStats};
use tidegate_core::{Span, Timestamp};

use crate::server::{Load, Plant, Server};

const SECOND: u64 = 1_000_000;
const POOL: Load = Load { workers: 16, service: 10_000, percent: 150, failing: 0 };

fn server(load: Load, plant: Plant) -> Server {
    Server::new(load, plant, Adaptive::new(LimitRange::default(), 11))
}

/// What happened in a part of a run.
#[derive(Debug)]
struct Part {
    /// Mean limit, by the second.
    limit: u64,
    /// Thousandths of the arrivals.
    shed: u64,
    completed: u64,
}

fn part(server: &mut Server, from: u64, to: u64) -> Part {
    server.run_until(from * SECOND);
    let (shed, arrived, completed) = (server.shed, server.arrived, server.completed);
    let mut limits = 0;
    for second in from..to {
        server.run_until((second + 1) * SECOND);
        limits += u64::from(server.limit());
    }
    Part {
        limit: limits / (to - from),
        shed: (server.shed - shed) * 1_000 / (server.arrived - arrived).max(1),
        completed: server.completed - completed,
    }
}

/// Short requests complete first, so a short window sees only those.
#[test]
fn ov_26_slow_requests_need_long_windows() {
    let load = Load { workers: 16, service: SECOND, percent: 80, failing: 0 };
    let calm = part(&mut server(load, Plant::None), 120, 900);
    assert!(calm.shed <= 50, "{calm:?}");
    let run = |plant| part(&mut server(Load { percent: 150, ..load }, plant), 120, 900);
    // 16 a second are possible.
    let (ours, naive) = (run(Plant::None), run(Plant::ShortWindows));
    assert!(ours.completed > 12_000, "{ours:?}");
    assert!(naive.completed < 9_000, "{naive:?}");
}

/// A probe that counts requests admitted before it measures the load that it wants to remove.
#[test]
fn a_probe_drains_first() {
    let load = Load { workers: 100, percent: 200, ..POOL };
    let run = |plant| part(&mut server(load, plant), 60, 90);
    let (ours, naive) = (run(Plant::None), run(Plant::NoDrain));
    assert!(ours.limit <= 180 && naive.limit >= 300, "{ours:?} {naive:?}");
}

#[test]
fn a_window_waits_for_enough_samples() {
    let load = Load { service: SECOND, ..POOL };
    let run = |plant| part(&mut server(load, plant), 120, 900);
    let (ours, naive) = (run(Plant::None), run(Plant::FewSamples));
    assert!(ours.completed > 12_000, "{ours:?}");
    assert!(naive.completed < 6_000, "{naive:?}");
}

/// Probes of which only 19 requests complete: with a baseline that stays at 10 ms, a server that
/// needs 40 ms gets the lowest limit for ever.
#[test]
fn a_failed_probe_raises_the_baseline() {
    let run = |keeps_baseline: bool| {
        let mut estimator = Adaptive::new(LimitRange::default(), 11);
        let window = |median, samples, refused| WindowStats {
            median: Span::from_millis(median),
            samples,
            dropped: 0,
            peak: 0,
            refused,
        };
        let mut now = Timestamp::from_secs(1);
        estimator.window(now, &window(10, 60, 0));
        let mut is_probe = false;
        for _ in 0..3_000 {
            now = now + Span::from_millis(160);
            let baseline = estimator.baseline().unwrap_or_default();
            let stats = match (is_probe, keeps_baseline) {
                (true, true) => WindowStats { median: baseline, ..window(0, 20, 9) },
                (true, false) => window(40, 19, 9),
                (false, _) => window(40, 60, 9),
            };
            is_probe = estimator.window(now, &stats).probe.is_some();
        }
        estimator.limit()
    };
    assert!(run(false) > 100);
    assert_eq!(run(true), 4);
}

#[test]
fn an_idle_server_does_not_raise_the_limit() {
    let run = |plant| part(&mut server(Load { percent: 20, ..POOL }, plant), 60, 70);
    let (ours, naive) = (run(Plant::None), run(Plant::AlwaysSaturated));
    assert_eq!(ours.limit, 20);
    assert!(naive.limit > 200, "{naive:?}");
}

/// A server of four workers that is overloaded from the start.
#[test]
fn a_cold_start_measures_the_baseline_first() {
    let load = Load { workers: 4, percent: 300, ..POOL };
    let run = |plant| part(&mut server(load, plant), 3, 10);
    let (ours, naive) = (run(Plant::None), run(Plant::NoFirstProbe));
    assert!(ours.limit <= 9, "{ours:?}");
    assert!(naive.limit >= 20, "{naive:?}");
}

#[test]
fn a_dependency_three_times_slower_is_measured_early() {
    let run = |plant| {
        let mut server = server(POOL, plant);
        server.run_until(12 * SECOND);
        server.load.service *= 3;
        server.load.percent *= 3;
        part(&mut server, 13, 20)
    };
    // 533 a second are possible.
    let (ours, naive) = (run(Plant::None), run(Plant::NoEarlyProbe));
    assert!(ours.completed > 3_200, "{ours:?}");
    assert!(naive.completed < 1_500, "{naive:?}");
}

/// A server that fails at once must not look fast.
#[test]
fn ov_15_fast_failures_do_not_raise_the_limit() {
    let run = |plant| {
        let mut server = server(POOL, plant);
        server.run_until(12 * SECOND);
        server.load.failing = 100;
        server.load.percent = 2_000;
        part(&mut server, 13, 20)
    };
    let (ours, naive) = (run(Plant::None), run(Plant::FailuresCount));
    assert!(ours.limit <= 30, "{ours:?}");
    assert!(naive.limit > 60, "{naive:?}");
}

/// Nodes that start together must not lower their limits together.
#[test]
fn nodes_probe_at_different_times() {
    let probes = |seed| {
        let mut server = Server::new(POOL, Plant::None, Adaptive::new(LimitRange::default(), seed));
        server.run_until(300 * SECOND);
        server.probes.iter().copied().filter(|at| *at > 5 * SECOND).collect::<Vec<_>>()
    };
    assert_eq!(probes(1), probes(1), "the naive version: without jitter all nodes agree");
    let (one, other) = (probes(1), probes(2));
    let apart = |(one, other): (&u64, &u64)| one.abs_diff(*other) > SECOND / 4;
    let apart = one.iter().zip(&other).filter(|pair| apart(*pair)).count();
    assert!(apart >= 4, "{one:?} {other:?}");
}

/// A limiter for two groups of routes, of 1 ms and 20 ms, sees its median jump when the mix shifts.
/// With one limiter per group nothing changes.
#[test]
fn a_shift_in_the_mix_of_routes_needs_a_limiter_per_group() {
    let mut groups: Vec<_> =
        (0..3).map(|seed| Adaptive::new(LimitRange::default(), seed)).collect();
    let mut lowest = [u32::MAX; 3];
    for window in 0..100 {
        let has_shifted = window >= 50;
        let mixed = if has_shifted { 20 } else { 1 };
        let now = Timestamp::from_secs(100) + Span::from_millis(100 * window);
        for ((group, lowest), median) in groups.iter_mut().zip(&mut lowest).zip([1, 20, mixed]) {
            let median = Span::from_millis(median);
            // The first window is unsaturated, so there is a baseline.
            let refused = u64::from(window > 0);
            let stats = WindowStats { median, samples: 60, dropped: 0, peak: 1, refused };
            let before = group.limit();
            group.window(now, &stats);
            *lowest = (*lowest).min(group.limit() * 100 / before);
        }
    }
    assert_eq!(lowest[..2], [100, 100], "per cent of the limit before");
    assert!(lowest[2] <= 75, "{lowest:?}");
}
