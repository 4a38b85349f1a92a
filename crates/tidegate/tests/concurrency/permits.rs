//! Permits without waiting.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tidegate::concurrency::{
    Class, ConcurrencyBuilder, ConcurrencyLimiter, Outcome, Permit, ShedReason, UtilisationLevels,
    identity,
};
use tidegate::{ManualClock, Span};

const TEST: Class = Class::new(3);
const READ: Class = Class::new(2);
const WRITE: Class = Class::new(1);

#[test]
fn ov_01_threads_never_exceed_the_limit() {
    const THREADS: u32 = 8;
    const ROUNDS: u32 = 125_000;
    let limiter = ConcurrencyLimiter::fixed(2).build();
    let (running, highest, admitted) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    let start = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for round in 0..ROUNDS {
                    let Ok(permit) = limiter.try_acquire(Class::CRITICAL) else { continue };
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    highest.fetch_max(now, Ordering::SeqCst);
                    admitted.fetch_add(1, Ordering::SeqCst);
                    if round % 4 == 0 {
                        thread::yield_now();
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    permit.finish(Outcome::Success);
                }
            });
        }
    });
    assert!(highest.load(Ordering::SeqCst) <= 2);
    assert!(admitted.load(Ordering::SeqCst) > ROUNDS / 2);
    let stats = limiter.stats();
    assert_eq!(stats.in_flight, 0);
    let shed = stats.sheds(Class::CRITICAL, ShedReason::Limit);
    assert_eq!(shed + u64::from(admitted.into_inner()), u64::from(THREADS * ROUNDS));
}

fn hold(limiter: &ConcurrencyLimiter, count: usize) -> Vec<Permit> {
    (0..count).map(|_| limiter.try_acquire(Class::CRITICAL).unwrap()).collect()
}

fn admitted(limiter: &ConcurrencyLimiter) -> [bool; 4] {
    [Class::CRITICAL, WRITE, READ, TEST].map(|class| limiter.try_acquire(class).is_ok())
}

#[test]
fn ov_02_less_important_classes_are_refused_first() {
    let limiter = ConcurrencyLimiter::fixed(10).build();
    let mut held = hold(&limiter, 7);
    assert_eq!(admitted(&limiter), [true, true, true, false]);
    held.extend(hold(&limiter, 2));
    assert_eq!(admitted(&limiter), [true, false, false, false]);
    held.extend(hold(&limiter, 1));
    assert_eq!(admitted(&limiter), [false; 4]);
    let shed = limiter.try_acquire(Class::new(7)).unwrap_err();
    assert_eq!(shed.reason(), ShedReason::Limit);
    assert_eq!(shed.to_string(), "request of class 7 shed: limit");
    // Unknown classes count as the last one.
    assert_eq!(limiter.stats().sheds(TEST, ShedReason::Limit), 4);
}

#[test]
fn ov_03_a_limit_of_one_serves_every_class() {
    let limiter = ConcurrencyLimiter::fixed(1).build();
    assert_eq!(admitted(&limiter), [true; 4]);
}

/// A limiter on a clock that the test moves, and windows to feed it with.
struct Service {
    clock: ManualClock,
    limiter: ConcurrencyLimiter,
}

impl Service {
    fn new(build: impl FnOnce() -> tidegate::concurrency::ConcurrencyBuilder) -> Self {
        let clock = ManualClock::new();
        let limiter = build().clock(clock.clone()).seed(7).build();
        Self { clock, limiter }
    }

    /// Rounds of as many requests as the limit admits, all of which take `latency`, for 100 ms at
    /// least and one window.
    fn saturate(&self, latency: Span, outcome: Outcome) {
        let mut passed = Span::ZERO;
        let mut completed = 0;
        while passed < Span::from_millis(110) || completed < 55 {
            let mut held = Vec::new();
            while let Ok(permit) = self.limiter.try_acquire(Class::CRITICAL) {
                held.push(permit);
            }
            self.clock.advance(latency);
            passed = passed + latency;
            completed += held.len();
            held.into_iter().for_each(|permit| permit.finish(outcome));
        }
    }

    fn limit(&self) -> u32 {
        self.limiter.stats().limit
    }
}

