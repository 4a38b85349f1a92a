//! Waiting: in the order of arrival, cancellable, woken when units come back.

#![cfg(feature = "tokio")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tidegate::{
    Admission, Clock, InFlight, Limit, Limiter, MAX_WAITING, ManualClock, Permit, Rate, Span,
    SystemClock, Verdict,
};

/// Futures on one thread. Polls only what was woken, so that a lost wake-up shows, and the newest
/// first, so that the order of service is the limiter's doing.
struct Crowd<'a, T> {
    waiters: Vec<Option<Pin<Box<dyn Future<Output = T> + 'a>>>>,
    woken: Vec<Arc<Flag>>,
    polls: usize,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl<'a, T> Crowd<'a, T> {
    fn new() -> Self {
        Self { waiters: Vec::new(), woken: Vec::new(), polls: 0 }
    }

    /// Adds one waiter and polls it once: the answer, if it came at once.
    fn join(&mut self, waiter: impl Future<Output = T> + 'a) -> Option<T> {
        self.waiters.push(Some(Box::pin(waiter)));
        self.woken.push(Arc::default());
        self.poll(self.waiters.len() - 1)
    }

    /// Drops the future of waiter number `number`.
    fn cancel(&mut self, number: usize) {
        assert!(self.waiters[number].take().is_some(), "{number} waits no more");
    }

    /// Polls until no waiter is woken any more; returns the served waiters, in order.
    fn served(&mut self) -> Vec<(usize, T)> {
        let mut served = Vec::new();
        while let Some(number) = self.woken.iter().rposition(|flag| flag.0.load(Ordering::SeqCst)) {
            self.woken[number].0.store(false, Ordering::SeqCst);
            served.extend(self.poll(number).map(|answer| (number, answer)));
        }
        served
    }

    /// As [`Crowd::served`], the numbers only.
    fn who(&mut self) -> Vec<usize> {
        self.served().into_iter().map(|(number, _)| number).collect()
    }

    fn poll(&mut self, number: usize) -> Option<T> {
        let waiter = self.waiters[number].as_mut()?;
        let waker = Waker::from(Arc::clone(&self.woken[number]));
        self.polls += 1;
        let Poll::Ready(answer) = waiter.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        self.waiters[number] = None;
        Some(answer)
    }
}

fn limiter(limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("default", limit).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn bucket(rate: Rate, burst: u64) -> Limit {
    Limit::token_bucket(rate).burst(burst).build().unwrap()
}

/// One a second, and the first second's is gone.
fn spent() -> (Limiter, ManualClock) {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 1));
    assert!(limiter.check("k").is_allowed());
    (limiter, clock)
}

fn one_place() -> (Limiter, Permit) {
    let (limiter, _) = limiter(Limit::in_flight(1, InFlight::NO_EXPIRY).unwrap());
    let permit = limiter.acquire("k").permit().unwrap();
    (limiter, permit)
}

/// No queue and no count is left behind.
fn no_caller_waits(limiter: &Limiter) -> bool {
    format!("{limiter:?}").contains("Waiting { queues: {}, count: 0 }")
}

const SECOND: Span = Span::from_secs(1);
const TICK: Span = Span::from_micros(1);
const ALMOST_A_SECOND: Span = Span::from_micros(999_999);

#[test]
fn free_units_are_taken_at_once() {
    let (limiter, _) = limiter(bucket(Rate::per_second(1), 3));
    let mut crowd = Crowd::new();
    assert_eq!(crowd.join(limiter.until_ready("k")).unwrap().remaining(), 2);
    assert_eq!(crowd.join(limiter.until_ready_cost("k", 2)).unwrap().remaining(), 0);
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    assert!(!no_caller_waits(&limiter));
    drop(crowd);
    assert!(no_caller_waits(&limiter));
}

