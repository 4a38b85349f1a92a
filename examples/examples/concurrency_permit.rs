//! At most three reports at the same time. A permit releases its place when it is
//! dropped: on return, on an early `?`, on a panic.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tidegate::{Admission, InFlight, Limit, Limiter, Rate};

fn main() -> Result<(), Box<dyn Error>> {
    // A rate limit and a concurrency limit, charged together.
    let limiter = Limiter::builder()
        .limit("rate", Limit::token_bucket(Rate::per_second(100_000)).build()?)
        .limit("at once", Limit::in_flight(3, InFlight::NO_EXPIRY)?)
        .build()?;

    let (running, most, done, turned_away) = <(AtomicUsize, _, _, _)>::default();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| report_until_done(&limiter, &running, &most, (&done, &turned_away)));
        }
    });
    let most = AtomicUsize::into_inner(most);
    println!(
        "{} reports on 8 threads, {} attempts turned away, never more than {most} at once",
        AtomicUsize::into_inner(done),
        AtomicUsize::into_inner(turned_away),
    );
    assert!(most <= 3);

    let free = |limiter: &Limiter| {
        let verdict = limiter.explain("reports");
        verdict.parts().nth(1).and_then(|part| part.state).map(|state| state.remaining)
    };
    assert_eq!(free(&limiter), Some(3), "all places are free again");

    let permit = limiter.acquire("reports").permit().ok_or("a place is free")?;
    assert_eq!(free(&limiter), Some(2));
    drop(permit);
    assert_eq!(free(&limiter), Some(3));
    Ok(())
}

fn report_until_done(
    limiter: &Limiter,
    running: &AtomicUsize,
    most: &AtomicUsize,
    (done, turned_away): (&AtomicUsize, &AtomicUsize),
) {
    let mut mine = 0;
    while mine < 100 {
        match limiter.acquire("reports") {
            Admission::Granted(_permit) => {
                let now_running = running.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(now_running, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::Relaxed);
                mine += 1;
            }
            Admission::Denied(_) => {
                turned_away.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        }
    }
}