#[test]
fn ov_14_a_slow_reader_does_not_count_as_a_slow_server() {
    let baseline = |reports_at_head: bool| {
        let service = Service::new(ConcurrencyLimiter::adaptive);
        for _ in 0..60 {
            let mut permit = service.limiter.try_acquire(Class::CRITICAL).unwrap();
            service.clock.advance(Span::from_millis(5));
            if reports_at_head {
                permit.report(Outcome::Success);
            }
            service.clock.advance(Span::from_secs(10));
            assert_eq!(service.limiter.stats().in_flight, 1, "held until the body ends");
            permit.report(Outcome::Success);
            permit.finish(Outcome::Success);
        }
        service.limiter.stats().baseline.unwrap()
    };
    assert!(baseline(true) < Duration::from_millis(6));
    assert!(baseline(false) > Duration::from_secs(9), "the naive version");
}

#[test]
fn an_adaptive_limit_follows_the_server() {
    let service = Service::new(ConcurrencyLimiter::adaptive);
    for _ in 0..40 {
        service.saturate(Span::from_millis(10), Outcome::Success);
    }
    let stats = service.limiter.stats();
    assert!(stats.limit > 60, "{stats:?}");
    assert!(stats.baseline.unwrap().as_micros().abs_diff(10_000) < 700, "{stats:?}");
    let before = stats.limit;
    service.saturate(Span::from_millis(40), Outcome::Success);
    service.saturate(Span::from_millis(40), Outcome::Success);
    assert!(service.limit() < before * 8 / 10, "{before} → {}", service.limit());
}

/// Neither failures nor dropped permits are samples.
#[test]
fn ov_15_failures_and_dropped_permits_are_no_samples() {
    let service = Service::new(ConcurrencyLimiter::adaptive);
    for _ in 0..20 {
        service.saturate(Span::from_millis(1), Outcome::Ignored);
    }
    for _ in 0..200 {
        drop(service.limiter.try_acquire(Class::CRITICAL).unwrap());
        service.clock.advance(Span::from_millis(1));
    }
    let stats = service.limiter.stats();
    assert_eq!((stats.limit, stats.baseline, stats.in_flight), (20, None, 0));
}

#[test]
fn ov_16_one_drop_in_a_window_takes_a_tenth_once() {
    let service = Service::new(|| ConcurrencyLimiter::aimd().initial_limit(100));
    service.limiter.try_acquire(Class::CRITICAL).unwrap().finish(Outcome::Dropped);
    service.saturate(Span::from_millis(20), Outcome::Success);
    assert_eq!(service.limit(), 90);
    service.saturate(Span::from_millis(20), Outcome::Success);
    assert_eq!(service.limit(), 91);
}

/// A response that comes too late counts as dropped, whatever its status.
#[test]
fn a_request_slower_than_slow_after_is_dropped() {
    for outcome in [Outcome::Success, Outcome::Ignored] {
        let service = Service::new(|| {
            ConcurrencyLimiter::aimd().initial_limit(100).slow_after(Duration::from_millis(30))
        });
        service.saturate(Span::from_millis(30), Outcome::Success);
        assert_eq!(service.limit(), 101, "30 ms is not longer than 30 ms");
        service.saturate(Span::from_micros(30_001), outcome);
        assert_eq!(service.limit(), 90, "{outcome:?}");
    }
}

#[test]
fn ov_49_shadow_mode_admits_everything_and_counts() {
    let service = Service::new(|| ConcurrencyLimiter::adaptive().shadow());
    let held: Vec<Permit> =
        (0..50).map(|_| service.limiter.try_acquire(Class::CRITICAL).unwrap()).collect();
    let stats = service.limiter.stats();
    assert_eq!((stats.in_flight, stats.queued), (50, 0));
    assert_eq!(stats.sheds(Class::CRITICAL, ShedReason::Limit), 30);
    drop(held);
    // The limit still moves.
    for _ in 0..20 {
        let held: Vec<Permit> =
            (0..60).map(|_| service.limiter.try_acquire(Class::CRITICAL).unwrap()).collect();
        service.clock.advance(Span::from_millis(20));
        held.into_iter().for_each(|permit| permit.finish(Outcome::Success));
    }
    assert_ne!(service.limit(), 20);
}