#[test]
fn waiters_are_served_in_the_order_they_came() {
    let (limiter, clock) = spent();
    let mut crowd = Crowd::new();
    for _ in 0..5 {
        assert!(crowd.join(limiter.until_ready("k")).is_none());
    }
    for next in 0..5 {
        clock.advance(ALMOST_A_SECOND);
        assert_eq!(crowd.who(), [], "a microsecond early");
        clock.advance(TICK);
        assert_eq!(crowd.who(), [next]);
    }
    assert!(no_caller_waits(&limiter));
}

#[test]
fn units_that_came_together_are_given_out_in_order() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 3));
    let _ = limiter.check_cost("k", 3);
    let mut crowd = Crowd::new();
    for _ in 0..5 {
        assert!(crowd.join(limiter.until_ready("k")).is_none());
    }
    clock.advance(Span::from_secs(3));
    assert_eq!(crowd.who(), [0, 1, 2]);
    clock.advance(Span::from_secs(3));
    assert_eq!(crowd.who(), [3, 4]);
    assert_eq!(limiter.peek("k", 1).remaining(), 1);
}

/// The unit is there, but the first in line was not polled yet.
#[test]
fn a_new_waiter_does_not_overtake_the_queue() {
    let (limiter, clock) = spent();
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    clock.advance(SECOND);
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    assert_eq!(crowd.who(), [0]);
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [1]);
}

#[test]
fn a_large_cost_is_not_starved_by_small_ones_behind_it() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 3));
    let _ = limiter.check_cost("k", 3);
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready_cost("k", 3)).is_none());
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    clock.advance(Span::from_secs(2));
    assert_eq!(crowd.who(), []);
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [0]);
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [1]);
}

#[test]
fn a_waiter_that_gives_up_spends_nothing_and_the_next_moves_up() {
    for cancelled in 0..4 {
        let (limiter, clock) = spent();
        let mut crowd = Crowd::new();
        for _ in 0..4 {
            assert!(crowd.join(limiter.until_ready("k")).is_none());
        }
        crowd.cancel(cancelled);
        assert_eq!(crowd.who(), [], "giving up frees nothing");
        for next in (0..4).filter(|number| *number != cancelled) {
            clock.advance(ALMOST_A_SECOND);
            assert_eq!(crowd.who(), []);
            clock.advance(TICK);
            assert_eq!(crowd.who(), [next], "{cancelled} gave up");
        }
        assert!(no_caller_waits(&limiter));
    }
}

/// The wake-up went to one that gives up before it is polled: the next must not sleep on.
#[test]
fn a_wake_up_is_not_lost_with_the_one_it_was_for() {
    let (limiter, clock) = spent();
    let mut crowd = Crowd::new();
    for _ in 0..2 {
        assert!(crowd.join(limiter.until_ready("k")).is_none());
    }
    clock.advance(SECOND);
    crowd.cancel(0);
    assert_eq!(crowd.who(), [1]);

    let (limiter, permit) = one_place();
    let mut crowd = Crowd::new();
    for _ in 0..2 {
        assert!(crowd.join(limiter.acquire_ready("k")).is_none());
    }
    drop(permit);
    crowd.cancel(0);
    assert_eq!(crowd.who(), [1]);
    assert!(no_caller_waits(&limiter));
}

#[test]
fn the_last_to_give_up_takes_the_queue_away() {
    let (limiter, clock) = spent();
    let mut crowd = Crowd::new();
    for key in ["k", "k", "k", "other"] {
        let _ = limiter.check(key);
        assert!(crowd.join(limiter.until_ready(key)).is_none());
    }
    for number in [1, 0, 3] {
        crowd.cancel(number);
        assert!(!no_caller_waits(&limiter));
    }
    crowd.cancel(2);
    assert!(no_caller_waits(&limiter));
    clock.advance(SECOND);
    assert_eq!(limiter.peek("k", 1).remaining(), 1);
}

#[test]
fn a_future_that_was_never_polled_does_not_queue() {
    let (limiter, _) = spent();
    let future = limiter.until_ready("k");
    assert!(no_caller_waits(&limiter));
    drop(future);
}

