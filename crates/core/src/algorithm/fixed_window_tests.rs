use super::*;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn ms(millis: u64) -> Timestamp {
    at(millis * 1_000)
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn window(limit: u64, length_secs: u64) -> FixedWindow {
    FixedWindow::new(limit, Span::from_secs(length_secs), Span::ZERO, Denied::Ignored).unwrap()
}

fn counting(limit: u64, length_secs: u64) -> FixedWindow {
    FixedWindow::new(limit, Span::from_secs(length_secs), Span::ZERO, Denied::Counted).unwrap()
}

fn take(window: &FixedWindow, state: &mut FixedWindowState, now: Timestamp, cost: u64) -> Decision {
    window.decide(state, now, Op::Take(cost))
}

/// How many of `tries` single units pass, sent every `every` microseconds from `from` on.
fn passed(
    window: &FixedWindow,
    state: &mut FixedWindowState,
    tries: u64,
    from: Timestamp,
    every: u64,
) -> u64 {
    let instants = (0..tries).map(|i| from + Span::from_micros(i * every));
    instants.filter(|now| take(window, state, *now, 1).is_allowed()).count() as u64
}

fn wait(decision: Decision) -> Option<u64> {
    decision.retry_after().map(Span::as_micros)
}

/// The documented flaw, exactly.
#[test]
fn two_hundred_pass_within_two_seconds_of_a_boundary() {
    let (window, mut state) = (window(100, 60), FixedWindowState::default());
    let before = passed(&window, &mut state, 150, secs(59), 0);
    let after = passed(&window, &mut state, 150, secs(61), 0);
    assert_eq!((before, after), (100, 100));
    assert_eq!(window.promise(Span::from_secs(2)), Some(200));
}

#[test]
fn two_hundred_pass_within_half_a_second_of_a_boundary() {
    let (window, mut state) = (window(100, 60), FixedWindowState::default());
    assert_eq!(passed(&window, &mut state, 100, ms(59_800), 2_000), 100);
    assert_eq!(passed(&window, &mut state, 100, ms(60_000), 2_000), 100);
    let mut state = FixedWindowState::default();
    assert_eq!(passed(&window, &mut state, 100, ms(59_900), 0), 100);
    assert_eq!(passed(&window, &mut state, 100, ms(60_100), 0), 100);
}

#[test]
fn a_shorter_window_does_not_mend_the_boundary() {
    for length in [1, 10, 60, 3_600] {
        let (window, mut state) = (window(100, length), FixedWindowState::default());
        let boundary = secs(length);
        let just_before = boundary - Span::from_micros(1);
        assert_eq!(passed(&window, &mut state, 101, just_before, 0), 100, "{length} s");
        assert_eq!(passed(&window, &mut state, 101, boundary, 0), 100, "{length} s");
    }
}

/// gubernator #225 re-armed the reset with every hit.
#[test]
fn all_keys_of_a_window_have_the_same_reset() {
    let window = window(3, 60);
    let (mut busy, mut idle) = (FixedWindowState::default(), FixedWindowState::default());
    for now in (120_000_000..180_000_000).step_by(7_654_321).map(at) {
        for state in [&mut busy, &mut idle] {
            assert_eq!(now + take(&window, state, now, 0).reset_after, secs(180));
        }
        let decision = take(&window, &mut busy, now, 1);
        assert_eq!(now + decision.reset_after, secs(180));
        assert!(decision.retry_after().is_none_or(|wait| now + wait == secs(180)));
    }
}

#[test]
fn the_state_is_a_window_and_a_count() {
    assert_eq!(size_of::<FixedWindowState>(), 16);
    let (window, mut state) = (window(5, 60), FixedWindowState::default());
    take(&window, &mut state, secs(61), 2);
    assert_eq!(state, FixedWindowState { end: 120_000_000, count: 2 });
    assert_eq!(window.idle_at(&state), secs(120), "it expires with its window");
}

#[test]
fn denies_until_the_window_ends() {
    let (window, mut state) = (window(2, 60), FixedWindowState::default());
    take(&window, &mut state, at(30_000_001), 2);
    assert_eq!(wait(take(&window, &mut state, at(30_000_001), 1)), Some(29_999_999));
    assert!(!take(&window, &mut state, at(59_999_999), 1).is_allowed());
    assert!(take(&window, &mut state, secs(60), 1).is_allowed());
}

/// 1.13.7: only a window may count denied requests, and only if configured to.
#[test]
fn a_denied_request_counts_only_if_configured() {
    let (plain, envoy) = (window(10, 60), counting(10, 60));
    let (mut first, mut second) = (FixedWindowState::default(), FixedWindowState::default());
    for (window, state) in [(&plain, &mut first), (&envoy, &mut second)] {
        assert!(take(window, state, secs(0), 8).is_allowed());
        assert_eq!(wait(take(window, state, secs(0), 5)), Some(60_000_000));
    }
    assert_eq!((first.count, second.count), (8, 13));
    assert!(take(&plain, &mut first, secs(1), 2).is_allowed());
    let denied = take(&envoy, &mut second, secs(1), 2);
    assert_eq!((wait(denied), denied.remaining), (Some(59_000_000), 0));
    assert!(take(&envoy, &mut second, secs(60), 10).is_allowed());
}

/// A counter that saturates instead of wrapping round into admissions.
#[test]
fn denied_hits_saturate() {
    let (envoy, mut state) = (counting(10, 60), FixedWindowState::default());
    for _ in 0..3 {
        assert!(take(&envoy, &mut state, secs(0), u64::MAX).is_never());
    }
    assert_eq!(state.count, FixedWindow::MAX);
    assert!(!take(&envoy, &mut state, secs(0), 1).is_allowed());
}

/// 0 is legal in envoyproxy's form and denies everything.
#[test]
fn a_limit_of_zero_denies_everything_for_good() {
    let (window, mut state) = (window(0, 60), FixedWindowState::default());
    assert!(take(&window, &mut state, secs(0), 1).is_never());
    assert!(take(&window, &mut state, secs(0), 0).is_allowed());
    let explained = window.explain(&state, secs(0));
    assert_eq!(explained.next_allowed_at, None);
    assert!(explained.to_string().contains("nothing is ever allowed"), "{explained}");
}

/// throttlecrab's false promise, for windows.
#[test]
fn a_cost_above_the_limit_is_denied_for_good() {
    let (small, large) = (window(10, 60), window(1 << 52, 60));
    let mut state = FixedWindowState::default();
    assert!(take(&small, &mut state, secs(0), 11).is_never());
    assert!(take(&large, &mut state, secs(0), (1 << 32) + 1).is_never());
    assert!(take(&large, &mut state, secs(0), 1 << 32).is_allowed());
}

/// Within one window the newer is kept, an older one never reopened.
#[test]
fn a_clock_that_steps_back_over_a_boundary_reopens_nothing() {
    let (window, mut state) = (window(100, 60), FixedWindowState::default());
    take(&window, &mut state, secs(61), 100);
    let kept = state;
    assert_eq!(wait(take(&window, &mut state, secs(59), 1)), Some(61_000_000));
    assert_eq!(wait(take(&window, &mut state, secs(0), 1)), Some(120_000_000));
    assert_eq!(state, kept);
}

/// Further back it starts afresh, and the repair is written even by a denial.
#[test]
fn a_clock_that_steps_back_two_windows_starts_afresh() {
    let window = window(100, 60);
    let full = FixedWindowState { end: 180_000_000, count: 100 };
    let mut state = full;
    assert_eq!(window.decide(&mut state, secs(59), Op::Read(100)).outcome, Outcome::Allow);
    assert_eq!(state, full, "a peek repairs nothing");
    assert!(take(&window, &mut state, secs(59), 101).is_never());
    assert_eq!(state, FixedWindowState { end: 60_000_000, count: 0 });
    assert!(take(&window, &mut state, secs(60), 100).is_allowed(), "not the stale window");
}

/// A repair is written by whatever may write, even if nothing could be booked.
#[test]
fn a_forced_cost_that_does_not_fit_still_repairs() {
    let window = counting(0, 1);
    let mut state = FixedWindowState { end: 3_000_000, count: 1 };
    assert_eq!(window.decide(&mut state, secs(0), Op::Force(1)).unbooked, 1);
    assert_eq!(state, FixedWindowState { end: 1_000_000, count: 0 });
}

/// limitador's `max - hits` underflows here.
#[test]
fn a_changed_limit_is_compared_with_the_same_count() {
    let mut state = FixedWindowState::default();
    take(&window(100, 60), &mut state, secs(0), 100);
    let lowered = take(&window(50, 60), &mut state, secs(30), 1);
    assert_eq!((wait(lowered), lowered.remaining), (Some(30_000_000), 0));
    let raised = take(&window(200, 60), &mut state, secs(30), 1);
    assert_eq!((raised.outcome, raised.remaining), (Outcome::Allow, 99));
}

/// A peek makes the same comparison, so it tells that a window is overdrawn.
#[test]
fn a_peek_sees_an_overdrawn_window() {
    let mut state = FixedWindowState { end: 60_000_000, count: 100 };
    assert!(take(&window(100, 60), &mut state, secs(30), 0).is_allowed());
    assert_eq!(wait(take(&window(50, 60), &mut state, secs(30), 0)), Some(30_000_000));
    assert_eq!(state.count, 100);
}

/// 2.3: one limit for each window begun, and one for the window it began in.
#[test]
fn the_promise_counts_every_window_an_interval_can_touch() {
    let window = window(100, 60);
    for (within, expected) in
        [(0, 100), (1, 200), (60_000_000, 200), (60_000_001, 300), (180_000_000, 400)]
    {
        assert_eq!(window.promise(Span::from_micros(within)), Some(expected), "{within} us");
    }
}

#[test]
fn a_window_reports_its_length_and_offset() {
    let (day, two_hours) = (Span::from_secs(86_400), Span::from_secs(7_200));
    for offset in [Span::ZERO, Span::from_micros(1), two_hours, Span::from_micros(86_399_999_999)] {
        let window = FixedWindow::new(10, day, offset, Denied::Ignored).unwrap();
        assert_eq!((window.length(), window.offset()), (day, offset));
    }
}

#[test]
fn windows_may_start_at_an_offset() {
    let (day, two_hours) = (Span::from_secs(86_400), Span::from_secs(7_200));
    let window = FixedWindow::new(10, day, two_hours, Denied::Ignored).unwrap();
    let mut state = FixedWindowState::default();
    assert_eq!(take(&window, &mut state, secs(3_600), 10).reset_after, Span::from_secs(3_600));
    assert!(take(&window, &mut state, secs(7_200), 10).is_allowed());
    assert_eq!(window.idle_at(&state), secs(7_200 + 86_400));
}

/// What an earlier window counted cannot be given back to this one.
#[test]
fn a_return_reaches_only_its_own_window() {
    let (window, mut state) = (window(10, 60), FixedWindowState::default());
    assert_eq!(window.decide(&mut state, secs(0), Op::Return(3)).remaining, 10);
    assert_eq!(state, FixedWindowState::default(), "a return creates no key");
    take(&window, &mut state, secs(0), 8);
    assert_eq!(window.decide(&mut state, secs(1), Op::Return(3)).remaining, 5);
    assert_eq!(window.decide(&mut state, secs(1), Op::Return(100)).remaining, 10);
    take(&window, &mut state, secs(1), 8);
    assert_eq!(window.decide(&mut state, secs(60), Op::Return(3)).remaining, 10);
    assert_eq!(state.end, 60_000_000, "nothing to give back, nothing written");
}

/// What was given back is there for the next one.
#[test]
fn a_return_is_written() {
    let (window, mut state) = (window(10, 60), FixedWindowState::default());
    take(&window, &mut state, secs(0), 8);
    window.decide(&mut state, secs(1), Op::Return(3));
    assert_eq!(state, FixedWindowState { end: 60_000_000, count: 5 });
    assert_eq!(take(&window, &mut state, secs(2), 5).remaining, 0);
}

/// `Force` stops at a full window.
#[test]
fn a_forced_cost_stops_at_a_full_window() {
    let (window, mut state) = (window(10, 60), FixedWindowState::default());
    take(&window, &mut state, secs(0), 7);
    let forced = window.decide(&mut state, secs(0), Op::Force(5));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 2));
    assert_eq!(state.count, 10);
}

