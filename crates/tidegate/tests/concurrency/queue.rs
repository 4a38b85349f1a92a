//! Waiting for a permit.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::concurrency::{Class, ConcurrencyLimiter, Outcome, Permit, Shed, ShedReason};
use tidegate::{Limit, Limiter, ManualClock, Rate, Span, Timestamp};

const READ: Class = Class::new(2);

struct Gate {
    clock: ManualClock,
    limiter: ConcurrencyLimiter,
}

type Wait<'a> = Pin<Box<dyn Future<Output = Result<Permit, Shed>> + 'a>>;

impl Gate {
    fn new(limit: u32) -> Self {
        let clock = ManualClock::new();
        let limiter = ConcurrencyLimiter::fixed(limit).clock(clock.clone()).build();
        Self { clock, limiter }
    }

    fn hold(&self) -> Permit {
        self.limiter.try_acquire(Class::CRITICAL).unwrap()
    }

    /// A request that waits.
    fn wait(&self, class: Class) -> Wait<'_> {
        let mut waiting: Wait<'_> = Box::pin(self.limiter.acquire(class));
        assert!(poll(&mut waiting).is_none());
        waiting
    }

    fn at(&self, millis: u64) -> Timestamp {
        self.clock.now() + Span::from_millis(millis)
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Span::from_millis(millis));
    }

    fn sheds(&self, class: Class, reason: ShedReason) -> u64 {
        self.limiter.stats().sheds(class, reason)
    }
}

fn poll(waiting: &mut Wait<'_>) -> Option<Result<Permit, Shed>> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => Some(answer),
        Poll::Pending => None,
    }
}

fn reason(answer: Option<Result<Permit, Shed>>) -> Option<ShedReason> {
    answer?.err().map(|shed| shed.reason())
}

#[test]
fn ov_11_a_dropped_future_leaves_the_queue() {
    let gate = Gate::new(2);
    let (held, _other) = (gate.hold(), gate.hold());
    let waiting = gate.wait(Class::CRITICAL);
    assert_eq!(gate.limiter.stats().queued, 1);
    drop(waiting);
    assert_eq!(gate.limiter.stats().queued, 0);
    // Also if it was admitted and does not know yet.
    let waiting = gate.wait(Class::CRITICAL);
    let mut next = gate.wait(Class::CRITICAL);
    assert_eq!(reason(poll(&mut next)), None);
    held.finish(Outcome::Success);
    drop(waiting);
    let permit = poll(&mut next).unwrap().unwrap();
    assert_eq!((gate.limiter.stats().in_flight, gate.limiter.stats().queued), (2, 0));
    drop(permit);
    assert_eq!(gate.limiter.stats().in_flight, 1);
}

#[test]
fn ov_17_an_important_request_takes_the_place_of_the_oldest_less_important_one() {
    let gate = Gate::new(2);
    let _held = (gate.hold(), gate.hold());
    let (mut oldest, mut newer) = (gate.wait(READ), gate.wait(READ));
    let mut critical = gate.wait(Class::CRITICAL);
    assert_eq!(reason(poll(&mut oldest)), Some(ShedReason::Displaced));
    assert_eq!(reason(poll(&mut newer)), None);
    assert!(poll(&mut newer).is_none() && poll(&mut critical).is_none());
    // Full of requests that are as important: the new one is shed.
    let mut another: Wait<'_> = Box::pin(gate.limiter.acquire(READ));
    assert_eq!(reason(poll(&mut another)), Some(ShedReason::QueueFull));
    assert_eq!(gate.limiter.stats().queued, 2);
    assert_eq!(gate.sheds(READ, ShedReason::Displaced), 1);
}

#[test]
fn the_most_important_waiter_is_admitted_first_and_the_oldest_of_them() {
    let gate = Gate::new(4);
    let mut held: Vec<Permit> = (0..4).map(|_| gate.hold()).collect();
    let mut read = gate.wait(READ);
    let (mut first, mut second) = (gate.wait(Class::CRITICAL), gate.wait(Class::CRITICAL));
    held.pop();
    assert!(poll(&mut read).is_none() && poll(&mut second).is_none());
    let _first = poll(&mut first).unwrap().unwrap();
    // Requests that come now do not overtake those that wait.
    assert!(gate.limiter.try_acquire(Class::CRITICAL).is_err());
    held.pop();
    let _second = poll(&mut second).unwrap().unwrap();
    // Four in progress, and reads may fill three of four.
    held.pop();
    assert!(poll(&mut read).is_none());
    held.pop();
    assert!(poll(&mut read).unwrap().is_ok());
}

