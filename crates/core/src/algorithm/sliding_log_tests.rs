use super::*;

const MINUTE: u64 = 60_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn secs(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn mins(mins: u64) -> Timestamp {
    at(mins * MINUTE)
}

fn log(limit: u64, length_secs: u64) -> SlidingLog {
    SlidingLog::new(limit, Span::from_secs(length_secs)).unwrap()
}

fn take(log: &SlidingLog, state: &mut SlidingLogState, now: Timestamp, cost: u64) -> Decision {
    log.decide(state, now, Op::Take(cost))
}

fn taken(log: &SlidingLog, now: Timestamp, cost: u64) -> SlidingLogState {
    let mut state = SlidingLogState::default();
    assert!(take(log, &mut state, now, cost).is_allowed());
    state
}

fn wait(decision: Decision) -> Option<u64> {
    decision.retry_after().map(Span::as_micros)
}

fn entries(state: &SlidingLogState) -> Vec<(u64, u64)> {
    state.entries().map(|entry| (entry.at, entry.weight)).collect()
}

/// Every rolling window, by brute force over a greedy stream.
#[test]
fn no_rolling_window_admits_more_than_the_limit() {
    let (log, mut state) = (log(7, 1), SlidingLogState::default());
    let mut admitted = Vec::new();
    for now in (0..20_000_000_u64).step_by(34_567) {
        let cost = 1 + now % 3;
        if take(&log, &mut state, at(now), cost).is_allowed() {
            admitted.push((now, cost));
        }
    }
    for (first, (start, _)) in admitted.iter().enumerate() {
        let within = admitted[first..].iter().take_while(|(at, _)| *at < start + 1_000_000);
        assert!(within.map(|(_, cost)| cost).sum::<u64>() <= 7, "from {start}");
    }
    assert!(admitted.len() > 50, "and it does admit");
}

#[test]
fn memory_grows_with_the_limit() {
    assert_eq!(size_of::<Entry>(), 16);
    let (log, mut state) = (log(10_000, 60), SlidingLogState::default());
    for now in 0..10_100 {
        take(&log, &mut state, at(now), 1);
    }
    assert_eq!(state.entries().len(), 10_000);
    assert!((160_000..=330_000).contains(&state.heap_bytes()), "{}", state.heap_bytes());
}

/// A store with a memory budget asks first: the reported growth is sufficient, and 0 if there is
/// room for one more entry of 16 bytes.
#[test]
fn growth_is_known_before_it_happens() {
    let (log, mut state) = (log(100, 60), SlidingLogState::default());
    assert_eq!((state.heap_bytes(), state.growth_bytes()), (0, 4 * 16));
    for held in 1..=100 {
        let (before, growth) = (state.heap_bytes(), state.growth_bytes());
        assert_eq!(growth == 0, before >= 16 * held, "entry {held}: {before} and {growth} bytes");
        take(&log, &mut state, at(held as u64), 1);
        assert!((16 * held..=before + growth).contains(&state.heap_bytes()), "entry {held}");
    }
}

/// A closed interval of exactly one window holds both its ends.
#[test]
fn the_promise_is_the_limit_for_each_window_begun() {
    let log = log(5, 60);
    for (within, expected) in [(0, 5), (MINUTE - 1, 5), (MINUTE, 10), (5 * MINUTE / 2, 15)] {
        assert_eq!(log.promise(Span::from_micros(within)), Some(expected), "{within} us");
    }
    let mut state = taken(&log, secs(0), 5);
    assert!(take(&log, &mut state, secs(60), 5).is_allowed());
}

#[test]
fn five_password_resets_an_hour_are_exact() {
    let (log, mut state) = (log(5, 3_600), SlidingLogState::default());
    for minute in [0, 10, 20, 30, 40] {
        assert!(take(&log, &mut state, mins(minute), 1).is_allowed());
    }
    let denied = take(&log, &mut state, mins(50), 1);
    assert_eq!((wait(denied), denied.remaining), (Some(10 * MINUTE), 0));
    assert_eq!(denied.reset_after, Span::from_secs(50 * 60));
    assert_eq!(wait(take(&log, &mut state, mins(50), 3)), Some(30 * MINUTE));
    assert!(!take(&log, &mut state, at(60 * MINUTE - 1), 1).is_allowed());
    assert!(take(&log, &mut state, mins(60), 1).is_allowed());
    assert_eq!(wait(take(&log, &mut state, mins(60), 1)), Some(10 * MINUTE));
}

#[test]
fn explains_with_the_whole_audit_trail() {
    let (log, mut state) = (log(3, 3_600), SlidingLogState::default());
    for minute in [20, 50, 79] {
        take(&log, &mut state, mins(minute), 1);
    }
    let full = log.explain(&state, mins(79));
    assert_eq!((full.remaining, full.next_allowed_at), (0, Some(mins(80))));
    let explained = log.explain(&state, mins(80));
    assert_eq!((explained.remaining, explained.next_allowed_at), (1, Some(mins(80))));
    let trail = [50, 79].map(|minute| Entry { at: minute * MINUTE, weight: 1 }).to_vec();
    assert_eq!(explained.detail, Detail::SlidingLog { sum: 2, entries: trail });
    assert_eq!(
        explained.to_string(),
        "1 of 3 left: 2 admitted between 1970-01-01T00:50:00Z and 1970-01-01T01:19:00Z; one more is allowed now; \
         equals a fresh key from 1970-01-01T02:19:00Z"
    );
    let empty = log.explain(&SlidingLogState::default(), mins(1));
    assert!(empty.to_string().contains("nothing admitted within the window"), "{empty}");
}

/// 2.4: the window is half-open, so an entry is gone when it is exactly one window old.
#[test]
fn an_entry_aged_exactly_one_window_has_left_it() {
    let log = log(1, 60);
    let state = taken(&log, at(123), 1);
    assert_eq!(log.idle_at(&state), at(MINUTE + 123));
    assert!(!take(&log, &mut state.clone(), at(MINUTE + 122), 1).is_allowed());
    let mut later = state;
    assert!(take(&log, &mut later, at(MINUTE + 123), 1).is_allowed());
    assert_eq!(entries(&later), [(MINUTE + 123, 1)], "and is dropped");
}

#[test]
fn two_instants_a_microsecond_apart_are_two_instants() {
    let (log, mut state) = (log(2, 1), SlidingLogState::default());
    take(&log, &mut state, at(10), 1);
    take(&log, &mut state, at(11), 1);
    assert_eq!(entries(&state), [(10, 1), (11, 1)]);
    assert_eq!(wait(take(&log, &mut state, at(12), 1)), Some(999_998));
    assert!(take(&log, &mut state, at(1_000_010), 1).is_allowed());
    assert!(!take(&log, &mut state, at(1_000_010), 1).is_allowed());
}

/// shenyu #6754 counted before pruning.
#[test]
fn expired_entries_are_dropped_before_counting() {
    let log = log(3, 60);
    let mut state = taken(&log, secs(0), 3);
    assert_eq!(take(&log, &mut state, secs(60), 3).remaining, 0);
    assert_eq!(entries(&state), [(MINUTE, 3)]);
}

/// Members of a sorted set collapse when their scores and names are equal.
#[test]
fn admissions_of_the_same_microsecond_all_count() {
    let (log, mut state) = (log(5, 60), SlidingLogState::default());
    let passed = (0..9).filter(|_| take(&log, &mut state, secs(1), 1).is_allowed()).count();
    assert_eq!((passed, entries(&state)), (5, [(1_000_000, 5)].to_vec()));
}

/// 1.13.7: a log never counts denied requests.
#[test]
fn a_denied_request_is_not_logged() {
    let log = log(1, 60);
    let mut state = taken(&log, secs(0), 1);
    let before = state.clone();
    for second in 1..60 {
        assert!(!take(&log, &mut state, secs(second), 1).is_allowed());
    }
    assert_eq!(state, before);
    assert!(take(&log, &mut state, secs(60), 1).is_allowed());
}

#[test]
fn a_cost_above_the_limit_is_denied_for_good() {
    let mut state = SlidingLogState::default();
    assert!(take(&log(5, 60), &mut state, secs(0), 6).is_never());
    assert!(take(&log(5, 60), &mut state, secs(0), u64::MAX).is_never());
    assert!(take(&log(0, 60), &mut state, secs(0), 1).is_never());
    assert_eq!(state, SlidingLogState::default());
}

/// Unwritten, five a minute were locked for 3,660 s after a step back of 1 h.
#[test]
fn a_denial_restamps_the_future_so_a_stepped_clock_costs_one_window() {
    let log = log(5, 60);
    let mut state = taken(&log, secs(3_600), 5);
    assert_eq!(wait(take(&log, &mut state, secs(0), 1)), Some(MINUTE));
    assert_eq!(entries(&state), [(0, 5)], "the repair is written");
    assert!(!take(&log, &mut state, at(MINUTE - 1), 1).is_allowed());
    assert!(take(&log, &mut state, secs(60), 1).is_allowed());
}

/// Whatever may write repairs, even if nothing could be booked.
#[test]
fn a_key_that_is_only_ever_forced_does_not_stay_locked() {
    let log = log(5, 60);
    let mut state = taken(&log, secs(3_600), 5);
    assert_eq!(log.decide(&mut state, secs(0), Op::Force(1)).unbooked, 1);
    assert_eq!(log.decide(&mut state, secs(60), Op::Force(1)).unbooked, 0);
}

#[test]
fn a_peek_writes_nothing_not_even_a_repair() {
    let log = log(5, 60);
    let stale = taken(&log, secs(3_600), 5);
    for op in [Op::Take(0), Op::Read(0), Op::Read(1)] {
        let (mut seen, mut fresh) = (stale.clone(), SlidingLogState::default());
        assert_eq!(log.decide(&mut seen, secs(0), op).remaining, 0);
        assert_eq!(log.decide(&mut fresh, secs(0), op).remaining, 5);
        assert_eq!((seen, fresh), (stale.clone(), SlidingLogState::default()));
    }
}

/// Only entries ahead of the clock are restamped, and they keep their order and weight.
#[test]
fn a_small_step_back_restamps_only_the_future() {
    let (log, mut state) = (log(9, 60), SlidingLogState::default());
    for second in [10, 20, 30] {
        take(&log, &mut state, secs(second), second / 10);
    }
    take(&log, &mut state, secs(15), 1);
    assert_eq!(entries(&state), [(10_000_000, 1), (15_000_000, 6)]);
}

#[test]
fn changed_numbers_apply_to_the_entries_there_are() {
    let mut state = taken(&log(100, 60), secs(0), 100);
    let lowered = take(&log(50, 60), &mut state, secs(30), 1);
    assert_eq!((wait(lowered), lowered.remaining), (Some(30_000_000), 0));
    assert_eq!(take(&log(150, 60), &mut state, secs(30), 1).remaining, 49);
    assert_eq!(take(&log(50, 10), &mut state, secs(30), 1).remaining, 48, "shorter: the old go");
}

/// An entry of this very instant is not later than now, so a denial changes nothing.
#[test]
fn a_denial_at_the_instant_of_the_newest_entry_prunes_nothing() {
    let wide = log(5, 60);
    let mut state = taken(&wide, secs(0), 1);
    take(&wide, &mut state, secs(50), 4);
    let kept = state.clone();
    // Under a shorter window the first entry has left it; the second fills the limit for 20 s.
    assert_eq!(wait(take(&log(4, 20), &mut state, secs(50), 1)), Some(20_000_000));
    assert_eq!(state, kept);
}

#[test]
fn a_return_takes_back_the_newest() {
    let (log, mut state) = (log(9, 60), SlidingLogState::default());
    log.decide(&mut state, secs(1), Op::Return(3));
    assert_eq!(state, SlidingLogState::default(), "a return creates no key");
    for second in [1, 2, 3] {
        take(&log, &mut state, secs(second), 3);
    }
    assert_eq!(log.decide(&mut state, secs(3), Op::Return(4)).remaining, 4);
    assert_eq!(entries(&state), [(1_000_000, 3), (2_000_000, 2)]);
    assert_eq!(log.decide(&mut state, secs(3), Op::Return(u64::MAX)).remaining, 9);
}

#[test]
fn a_forced_cost_stops_at_a_full_log() {
    let log = log(5, 60);
    let mut state = taken(&log, secs(0), 3);
    let forced = log.decide(&mut state, secs(1), Op::Force(4));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 2));
    assert_eq!(entries(&state), [(0, 3), (1_000_000, 2)]);
}

