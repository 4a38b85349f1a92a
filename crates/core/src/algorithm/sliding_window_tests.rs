use super::*;
use crate::algorithm::sliding_log::{SlidingLog, SlidingLogState};

const MINUTE: u64 = 60_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn window(limit: u64) -> SlidingWindow {
    SlidingWindow::new(limit, Span::from_secs(60)).unwrap()
}

/// A key in the window from 60 s to 120 s.
fn counted(previous: u64, current: u64) -> SlidingWindowState {
    SlidingWindowState { end: 2 * MINUTE, previous, current }
}

fn take(
    window: &SlidingWindow,
    state: &mut SlidingWindowState,
    now: Timestamp,
    cost: u64,
) -> Decision {
    window.decide(state, now, Op::Take(cost))
}

fn estimate(window: &SlidingWindow, state: &SlidingWindowState, now: Timestamp) -> u64 {
    window.estimate(&window.seen(state, now))
}

fn wait(decision: Decision) -> Option<u64> {
    decision.retry_after().map(Span::as_micros)
}

/// Takes units as soon as they are free until `end`; returns how many.
fn drip(
    window: &SlidingWindow,
    state: &mut SlidingWindowState,
    mut now: Timestamp,
    end: Timestamp,
) -> u64 {
    let mut admitted = 0;
    while now < end {
        match take(window, state, now, 1).retry_after() {
            None => admitted += 1,
            Some(wait) => {
                assert!(!wait.is_zero(), "denied, but told to come at once");
                now = now + wait;
            }
        }
    }
    admitted
}

#[test]
fn the_state_is_two_counts_and_a_window() {
    assert_eq!(size_of::<SlidingWindowState>(), 24);
    let (window, mut state) = (window(100), SlidingWindowState::default());
    take(&window, &mut state, secs(59), 30);
    take(&window, &mut state, secs(60), 20);
    assert_eq!(state, counted(30, 20));
    assert_eq!(estimate(&window, &state, secs(60)), 50);
    assert_eq!(estimate(&window, &state, secs(90)), 35);
}

/// The estimate is 49.5. `estimate + 1 <= limit` would deny; we compare its floor.
#[test]
fn forty_two_before_and_eighteen_now_leave_one_of_fifty() {
    let (window, mut state) = (window(50), counted(42, 18));
    let decision = take(&window, &mut state, secs(75), 1);
    assert_eq!((decision.outcome, decision.remaining), (Outcome::Allow, 0));
    assert!(!take(&window, &mut state, secs(75), 1).is_allowed());
}

/// The same, from requests rather than from counts.
#[test]
fn the_same_counts_come_from_requests() {
    let (window, mut state) = (window(50), SlidingWindowState::default());
    assert!(take(&window, &mut state, secs(30), 42).is_allowed());
    assert!(take(&window, &mut state, secs(75), 18).is_allowed());
    assert_eq!(state, counted(42, 18));
}

#[test]
fn half_of_eighty_and_forty_are_eighty() {
    assert_eq!(estimate(&window(80), &counted(80, 40), secs(90)), 80);
    assert!(!take(&window(80), &mut counted(80, 40), secs(90), 1).is_allowed());
    assert!(take(&window(81), &mut counted(80, 40), secs(90), 1).is_allowed());
}

#[test]
fn the_weight_falls_from_one_to_nothing() {
    let (window, state) = (window(1_000), counted(300, 0));
    for (now, expected) in [(60, 300), (80, 200), (90, 150), (105, 75)] {
        assert_eq!(estimate(&window, &state, secs(now)), expected, "at {now} s");
    }
    assert_eq!(estimate(&window, &state, at(2 * MINUTE - 1)), 0);
}

/// The weight moves in steps but is never below the true one.
#[test]
fn the_weight_is_never_below_the_true_one() {
    for length in [1, 7, 1_000_000, (1 << 20) + 1, 3 * (1 << 20) - 1, 31_536_000_000_000] {
        let window = SlidingWindow::new(1 << 32, Span::from_micros(length)).unwrap();
        let state = SlidingWindowState { end: 2 * length, previous: 1 << 32, current: 0 };
        for elapsed in (0..64).map(|i| i * (length / 64)).chain([length - 1]) {
            let exact = (u128::from(length - elapsed) << 32) / u128::from(length);
            let weighed = u128::from(estimate(&window, &state, at(length + elapsed)));
            assert!(weighed >= exact, "{length} after {elapsed}: {weighed} < {exact}");
            let slack = (1 << 32) / u128::from(length.min(1 << 19)) + 1;
            assert!(weighed <= exact + slack, "{length} after {elapsed}: {weighed} > {exact}");
        }
    }
}

