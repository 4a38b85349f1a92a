use super::*;

const MS: u64 = 1_000;

fn range(initial: u32) -> LimitRange {
    LimitRange { min: 4, initial, max: 1_000 }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + secs)
}

/// A saturated window.
fn full(median_ms: u64) -> WindowStats {
    let median = Span::from_micros(median_ms * MS);
    WindowStats { median, samples: 60, dropped: 0, peak: 1_000, refused: 1 }
}

/// A window with half the limit in use.
fn idle(median_ms: u64) -> WindowStats {
    WindowStats { peak: 1, refused: 0, ..full(median_ms) }
}

/// An estimator whose baseline was measured at second 0.
fn measured(limit: u32, baseline_ms: u64) -> Adaptive {
    let mut estimator = Adaptive::new(range(limit), 7);
    assert_eq!(estimator.window(at(0), &idle(baseline_ms)), Step { limit, probe: None });
    estimator
}

#[test]
fn ov_20_latency_at_the_baseline_raises_the_limit_by_half_its_root() {
    assert_eq!(measured(16, 10).window(at(1), &full(10)).limit, 18);
}

#[test]
fn ov_21_three_times_the_baseline_lowers_the_limit_by_a_quarter() {
    assert_eq!(measured(100, 10).window(at(1), &full(30)).limit, 75);
    // However slow, a window takes no more than that.
    assert_eq!(measured(100, 10).window(at(1), &full(3_000)).limit, 75);
}

#[test]
fn ov_22_an_unsaturated_hour_leaves_the_limit_alone() {
    let mut estimator = measured(20, 10);
    for second in 0..3_600 {
        assert_eq!(estimator.window(at(second), &idle(10)), Step { limit: 20, probe: None });
    }
}

/// A step at a gradient of 0.75 takes an eighth of 45.714.
#[test]
fn ov_23_an_old_baseline_is_probed_below_the_estimated_capacity() {
    let mut estimator = measured(40, 10);
    estimator.limit = 45_714;
    let step = estimator.window(at(13), &full(20));
    assert_eq!(step.limit, 40);
    let probe = step.probe.unwrap();
    assert_eq!(probe.limit, 15);
    assert_eq!(probe.drain, Span::from_millis(60));
    assert_eq!((probe.samples, probe.within), (200, Span::from_millis(500)));
}

/// The pitfall of a failed probe: a naive estimator would keep the baseline of 10 ms.
#[test]
fn ov_24_a_failed_probe_raises_the_baseline_by_half() {
    let mut estimator = measured(40, 10);
    let step = estimator.window(at(13), &full(40));
    assert!(step.probe.is_some());
    let few = WindowStats { samples: 19, median: Span::from_micros(3 * MS), ..full(0) };
    estimator.window(at(14), &few);
    assert_eq!(estimator.baseline(), Some(Span::from_millis(15)));
    // At most to the latency under load.
    for (second, expected) in [(100, 22_500), (200, 33_750), (300, 40_000), (400, 40_000)] {
        assert!(estimator.window(at(second), &full(40)).probe.is_some(), "{second}");
        estimator.window(at(second + 1), &few);
        assert_eq!(estimator.baseline(), Some(Span::from_micros(expected)));
    }
}

#[test]
fn a_probe_with_enough_completions_sets_the_baseline() {
    let mut estimator = measured(40, 10);
    let limit = estimator.window(at(13), &full(40)).limit;
    let step = estimator.window(at(14), &WindowStats { samples: 20, ..full(35) });
    assert_eq!(step, Step { limit, probe: None }, "a probe does not move the limit");
    assert_eq!(estimator.baseline(), Some(Span::from_millis(35)));
}

/// A server that has become four times slower: the estimate would leave 3 of 16 requests in progress.
#[test]
fn latency_above_twice_the_baseline_is_probed_at_half_the_limit() {
    let mut estimator = measured(16, 10);
    let step = estimator.window(at(13), &full(40));
    assert_eq!((step.limit, step.probe.map(|probe| probe.limit)), (12, Some(6)));
    // The latency of the probe has not fallen, so there was no queue.
    assert_eq!(estimator.window(at(14), &full(38)).probe, None);
    assert_eq!(estimator.baseline(), Some(Span::from_millis(38)));
}

/// The same latency because of a queue: it falls along with the limit, down to the baseline.
#[test]
fn a_queue_is_probed_at_ever_smaller_limits() {
    let mut estimator = measured(64, 10);
    let mut probe = estimator.window(at(13), &full(40)).probe;
    let mut limits = Vec::new();
    while let Some(Probe { limit, .. }) = probe {
        limits.push(limit);
        let median = 10 * u64::from(limit.max(12)) / 12;
        probe = estimator.window(at(14), &full(median)).probe;
    }
    assert_eq!(limits, [24, 12, 6]);
    assert_eq!(estimator.baseline(), Some(Span::from_millis(10)));
}