#[test]
fn shed_clients_are_spread_over_more_seconds_the_more_are_shed() {
    let service = Service::new(|| ConcurrencyLimiter::fixed(50));
    let waits = || {
        let seconds = |_| {
            let shed = service.limiter.try_acquire(Class::CRITICAL).unwrap_err();
            shed.retry_after().as_secs()
        };
        (0..200).map(seconds).max().unwrap()
    };
    service.clock.advance(Span::from_millis(100));
    let held = hold(&service.limiter, 50);
    assert_eq!(waits(), 1, "nothing is known yet");
    // 450 of 500 are shed.
    assert!((0..250).all(|_| service.limiter.try_acquire(Class::CRITICAL).is_err()));
    service.clock.advance(Span::from_millis(20));
    held.into_iter().for_each(|permit| permit.finish(Outcome::Success));
    let _held = hold(&service.limiter, 50);
    assert_eq!(waits(), 10);
}

/// A limiter whose permits are all taken, looked at every 10 ms for this long.
fn busy(seconds: u64, build: ConcurrencyBuilder) -> (ConcurrencyLimiter, Vec<Permit>) {
    let clock = ManualClock::new();
    let limiter = build.utilisation(UtilisationLevels::default()).clock(clock.clone()).build();
    let held = hold(&limiter, 10);
    for _ in 0..seconds * 100 {
        clock.advance(Span::from_millis(10));
        let _ = limiter.shed_busy(Class::CRITICAL, || None);
    }
    (limiter, held)
}

/// While the workers are busy, the least important class is shed first, and the first one never.
#[test]
fn ov_27_busy_workers_shed_the_least_important_class_first() {
    let shed = |limiter: &ConcurrencyLimiter, class| {
        (0..100).filter(|_| limiter.shed_busy(class, || None).is_err()).count()
    };
    let (limiter, held) = busy(21, ConcurrencyLimiter::fixed(10));
    assert_eq!(shed(&limiter, TEST), 100);
    assert!(shed(&limiter, READ) < 10 && shed(&limiter, WRITE) == 0);
    let (limiter, more) = busy(300, ConcurrencyLimiter::fixed(10));
    assert_eq!([Class::CRITICAL, WRITE, READ].map(|it| shed(&limiter, it)), [0, 100, 100]);
    assert!(limiter.stats().sheds(READ, ShedReason::Busy) >= 100);
    drop((held, more));
}

/// A user whose requests are shed has all of them shed, so the others are served throughout.
#[test]
fn a_user_is_served_throughout_or_not_at_all() {
    let (limiter, _held) = busy(11, ConcurrencyLimiter::fixed(10));
    let is_shed = |user: u64| {
        let user = identity(&user.to_le_bytes());
        limiter.shed_busy(TEST, || Some(user)).is_err()
    };
    let shed: Vec<u64> = (0..1_000).filter(|user| is_shed(*user)).collect();
    assert!((400..600).contains(&shed.len()), "{}", shed.len());
    assert!(shed.iter().all(|user| is_shed(*user)));
    let shadow = busy(11, ConcurrencyLimiter::fixed(10).shadow()).0;
    assert!((0..100).all(|_| shadow.shed_busy(TEST, || None).is_ok()));
    assert!(shadow.stats().sheds(TEST, ShedReason::Busy) > 30, "counted only");
}

/// A limiter with other numbers takes over the requests in progress.
#[test]
fn ov_50_a_successor_counts_the_requests_of_its_predecessor() {
    let before = ConcurrencyLimiter::fixed(10).build();
    let mut held = hold(&before, 9);
    let after = ConcurrencyLimiter::fixed(4).build_after(&before);
    assert_eq!(after.stats().in_flight, 9);
    held.drain(..5);
    assert!(after.try_acquire(Class::CRITICAL).is_err(), "four of before are left");
    held.pop();
    let permit = after.try_acquire(Class::CRITICAL).unwrap();
    assert!(after.try_acquire(Class::CRITICAL).is_err());
    drop((held, permit));
    assert_eq!((before.stats().in_flight, after.stats().in_flight), (0, 0));
}