#[test]
fn idling_saves_up_no_credit() {
    let (window, mut state) = (window(100), SlidingWindowState::default());
    take(&window, &mut state, secs(30), 100);
    for now in [180, 630, 6_030].map(secs) {
        assert!(take(&window, &mut state.clone(), now, 101).is_never());
        assert_eq!(drip(&window, &mut state.clone(), now, now + Span::from_micros(1)), 100);
    }
}

/// 1.13.3: the boundary gap is narrower, not closed. Both numbers are the promise, exactly.
#[test]
fn an_adversary_gets_twice_the_limit_in_a_minute_but_104_in_two_seconds() {
    let window = window(100);
    let burst = at(MINUTE - 1);
    for (within, expected) in [(Span::from_secs(60), 200), (Span::from_secs(2), 104)] {
        let mut state = SlidingWindowState::default();
        assert!(take(&window, &mut state, burst, 100).is_allowed());
        assert_eq!(100 + drip(&window, &mut state, burst, burst + within), expected);
        assert_eq!(window.promise(within), Some(expected));
    }
}

/// 2.5: up to one window it is the limit and its share, rounded up; beyond, one limit for each
/// whole window and two for those cut at either end.
#[test]
fn the_promise_grows_with_the_interval() {
    let window = window(100);
    for (within, expected) in [
        (0, 100),
        (1, 101),
        (MINUTE / 2, 150),
        (MINUTE, 200),
        (MINUTE + 1, 300),
        (2 * MINUTE - 1, 300),
        (2 * MINUTE, 400),
        (10 * MINUTE, 1_200),
    ] {
        assert_eq!(window.promise(Span::from_micros(within)), Some(expected), "{within} us");
    }
    assert_eq!(window.length(), Span::from_secs(60));
}

/// 1.13.4: it errs both ways. Neither "almost always too strict" nor "never too strict" is right.
#[test]
fn the_estimate_errs_to_both_sides_of_the_exact_log() {
    let log = SlidingLog::new(100, Span::from_secs(60)).unwrap();
    let window = window(100);
    for (burst, cost, window_allows, log_allows) in
        [(secs(0), 60, false, true), (at(MINUTE - 1), 50, true, false)]
    {
        let (mut state, mut entries) = (SlidingWindowState::default(), SlidingLogState::default());
        assert!(take(&window, &mut state, burst, 100).is_allowed());
        assert!(log.decide(&mut entries, burst, Op::Take(100)).is_allowed());
        assert_eq!(take(&window, &mut state, secs(90), cost).is_allowed(), window_allows);
        assert_eq!(log.decide(&mut entries, secs(90), Op::Take(cost)).is_allowed(), log_allows);
    }
}

/// upstash tests `>= tokens` before adding: cost 5 passes with 1 left, remaining goes negative.
#[test]
fn a_cost_above_the_remaining_units_takes_nothing() {
    let (window, mut state) = (window(10), SlidingWindowState::default());
    take(&window, &mut state, secs(0), 9);
    let denied = take(&window, &mut state, secs(0), 5);
    assert_eq!((denied.is_allowed(), denied.remaining, state.current), (false, 1, 9));
    assert!(take(&window, &mut state, secs(0), 1).is_allowed());
}

/// upstash #39: a limit of 1 never worked.
#[test]
fn a_limit_of_one_admits_one() {
    let (window, mut state) = (window(1), SlidingWindowState::default());
    assert_eq!(take(&window, &mut state, secs(10), 1).remaining, 0);
    let denied = take(&window, &mut state, secs(10), 1);
    // The weight of one unit falls below 1 with the first step into the next window.
    assert_eq!(wait(denied), Some(50 * 1_000_000 + 58));
    assert!(take(&window, &mut state, at(MINUTE + 58), 1).is_allowed());
}

#[test]
fn a_limit_of_zero_denies_everything_for_good() {
    assert!(take(&window(0), &mut SlidingWindowState::default(), secs(0), 1).is_never());
}

#[test]
fn a_cost_above_the_limit_is_denied_for_good() {
    assert!(take(&window(10), &mut SlidingWindowState::default(), secs(0), 11).is_never());
    let whole = take(&window(1 << 32), &mut SlidingWindowState::default(), secs(0), 1 << 32);
    assert!(whole.is_allowed());
}