#[test]
fn ov_18_a_standing_queue_sheds_after_ten_milliseconds_and_serves_the_newest() {
    let gate = Gate::new(4);
    let mut held: Vec<Permit> = (0..4).map(|_| gate.hold()).collect();
    let mut first = gate.wait(Class::CRITICAL);
    gate.advance(60);
    let _second = gate.wait(Class::CRITICAL);
    gate.advance(36);
    let mut third = gate.wait(Class::CRITICAL);
    gate.advance(4);
    // The queue has not been empty for 100 ms.
    assert_eq!(reason(poll(&mut first)), Some(ShedReason::QueueTimeout));
    let mut newest = gate.wait(Class::CRITICAL);
    held.pop();
    let _served = poll(&mut newest).unwrap().unwrap();
    assert!(poll(&mut third).is_none());
    let mut late = gate.wait(Class::CRITICAL);
    gate.advance(5);
    assert!(poll(&mut late).is_none());
    gate.advance(6);
    assert_eq!(reason(poll(&mut third)), Some(ShedReason::QueueTimeout));
    assert_eq!(reason(poll(&mut late)), Some(ShedReason::QueueTimeout));
}

#[test]
fn ov_19_a_deadline_ends_the_wait() {
    let gate = Gate::new(1);
    let _held = gate.hold();
    let mut waiting: Wait<'_> = Box::pin(gate.limiter.acquire_before(READ, gate.at(5)));
    assert!(poll(&mut waiting).is_none());
    gate.clock.advance(Span::from_micros(4_999));
    assert!(poll(&mut waiting).is_none());
    gate.clock.advance(Span::from_micros(1));
    assert_eq!(reason(poll(&mut waiting)), Some(ShedReason::Deadline));
    // A deadline that has passed: shed at once, and no other request is displaced for it.
    let mut less_important = gate.wait(Class::new(3));
    let mut late: Wait<'_> = Box::pin(gate.limiter.acquire_before(READ, gate.at(0)));
    assert_eq!(reason(poll(&mut late)), Some(ShedReason::Deadline));
    assert!(poll(&mut less_important).is_none());
}

/// A release that finds a waiter past its time sheds it and serves the next.
#[test]
fn a_release_skips_waiters_that_are_late() {
    let gate = Gate::new(2);
    let mut held = vec![gate.hold(), gate.hold()];
    let mut late: Wait<'_> = Box::pin(gate.limiter.acquire_before(READ, gate.at(5)));
    assert!(poll(&mut late).is_none());
    let mut next = gate.wait(READ);
    gate.advance(6);
    held.clear();
    assert!(poll(&mut next).unwrap().is_ok());
    assert_eq!(reason(poll(&mut late)), Some(ShedReason::Deadline));
}

/// The limiter's own queue is not part of a request's latency.
#[test]
fn waiting_does_not_count_as_latency() {
    let clock = ManualClock::new();
    // Shows the latency that it measures, and probes nothing.
    let limiter = ConcurrencyLimiter::gradient2()
        .initial_limit(4)
        .max_limit(4)
        .queue(100, Duration::from_secs(1))
        .clock(clock.clone())
        .build();
    let mut held: Vec<Permit> =
        (0..4).map(|_| limiter.try_acquire(Class::CRITICAL).unwrap()).collect();
    for _ in 0..60 {
        let mut waiting: Wait<'_> = Box::pin(limiter.acquire(Class::CRITICAL));
        assert!(poll(&mut waiting).is_none());
        clock.advance(Span::from_millis(5));
        held.remove(0).finish(Outcome::Success);
        held.push(poll(&mut waiting).unwrap().unwrap());
    }
    // Each request holds its permit for 20 ms, after it has waited for 5 ms.
    let baseline = limiter.stats().baseline.unwrap();
    assert!(baseline.as_micros().abs_diff(20_000) < 1_300, "{baseline:?}");
}