/// What books nothing writes nothing, unless it has to repair.
#[test]
fn a_forced_cost_that_books_nothing_leaves_a_sound_state_alone() {
    let mut fresh = FixedWindowState::default();
    assert_eq!(window(0, 60).decide(&mut fresh, secs(1), Op::Force(3)).unbooked, 3);
    assert_eq!(fresh, FixedWindowState::default(), "it creates no key");
    let stale = FixedWindowState { end: 180_000_000, count: 10 };
    let mut state = stale;
    assert_eq!(window(10, 60).decide(&mut state, secs(1), Op::Force(0)).remaining, 10);
    assert_eq!(state, stale, "forcing nothing is a peek");
}

#[test]
fn explains_the_window_and_its_count() {
    let (window, mut state) = (window(10, 60), FixedWindowState::default());
    take(&window, &mut state, secs(61), 10);
    let explained = window.explain(&state, secs(90));
    let detail = Detail::FixedWindow { start: secs(60), end: secs(120), count: 10 };
    assert_eq!((explained.remaining, explained.next_allowed_at), (0, Some(secs(120))));
    assert_eq!(explained.detail, detail);
    assert_eq!(
        explained.to_string(),
        "0 of 10 left: 10 counted in the window from 1970-01-01T00:01:00Z to 1970-01-01T00:02:00Z; \
         one more is allowed at 1970-01-01T00:02:00Z; equals a fresh key from 1970-01-01T00:02:00Z"
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    let new = |limit, length, offset| FixedWindow::new(limit, length, offset, Denied::Ignored);
    let second = Span::from_secs(1);
    assert_eq!(new((1 << 52) + 1, second, Span::ZERO), Err(InvalidLimit::WindowLimit));
    assert_eq!(new(1, Span::ZERO, Span::ZERO), Err(InvalidLimit::Period));
    assert_eq!(new(1, second, second), Err(InvalidLimit::Offset));
    assert!(new(1 << 52, second, Span::from_micros(999_999)).is_ok());
}

#[test]
fn a_window_reports_its_limit_and_what_it_counts() {
    assert_eq!((window(10, 60).limit(), window(10, 60).denied()), (10, Denied::Ignored));
    assert_eq!((counting(7, 60).limit(), counting(7, 60).denied()), (7, Denied::Counted));
}