#[test]
fn keys_do_not_wait_for_each_other() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 4));
    let _ = (limiter.check_cost("slow", 4), limiter.check_cost("quick", 4));
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready_cost("slow", 4)).is_none());
    assert!(crowd.join(limiter.until_ready("quick")).is_none());
    assert!(crowd.join(limiter.until_ready("idle")).unwrap().is_allowed());
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [1]);
    clock.advance(Span::from_secs(3));
    assert_eq!(crowd.who(), [0]);
}

#[test]
fn a_cost_that_never_fits_is_denied_at_once() {
    let (limiter, clock) = limiter(bucket(Rate::per_second(1), 3));
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready_cost("k", 4)).unwrap().is_never());
    let _ = limiter.check_cost("k", 3);
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    let never = crowd.join(limiter.until_ready_cost("k", 4)).expect("behind others too");
    assert!(never.is_never());
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [1]);
}

/// Lowering the limit makes the wait pointless.
#[test]
fn a_waiter_that_can_no_longer_be_served_is_told() {
    let (limiter, _) = limiter(bucket(Rate::per_second(1), 3));
    let _ = limiter.check_cost("k", 3);
    let mut crowd = Crowd::new();
    for _ in 0..2 {
        assert!(crowd.join(limiter.until_ready_cost("k", 3)).is_none());
    }
    limiter.set_limit("default", bucket(Rate::per_second(1), 2)).unwrap();
    let reply = crowd.served();
    assert_eq!(reply.len(), 2);
    assert!(reply.iter().all(|(_, verdict)| verdict.is_never()));
}

#[test]
fn a_caller_that_does_not_wait_is_not_delayed() {
    let (limiter, clock) = spent();
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    clock.advance(SECOND);
    assert!(limiter.check("k").is_allowed());
    assert_eq!(crowd.who(), [], "its unit is gone");
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [0]);
}

#[test]
fn a_dropped_permit_wakes_the_first_who_waits_for_a_place() {
    let (limiter, permit) = one_place();
    let mut crowd = Crowd::new();
    for _ in 0..3 {
        assert!(crowd.join(limiter.acquire_ready("k")).is_none());
    }
    drop(permit);
    for next in 0..3 {
        let mut served = crowd.served();
        let (number, admission) = served.pop().expect("the first is woken");
        assert_eq!((number, served.len()), (next, 0));
        assert!(admission.is_granted());
        drop(admission);
    }
    assert!(no_caller_waits(&limiter));
    assert_eq!(limiter.peek("k", 1).remaining(), 1);
}

/// A permit in a future that is dropped goes back as any other.
#[test]
fn a_cancelled_holder_gives_its_place_back() {
    let (limiter, permit) = one_place();
    let hold = async || {
        let _permit = limiter.acquire_ready("k").await;
        std::future::pending::<()>().await;
    };
    let mut crowd = Crowd::new();
    assert!(crowd.join(hold()).is_none());
    drop(permit);
    assert_eq!(crowd.who(), []);
    assert_eq!(limiter.peek("k", 1).remaining(), 0);
    crowd.cancel(0);
    assert_eq!(limiter.peek("k", 1).remaining(), 1);
}

#[test]
fn a_lease_that_ends_lets_the_next_in() {
    let (limiter, clock) = limiter(Limit::in_flight(1, Span::from_secs(60)).unwrap());
    std::mem::forget(limiter.acquire("k"));
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.acquire_ready("k")).is_none());
    clock.advance(Span::from_secs(59));
    assert_eq!(crowd.served().len(), 0);
    clock.advance(SECOND);
    assert!(crowd.served().pop().unwrap().1.is_granted());
}