/// 2.5: the wait within this window, into the next and beyond it.
#[test]
fn denies_until_the_exact_instant() {
    let window = window(100);
    for (state, cost, expected) in [
        // The weight moves every 58 us; 100 weighs 50 once it is below 51 of 100.
        (counted(100, 0), 50, 29_400_026),
        (counted(100, 20), 80, 59_400_062),
        (counted(0, 100), 1, MINUTE + 58),
        (counted(0, 100), 100, MINUTE + 59_400_062),
        (counted(100, 100), 51, MINUTE + 30_000_036),
    ] {
        let mut denied = state;
        assert_eq!(wait(take(&window, &mut denied, secs(60), cost)), Some(expected));
        assert_eq!(denied, state);
        assert!(!take(&window, &mut denied.clone(), at(MINUTE + expected - 1), cost).is_allowed());
        assert!(take(&window, &mut denied, at(MINUTE + expected), cost).is_allowed());
    }
}

/// 2.5: if no weight above 0 is small enough, the wait ends with the second window, exactly.
#[test]
fn a_weight_that_never_fades_enough_is_waited_out() {
    // A window of 2 us has two steps: the 2 weigh 2 at 2 us, 1 at 3 us and are gone at 4 us.
    let short = SlidingWindow::new(2, Span::from_micros(2)).unwrap();
    // One of 2^20 + 1 us has 524,289 steps of 2 us, which end one microsecond after it does. Even
    // one step of weight leaves 1 of the 600,000, so they fit at 2 x 1,048,577 us and not before.
    let odd = SlidingWindow::new(600_000, Span::from_micros((1 << 20) + 1)).unwrap();
    for (window, cost, expected) in [(short, 1, 3), (short, 2, 4), (odd, 600_000, 2_097_154)] {
        let mut state = SlidingWindowState::default();
        assert!(take(&window, &mut state, at(0), window.limit).is_allowed());
        assert_eq!(wait(take(&window, &mut state, at(0), cost)), Some(expected));
        assert!(!take(&window, &mut state.clone(), at(expected - 1), cost).is_allowed());
        assert!(take(&window, &mut state, at(expected), cost).is_allowed());
    }
}

/// 2.5: a count has no weight once it has left both windows.
#[test]
fn the_reset_is_when_both_counts_have_no_weight() {
    let window = window(100);
    let reset = |state: SlidingWindowState| {
        assert_eq!(window.idle_at(&state).since(secs(80)).as_micros(), {
            take(&window, &mut state.clone(), secs(80), 0).reset_after.as_micros()
        });
        window.idle_at(&state)
    };
    assert_eq!(reset(counted(100, 0)), secs(120));
    assert_eq!(reset(counted(0, 1)), secs(180));
}

/// Within one window the newer is kept; further back it starts afresh.
#[test]
fn a_clock_that_steps_back_reopens_nothing() {
    let (window, full) = (window(100), counted(40, 60));
    let mut state = full;
    let denied = take(&window, &mut state, secs(59), 1);
    assert_eq!(denied.remaining, 0, "the window before weighs its full weight");
    assert!(window.idle_at(&state) >= secs(59) + denied.retry_after().unwrap());
    assert_eq!(state, full);
    let stale = SlidingWindowState { end: 4 * MINUTE, ..full };
    let mut state = stale;
    assert!(window.decide(&mut state, secs(59), Op::Read(100)).is_allowed());
    assert_eq!(state, stale, "a peek repairs nothing");
    assert!(take(&window, &mut state, secs(59), 101).is_never());
    assert_eq!(state, SlidingWindowState { end: MINUTE, previous: 0, current: 0 });
}

/// A repair is written by whatever may write, even if nothing could be booked.
#[test]
fn a_forced_cost_that_does_not_fit_still_repairs() {
    let mut state = SlidingWindowState { end: 4 * MINUTE, previous: 1, current: 1 };
    assert_eq!(window(0).decide(&mut state, secs(0), Op::Force(1)).unbooked, 1);
    assert_eq!(state.end, MINUTE);
}

#[test]
fn a_changed_limit_is_compared_with_the_same_counts() {
    let lowered = take(&window(50), &mut counted(100, 40), secs(90), 1);
    assert_eq!((lowered.is_allowed(), lowered.remaining), (false, 0));
    assert!(lowered.retry_after().unwrap() <= Span::from_secs(90));
    let raised = take(&window(200), &mut counted(100, 40), secs(90), 1);
    assert_eq!((raised.outcome, raised.remaining), (Outcome::Allow, 109));
}

