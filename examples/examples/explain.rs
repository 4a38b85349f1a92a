//! Why a key is denied: its state, and the decision of each limit.

use std::error::Error;
use std::time::Duration;

use tidegate::{Detail, Limit, Limiter, ManualClock, Rate, Span};

fn main() -> Result<(), Box<dyn Error>> {
    let clock = ManualClock::new();
    let limiter = Limiter::builder()
        .limit("per second", Limit::token_bucket(Rate::per_second(5)).build()?)
        .limit("per day", Limit::fixed_window(Rate::per_day(8)).build()?)
        .clock(clock.clone())
        .build()?;
    let _ = limiter.check_cost("alice", 5);

    // A request of two units with the decision of each limit; neither is charged, because one denies.
    let verdict = limiter.report("alice", 2);
    for part in verdict.parts() {
        let (name, decision) = (part.name, part.decision.ok_or("every limit decides")?);
        let allows = if decision.is_allowed() { "would allow" } else { "denies" };
        println!("{name} {allows}: {} of {} left", decision.remaining, decision.limit);
    }
    assert!(verdict.is_denied());
    assert_eq!(verdict.retry_after(), Some(Duration::from_millis(400)));
    assert_eq!(
        verdict.parts().nth(1).and_then(|part| part.decision).map(|it| it.remaining),
        Some(3)
    );

    // In words, and in numbers for a dashboard.
    println!();
    for part in limiter.explain("alice").parts() {
        let state = part.state.ok_or("every limit has a state")?;
        println!("{}: {state}", part.name);
        match state.detail {
            Detail::Bucket { debt_units, debt_time, .. } => {
                assert_eq!((debt_units, debt_time), (5, Span::from_secs(1)));
            }
            Detail::FixedWindow { start, end, count } => {
                assert_eq!((count, end.since(start)), (5, Span::from_secs(86_400)));
            }
            _ => return Err("no such limit was given".into()),
        }
    }

    let first = |key| limiter.explain(key).parts().find_map(|part| part.state.cloned());
    // `explain` changes nothing, and works for new keys too.
    assert_eq!(
        first("alice").and_then(|state| state.next_allowed_at),
        Some(clock.now() + Span::from_millis(200))
    );
    assert_eq!(first("new key").map(|state| state.remaining), Some(5));
    assert_eq!(limiter.stats().keys, 2, "alice, under two limits");
    Ok(())
}