/// A place is free but the rate is not, then the other way round.
#[test]
fn a_place_and_a_unit_are_waited_for_together() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder()
        .limit("rate", bucket(Rate::per_second(1), 1))
        .limit("in_flight", Limit::in_flight(1, InFlight::NO_EXPIRY).unwrap())
        .clock(clock.clone())
        .build()
        .unwrap();
    let mut crowd = Crowd::new();
    let first = crowd.join(limiter.acquire_ready("k")).unwrap();
    assert!(crowd.join(limiter.acquire_ready("k")).is_none());
    clock.advance(SECOND);
    assert_eq!(crowd.served().len(), 0, "a unit, but no place");
    drop(first);
    let second = crowd.served().pop().unwrap().1;
    drop(second);
    assert!(crowd.join(limiter.acquire_ready("k")).is_none(), "a place, but no unit");
    clock.advance(SECOND);
    assert!(crowd.served().pop().unwrap().1.is_granted());
}

#[test]
fn a_refund_a_reset_and_a_new_limit_wake_early() {
    let slow = bucket(Rate::per_hour(1), 1);
    type GiveBack = fn(&Limiter);
    let give_back: [(&str, GiveBack); 3] = [
        ("refund", |limiter| assert!(limiter.refund("k", 1).is_allowed())),
        ("reset", |limiter| assert!(limiter.reset("k").is_allowed())),
        ("set_limit", |limiter| {
            let window = Limit::fixed_window(Rate::per_hour(1)).build().unwrap();
            limiter.set_limit("default", window).unwrap();
        }),
    ];
    for (name, give_back) in give_back {
        let (limiter, _) = limiter(slow);
        let _ = limiter.check("k");
        let mut crowd = Crowd::new();
        for _ in 0..2 {
            assert!(crowd.join(limiter.until_ready("k")).is_none());
        }
        limiter.refund("other", 1);
        assert_eq!(crowd.polls, 2);
        assert_eq!(crowd.who(), [], "{name}: another key's units");
        give_back(&limiter);
        assert_eq!(crowd.who(), [0], "{name}");
    }
}

/// A shorter wait under new numbers, not only units that are there at once.
#[test]
fn a_faster_rate_shortens_the_wait() {
    let (limiter, clock) = limiter(bucket(Rate::per_hour(1), 1));
    let _ = limiter.check("k");
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    limiter.set_limit("default", bucket(Rate::per_second(1), 1)).unwrap();
    assert_eq!(crowd.who(), []);
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [0]);
}

#[test]
fn the_delay_of_a_leaky_bucket_has_passed_on_return() {
    let limit = Limit::leaky_bucket(Rate::per_second(1)).queue(2).build().unwrap();
    let (limiter, clock) = limiter(limit);
    let mut crowd = Crowd::new();
    assert!(crowd.join(limiter.until_ready("k")).is_some());
    // Two hold back, the third finds the bucket's queue full and waits for a place in it.
    for _ in 0..3 {
        assert!(crowd.join(limiter.until_ready("k")).is_none());
    }
    for next in 1..=3 {
        clock.advance(ALMOST_A_SECOND);
        assert_eq!(crowd.who(), []);
        clock.advance(TICK);
        let served = crowd.served();
        assert_eq!(served.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [next]);
        assert!(served[0].1.is_allowed());
    }
    assert!(no_caller_waits(&limiter));
}

/// Giving it back would let a newcomer start together with one who was told that instant before.
#[test]
fn the_slot_of_a_leaky_bucket_stays_taken_once_it_was_told() {
    let limit = Limit::leaky_bucket(Rate::per_second(1)).queue(3).build().unwrap();
    let (limiter, clock) = limiter(limit);
    let _ = limiter.check("k");
    let mut crowd = Crowd::new();
    for _ in 0..2 {
        assert!(crowd.join(limiter.until_ready("k")).is_none());
    }
    crowd.cancel(0);
    assert!(crowd.join(limiter.until_ready("k")).is_none());
    for expected in [&[][..], &[1], &[2]] {
        clock.advance(SECOND);
        assert_eq!(crowd.who(), expected);
    }
}