/// From this window first, then from the one before.
#[test]
fn a_return_takes_back_the_newest_first() {
    let (window, mut state) = (window(100), counted(30, 20));
    window.decide(&mut state, secs(60), Op::Return(15));
    assert_eq!(state, counted(30, 5));
    window.decide(&mut state, secs(60), Op::Return(15));
    assert_eq!(state, counted(20, 0));
    assert_eq!(window.decide(&mut state, secs(60), Op::Return(500)).remaining, 100);
    let mut fresh = SlidingWindowState::default();
    window.decide(&mut fresh, secs(60), Op::Return(1));
    assert_eq!(fresh, SlidingWindowState::default(), "a return creates no key");
}

/// A window that counted nothing yet does not hide the one before.
#[test]
fn a_return_reaches_the_window_before() {
    let (window, mut state) = (window(100), counted(30, 0));
    window.decide(&mut state, secs(90), Op::Return(10));
    assert_eq!(state, counted(20, 0));
    // From the next window on, the current count is the previous one.
    let mut state = counted(30, 20);
    window.decide(&mut state, secs(120), Op::Return(5));
    assert_eq!(state, SlidingWindowState { end: 3 * MINUTE, previous: 15, current: 0 });
}

/// Giving nothing back is a peek. 10 s into the next window 20 weigh 5/6, so 16.
#[test]
fn a_return_of_nothing_writes_nothing() {
    let mut state = counted(30, 20);
    assert_eq!(window(100).decide(&mut state, secs(130), Op::Return(0)).remaining, 84);
    assert_eq!(state, counted(30, 20));
}

/// What books nothing writes nothing, unless it has to repair.
#[test]
fn a_forced_cost_that_books_nothing_leaves_a_sound_state_alone() {
    let (window, full) = (window(100), counted(0, 100));
    let mut state = full;
    // The next window begins with the whole weight of this one.
    let forced = window.decide(&mut state, secs(120), Op::Force(7));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 7));
    assert_eq!(state, full);
    let stale = SlidingWindowState { end: 4 * MINUTE, ..full };
    let mut state = stale;
    assert_eq!(window.decide(&mut state, secs(0), Op::Force(0)).remaining, 100);
    assert_eq!(state, stale, "forcing nothing is a peek");
}

#[test]
fn a_forced_cost_stops_at_a_full_window() {
    let (window, mut state) = (window(100), counted(100, 30));
    let forced = window.decide(&mut state, secs(90), Op::Force(50));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 30));
    assert_eq!(state.current, 50);
}

#[test]
fn explains_both_counts_and_their_weight() {
    let (window, state) = (window(80), counted(80, 40));
    let explained = window.explain(&state, secs(90));
    assert_eq!((explained.remaining, explained.idle_at), (0, secs(180)));
    let (start, end) = (secs(60), secs(120));
    let detail = Detail::SlidingWindow { start, end, previous: 80, current: 40, estimate: 80 };
    assert_eq!(explained.detail, detail);
    let next = explained.next_allowed_at.unwrap();
    assert_eq!(
        explained.to_string(),
        alloc::format!(
            "0 of 80 left: 40 in the window from 1970-01-01T00:01:00Z to 1970-01-01T00:02:00Z and 80 in the one before, \
             weighed to 80; one more is allowed at {next}; equals a fresh key from 1970-01-01T00:03:00Z"
        )
    );
    assert!(take(&window, &mut state.clone(), next, 1).is_allowed());
    assert!(!take(&window, &mut state.clone(), next - Span::from_micros(1), 1).is_allowed());
}

#[test]
fn numbers_out_of_range_are_refused() {
    let second = Span::from_secs(1);
    assert_eq!(SlidingWindow::new((1 << 32) + 1, second), Err(InvalidLimit::WindowLimit));
    assert_eq!(SlidingWindow::new(1, Span::ZERO), Err(InvalidLimit::Period));
    assert!(SlidingWindow::new(1 << 32, second).is_ok());
}

/// u = ceil(60,000,000 / 2^20) = 58 us and n = ceil(60,000,000 / 58).
#[test]
fn a_window_reports_its_numbers() {
    let window = window(100);
    assert_eq!((window.limit(), window.step(), window.steps()), (100, 58, 1_034_483));
}