#[test]
fn a_limiter_without_queue_sheds_at_once() {
    let limiter = ConcurrencyLimiter::fixed(1).queue(0, Duration::from_millis(100)).build();
    let _held = limiter.try_acquire(Class::CRITICAL).unwrap();
    let mut waiting: Wait<'_> = Box::pin(limiter.acquire(Class::CRITICAL));
    assert_eq!(reason(poll(&mut waiting)), Some(ShedReason::Limit));
}

/// A delayed request takes its permit after the delay.
#[tokio::test]
async fn ov_41_a_delayed_request_holds_no_permit() {
    let gate = Gate::new(1);
    let bucket = Limit::leaky_bucket(Rate::per_second(5)).queue(3).build().unwrap();
    let rates = Limiter::builder().limit("rate", bucket).clock(gate.clock.clone()).build().unwrap();
    let serve = async || {
        assert!(rates.until_ready("user").await.is_allowed());
        gate.limiter.acquire(Class::CRITICAL).await.unwrap()
    };
    serve().await.finish(Outcome::Success);
    let mut delayed = pin!(serve());
    let mut context = Context::from_waker(Waker::noop());
    assert!(delayed.as_mut().poll(&mut context).is_pending());
    assert_eq!(gate.limiter.stats().in_flight, 0);
    gate.advance(200);
    assert!(delayed.as_mut().poll(&mut context).is_ready());
}

/// No wake-up is lost: many tasks on several threads, each of which waits for its permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_waiter_is_answered() {
    let limiter = ConcurrencyLimiter::fixed(3).queue(100_000, Duration::from_secs(60)).build();
    let tasks: Vec<_> = (0..64_u8)
        .map(|task| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                for _ in 0..200 {
                    let permit = limiter.acquire(Class::new(task % 4)).await?;
                    tokio::task::yield_now().await;
                    permit.finish(Outcome::Success);
                }
                Ok::<(), Shed>(())
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let stats = limiter.stats();
    assert_eq!((stats.in_flight, stats.queued), (0, 0));
}

/// A request is shed early only if it would be shed in any case.
#[test]
fn a_hopeless_request_is_shed_early() {
    let gate = Gate::new(1);
    let held = gate.limiter.try_acquire(Class::CRITICAL).unwrap();
    assert!(gate.limiter.shed_early(READ).is_ok(), "it may wait");
    let mut waiting: Wait<'_> = Box::pin(gate.limiter.acquire(READ));
    assert!(poll(&mut waiting).is_none());
    let shed = gate.limiter.shed_early(READ).unwrap_err();
    assert_eq!(shed.reason(), ShedReason::QueueFull);
    assert!(gate.limiter.shed_early(Class::new(3)).is_err());
    assert!(gate.limiter.shed_early(Class::CRITICAL).is_ok(), "it takes the place");
    drop(waiting);
    assert!(gate.limiter.shed_early(READ).is_ok());
    drop(held);
    let limiter = ConcurrencyLimiter::fixed(1).queue(0, Duration::ZERO).build();
    let held = limiter.try_acquire(Class::CRITICAL).unwrap();
    assert_eq!(limiter.shed_early(READ).unwrap_err().reason(), ShedReason::Limit);
    drop(held);
    assert!(limiter.shed_early(READ).is_ok());
}

/// A waiter of the limiter that replaces another one gets the permit that comes back there.
#[test]
fn ov_50_a_permit_of_the_predecessor_serves_a_waiter_of_its_successor() {
    let gate = Gate::new(1);
    let held = gate.limiter.try_acquire(Class::CRITICAL).unwrap();
    let builder = ConcurrencyLimiter::fixed(1).clock(gate.clock.clone());
    let after = builder.queue(200, Duration::from_secs(60)).build_after(&gate.limiter);
    let mut waiting: Wait<'_> = Box::pin(after.acquire(READ));
    assert!(poll(&mut waiting).is_none());
    drop(held);
    assert!(poll(&mut waiting).unwrap().is_ok());
}