#[test]
fn a_permit_beside_a_leaky_bucket_is_handed_out_after_its_delay() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder()
        .limit("pace", Limit::leaky_bucket(Rate::per_second(1)).queue(5).build().unwrap())
        .limit("in_flight", Limit::in_flight(2, InFlight::NO_EXPIRY).unwrap())
        .clock(clock.clone())
        .build()
        .unwrap();
    let mut crowd = Crowd::new();
    let first = crowd.join(limiter.acquire_ready("k")).unwrap();
    assert!(crowd.join(limiter.acquire_ready("k")).is_none(), "one second to hold back");
    clock.advance(SECOND);
    let second = crowd.served().pop().unwrap().1;
    assert!(first.is_granted() && second.is_granted());
    assert!(crowd.join(limiter.acquire_ready("k")).is_none());
    crowd.cancel(2);
    drop((first, second));
    assert_eq!(limiter.explain("k").parts().nth(1).unwrap().state.unwrap().remaining, 2);
}

/// A third of a second apart, to the microsecond; and only the first is ever woken. In a bucket of
/// two, what rounding a wait up costs is not lost.
#[test]
fn a_thousand_waiters_are_served_exactly_at_the_rate() {
    const WAITERS: usize = 1_000;
    let (limiter, clock) = limiter(bucket(Rate::per_second(3), 2));
    let start = clock.now();
    let _ = limiter.check_cost("k", 2);
    let mut crowd = Crowd::new();
    for _ in 0..WAITERS {
        assert!(crowd.join(limiter.until_ready("k")).is_none());
    }
    for number in 0..WAITERS {
        let due = u64::try_from(number + 1).unwrap() * 1_000_000;
        let due = start + Span::from_micros(due.div_ceil(3));
        clock.set(due - TICK);
        assert_eq!(crowd.who(), []);
        clock.set(due);
        assert_eq!(crowd.who(), [number]);
    }
    assert!(crowd.polls <= 5 * WAITERS, "{} polls", crowd.polls);
    assert!(no_caller_waits(&limiter));
}

#[test]
fn no_more_than_so_many_wait() {
    let (limiter, clock) = spent();
    let _ = limiter.check("other");
    let mut crowd = Crowd::new();
    for number in 0..MAX_WAITING {
        let key = if number % 2 == 0 { "k" } else { "other" };
        assert!(crowd.join(limiter.until_ready(key)).is_none());
    }
    let refused = crowd.join(limiter.until_ready("k")).expect("answered at once");
    assert_eq!(refused.retry_after(), Some(SECOND.into()));
    assert!(crowd.join(limiter.until_ready("third key")).unwrap().is_allowed());
    crowd.cancel(0);
    assert!(crowd.join(limiter.until_ready("k")).is_none(), "there is room again");
    clock.advance(SECOND);
    assert_eq!(crowd.who(), [2, 1]);
    drop(crowd);
    assert!(no_caller_waits(&limiter));
}

/// Works with tokio's own combinators; the paused timer jumps, the limiter's clock stands.
#[tokio::test(start_paused = true)]
async fn a_timeout_around_it_cancels_the_wait() {
    let (limiter, clock) = spent();
    let timeout = Duration::from_secs(5);
    assert!(tokio::time::timeout(timeout, limiter.until_ready("k")).await.is_err());
    assert!(no_caller_waits(&limiter));
    clock.advance(SECOND);
    let verdict = tokio::time::timeout(timeout, limiter.until_ready("k")).await.unwrap();
    assert!(verdict.is_allowed());
}

#[tokio::test]
async fn waiting_can_be_spawned_and_moved_between_threads() {
    let (limiter, clock) = spent();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.until_ready(String::from("k")).await }
    });
    while no_caller_waits(&limiter) {
        tokio::task::yield_now().await;
    }
    std::thread::spawn(move || clock.advance(SECOND)).join().unwrap();
    assert!(waiting.await.unwrap().is_allowed());
}