/// Cold start: the first window of a saturated server is no baseline.
#[test]
fn a_saturated_first_window_is_probed_at_once() {
    let mut estimator = Adaptive::new(range(20), 7);
    let step = estimator.window(at(0), &full(40));
    assert_eq!((step.limit, step.probe.map(|probe| probe.limit)), (20, Some(10)));
}

/// A start far above the capacity of 4: probes go on for as long as latency falls with the limit.
#[test]
fn the_first_probes_search_for_the_capacity() {
    let mut estimator = Adaptive::new(range(20), 7);
    let mut probe = estimator.window(at(0), &full(50)).probe;
    let mut limits = Vec::new();
    while let Some(Probe { limit, .. }) = probe {
        limits.push(limit);
        let median = 10 * u64::from(limit.max(4)) / 4;
        probe = estimator.window(at(1), &full(median)).probe;
    }
    assert_eq!(limits, [10, 5, 2]);
    // The mean of the last two, 12 ms and 10 ms.
    assert_eq!(estimator.baseline(), Some(Span::from_millis(11)));
}

/// A dependency that gets three times slower: the baseline is measured again once the limit has
/// fallen by 40 %, long before it is due.
#[test]
fn a_limit_that_falls_is_probed_early() {
    let mut estimator = measured(100, 10);
    assert!(estimator.window(at(1), &full(30)).probe.is_none());
    assert_eq!(estimator.window(at(1), &full(30)), Step { limit: 56, probe: None });
    assert!(estimator.window(at(2), &full(30)).probe.is_some());
}

#[test]
fn slow_unsaturated_windows_lower_the_limit_by_a_twentieth() {
    let mut estimator = measured(100, 10);
    let busy = WindowStats { peak: 60, refused: 0, ..full(30) };
    assert_eq!(estimator.window(at(1), &busy).limit, 95);
    assert_eq!(estimator.window(at(2), &WindowStats { peak: 40, ..busy }).limit, 95);
}

/// The baseline of a saturated window may fall, never rise.
#[test]
fn a_saturated_window_never_raises_the_baseline() {
    let mut estimator = measured(100, 10);
    estimator.window(at(1), &full(40));
    assert_eq!(estimator.baseline(), Some(Span::from_millis(10)));
    estimator.window(at(1), &full(5));
    assert_eq!(estimator.baseline(), Some(Span::from_micros(9_500)));
}

#[test]
fn a_saturated_window_of_dropped_requests_lowers_the_limit() {
    let mut estimator = measured(100, 10);
    let refused = WindowStats { samples: 20, dropped: 40, ..full(1) };
    assert_eq!(estimator.window(at(1), &refused).limit, 75);
    assert_eq!(estimator.window(at(1), &WindowStats { peak: 3, refused: 0, ..refused }).limit, 75);
    assert_eq!(estimator.baseline(), Some(Span::from_millis(10)));
}

#[test]
fn ov_16_aimd_takes_a_tenth_for_a_window_with_a_drop() {
    let mut estimator = Aimd::new(range(100));
    let dropped = WindowStats { dropped: 1, ..full(10) };
    assert_eq!(estimator.window(at(0), &dropped).limit, 90);
    assert_eq!(estimator.window(at(1), &full(10)).limit, 91);
    assert_eq!(estimator.window(at(2), &WindowStats { peak: 45, ..idle(10) }).limit, 91);
    // A drop in a window counts once, whatever their number.
    let mut estimator = Aimd::new(range(100));
    assert_eq!(estimator.window(at(0), &WindowStats { dropped: 50, ..dropped }).limit, 90);
}

#[test]
fn a_fixed_limit_is_fixed() {
    let mut estimator = Fixed::new(8);
    assert_eq!(estimator.window(at(0), &full(900)), Step { limit: 8, probe: None });
    assert_eq!(Fixed::new(0).limit(), 1);
}

#[test]
fn ranges_that_make_no_sense_are_repaired() {
    for range in [
        LimitRange { min: 0, initial: 0, max: 0 },
        LimitRange { min: 9, initial: 1, max: 3 },
        LimitRange { min: 4, initial: u32::MAX, max: u32::MAX },
    ] {
        let mut estimator = Adaptive::new(range, 1);
        for second in 0..100 {
            let step = estimator.window(at(second), &full(1 + second % 50));
            assert!(step.limit >= range.min.max(1));
        }
    }
}