/// What books nothing writes nothing, unless it has to repair.
#[test]
fn a_forced_cost_that_books_nothing_leaves_a_sound_state_alone() {
    let wide = log(5, 60);
    let mut state = taken(&wide, secs(0), 1);
    take(&wide, &mut state, secs(50), 4);
    let kept = state.clone();
    // The first entry has left the window, but the second alone fills a limit of four.
    let forced = log(4, 60).decide(&mut state, secs(61), Op::Force(2));
    assert_eq!((forced.outcome, forced.remaining, forced.unbooked), (Outcome::Allow, 0, 2));
    assert_eq!(state, kept);
    // Forcing 0 is a peek, also where an entry is later than now.
    for (now, remaining) in [(61, 1), (0, 0)] {
        assert_eq!(wide.decide(&mut state, secs(now), Op::Force(0)).remaining, remaining);
        assert_eq!(state, kept, "at {now} s");
    }
    wide.decide(&mut state, secs(61), Op::Force(1));
    assert_eq!(entries(&state), [(50_000_000, 4), (61_000_000, 1)], "what has expired is dropped");
}

#[test]
fn a_reset_deletes_the_entries() {
    let log = log(5, 60);
    let mut state = taken(&log, secs(0), 3);
    let decision = log.decide(&mut state, secs(0), Op::Reset);
    assert_eq!((decision.remaining, decision.reset_after), (5, Span::ZERO));
    assert_eq!(state, SlidingLogState::default());
}

#[test]
fn a_long_log_must_be_enabled() {
    let minute = Span::from_secs(60);
    assert_eq!(SlidingLog::new(10_001, minute), Err(InvalidLimit::LogLength));
    assert!(SlidingLog::new(10_000, minute).is_ok());
    assert!(SlidingLog::large(1_000_000, minute).is_ok());
    assert_eq!(SlidingLog::large(1_000_001, minute), Err(InvalidLimit::LogLength));
    assert_eq!(SlidingLog::new(1, Span::ZERO), Err(InvalidLimit::Period));
}

#[test]
fn a_restored_log_is_the_one_it_came_from() {
    let log = log(9, 60);
    let mut state = taken(&log, secs(10), 2);
    take(&log, &mut state, secs(20), 3);
    assert_eq!(SlidingLogState::restore(state.entries()), state);
    assert_eq!((log.limit(), log.length()), (9, Span::from_secs(60)));
}