/// On the real clock: never faster than the limit allows, and every waiter is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_the_real_clock_no_waiter_is_early() {
    const TASKS: u64 = 64;
    const KEYS: u64 = 4;
    const EACH: u64 = 5;
    let system = SystemClock::new();
    let limiter = Limiter::builder()
        .limit("default", bucket(Rate::per_second(2_000), 1))
        .clock(Clock::System(system.clone()))
        .build()
        .unwrap();
    let start = system.now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    assert!(limiter.until_ready(format!("k{}", task % KEYS)).await.is_allowed());
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("served").unwrap();
    }
    // The first of each key is free, the others come half a millisecond apart.
    let least = Span::from_micros((TASKS / KEYS * EACH - 1) * 500);
    let passed = system.now().since(start);
    assert!(passed >= least, "{passed} for what takes {least}");
    assert!(no_caller_waits(&limiter));
}

/// Places handed over between threads as fast as they go, some waiters giving up: one lost wake-up
/// and it stands still, because these leases never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn places_change_hands_between_threads_without_a_lost_wake_up() {
    const TASKS: usize = 16;
    const EACH: usize = 2_000;
    const PLACES: usize = 2;
    let limit = Limit::in_flight(PLACES as u64, InFlight::NO_EXPIRY).unwrap();
    let limiter = Limiter::new(limit);
    let (inside, granted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (limiter, inside, granted) =
                (limiter.clone(), Arc::clone(&inside), Arc::clone(&granted));
            tokio::spawn(async move {
                for round in 0..EACH {
                    let permit = match (task + round) % 5 {
                        // Gives up unless its turn comes within a few polls.
                        0 => tokio::select! {
                            biased;
                            admission = limiter.acquire_ready("k") => admission.permit(),
                            () = tokio::task::yield_now() => None,
                        },
                        _ => Some(limiter.acquire_ready("k").await.permit().unwrap()),
                    };
                    let Some(permit) = permit else { continue };
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < PLACES);
                    granted.fetch_add(1, Ordering::SeqCst);
                    if round % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("woken").unwrap();
    }
    assert!(granted.load(Ordering::SeqCst) >= TASKS * EACH * 4 / 5);
    assert!(no_caller_waits(&limiter));
    assert_eq!(limiter.peek("k", 1).remaining(), 2);
}

/// One thread gives a place back just while another asks for it, at ever other moments: the waiter
/// either got it or was woken.
#[test]
fn units_freed_while_a_waiter_checks_are_not_missed() {
    const ROUNDS: usize = 30_000;
    let (limiter, permit) = one_place();
    drop(permit);
    let held: Mutex<Option<Permit>> = Mutex::new(None);
    let mut missed = Vec::new();
    let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let reached = |counter: &AtomicUsize, round| {
        while counter.load(Ordering::Acquire) < round {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                reached(&begun, round);
                (0..round % 97).for_each(|_| std::hint::spin_loop());
                drop(held.lock().unwrap().take());
                ended.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            *held.lock().unwrap() = limiter.acquire("k").permit();
            let mut crowd = Crowd::new();
            begun.store(round, Ordering::Release);
            (0..round % 89).for_each(|_| std::hint::spin_loop());
            let at_once = crowd.join(limiter.acquire_ready("k"));
            reached(&ended, round);
            let later = crowd.served().pop().map(|(_, admission)| admission);
            // Panicking here would leave the other thread waiting.
            if !at_once.or(later).is_some_and(|admission| admission.is_granted()) {
                missed.push(round);
            }
        }
    });
    assert_eq!(missed, [], "rounds without a wake-up");
    assert!(no_caller_waits(&limiter));
}

/// The answers of waiting are those of asking.
#[test]
fn the_verdict_is_that_of_a_check() {
    let (waiting, _) = limiter(bucket(Rate::per_second(1), 3));
    let (asking, _) = limiter(bucket(Rate::per_second(1), 3));
    let mut crowd = Crowd::<Verdict>::new();
    assert_eq!(crowd.join(waiting.until_ready_cost("k", 2)), Some(asking.check_cost("k", 2)));
    let (waiting, permit) = one_place();
    let mut crowd = Crowd::<Admission>::new();
    assert!(crowd.join(waiting.acquire_ready("k")).is_none());
    assert_eq!(permit.verdict().remaining(), 0);
    drop(permit);
    assert_eq!(crowd.served().pop().unwrap().1.verdict().remaining(), 0);
}
