//! Lists and sets far longer than one call may look at.

use tidegate::store::{Batch, Charge, Store};
use tidegate::{Algorithm, Detail, Explanation, Key, Limit, Op, Rate, Scope, Span, Timestamp};
use tidegate_core::State;
use tidegate_core::algorithm::inflight::{InFlightState, Lease};
use tidegate_core::algorithm::sliding_log::{Entry, SlidingLogState};

use super::{Bench, LATE, TimeSource, built, name};

/// Of leases that have ended, one call removes so many.
const MOST_REMOVED: usize = 1_000;
/// An explanation lists so many entries.
const MOST_LISTED: usize = 10_000;

impl Bench {
    async fn explained(&self, now: u64, limit: &Limit, text: &str) -> Explanation {
        let key = Key::new(Scope::new("digits", limit), text.as_bytes());
        let charge = Charge::new(key, limit, Op::Read(0));
        let explained = self.store.explain(Timestamp::from_micros(now), &charge).await;
        explained.expect("a sound server")
    }

    /// Leaves leases as the scripts would have.
    fn keep_leases(&mut self, limit: &Limit, text: &str, leases: &[Lease]) {
        let (units, last) = (leases.iter().map(|lease| lease.weight).sum::<u64>(), leases.last());
        let mut members = vec![
            (format!("-{}", 1 + units), "#".to_owned()),
            (format!("-{}", last.expect("some").id), "@".to_owned()),
        ];
        for Lease { id, expires, weight } in leases {
            members.push((expires.to_string(), id.to_string()));
            if *weight > 1 {
                members.push((format!("-{weight}"), format!("w{id}")));
            }
        }
        for members in members.chunks(5_000) {
            let mut command = redis::cmd("ZADD");
            command.arg(name(limit, text)).arg(members);
            command.exec(&mut self.control).expect("a sound server");
        }
    }

    fn members(&mut self, limit: &Limit, text: &str) -> usize {
        redis::cmd("ZCARD").arg(name(limit, text)).query(&mut self.control).expect("a set")
    }
}

fn leases(count: u64, expires: impl Fn(u64) -> u64, weight: impl Fn(u64) -> u64) -> Vec<Lease> {
    let lease = |n| Lease { id: LATE - count + n, expires: expires(n), weight: weight(n) };
    (0..count).map(lease).collect()
}

/// They are removed little by little, but count for nothing from the instant they end.
#[tokio::test]
async fn many_leases_that_end_at_once_delay_no_request() {
    let mut bench = Bench::start(TimeSource::Caller).await;
    let limit = Limit::in_flight(30_000, Span::from_secs(60)).expect("valid numbers");
    for (text, heavy) in [("light", 1), ("heavy", 3)] {
        // All but the last ten have ended.
        let ends = |n| if n < 9_990 { LATE - 1_000 } else { LATE + 1_000_000 };
        let leases = leases(10_000, ends, |n| if n % 3 == 0 { heavy } else { 1 });
        bench.keep_leases(&limit, text, &leases);
        let mut state = State::InFlight(InFlightState::restore(leases, LATE - 1));
        let mut members = bench.members(&limit, text);
        for call in 0..12 {
            let now = Timestamp::from_micros(LATE + call);
            let expected = limit.decide(&mut state, now, Op::Take(100));
            let key = Key::new(Scope::new("digits", &limit), text.as_bytes());
            let charge = tidegate::store::Charge::new(key, &limit, Op::Take(100));
            let mut found = Vec::new();
            bench.store.decide(now, Batch::one(&charge), &mut found).await.expect("a sound server");
            assert_eq!(found, [expected], "{text}, call {call}");
            let left = bench.members(&limit, text);
            assert!(members < left + 2 * MOST_REMOVED, "{text}, call {call}: {members} to {left}");
            members = left;
        }
        // Ten leases and twelve more, what several of them hold, and the two heads.
        assert!(members <= 2 * 22 + 2, "{text}: {members} are left");
        assert_eq!(
            bench.explained(LATE + 12, &limit, text).await.remaining,
            limit.explain(&state, Timestamp::from_micros(LATE + 12)).remaining
        );
    }
}

/// All but the list itself is as if all of it were there.
fn agrees(short: &Explanation, long: &Explanation) {
    let answer = |explanation: &Explanation| {
        let Explanation { limit, remaining, next_allowed_at, idle_at, .. } = explanation;
        (*limit, *remaining, *next_allowed_at, *idle_at)
    };
    assert_eq!(answer(short), answer(long));
    match (&short.detail, &long.detail) {
        (Detail::SlidingLog { sum, entries }, Detail::SlidingLog { sum: whole, .. }) => {
            assert_eq!((sum, entries.len()), (whole, MOST_LISTED));
            assert_eq!(entries.iter().map(|entry| entry.weight).sum::<u64>(), *whole);
        }
        (Detail::InFlight { held, leases }, Detail::InFlight { held: whole, .. }) => {
            assert_eq!((held, leases.len()), (whole, MOST_LISTED));
            assert_eq!(leases.iter().map(|lease| lease.weight).sum::<u64>(), *whole);
        }
        (short, long) => panic!("{short:?} and {long:?}"),
    }
}

#[tokio::test]
async fn a_long_log_is_explained_with_its_whole_sum() {
    let mut bench = Bench::start(TimeSource::Caller).await;
    let length = 60_000_000;
    for (text, most) in [("full", 24_000), ("roomy", 1_000_000)] {
        let rate = Rate::new(most, Span::from_micros(length));
        let limit = built(Limit::sliding_log(rate).large_log());
        // The first 3,000 have left the window.
        let entry = |n: u64| Entry { at: LATE - length - 3_000 + n + 1, weight: 1 + n % 3 };
        let entries: Vec<Entry> = (0..15_000).map(entry).collect();
        let mut before = 7;
        let kept = entries.iter().map(|Entry { at, weight }| {
            before += weight;
            format!("{at}:{}:{weight}", before - weight)
        });
        let kept: Vec<String> = kept.collect();
        let mut push = redis::cmd("RPUSH");
        push.arg(name(&limit, text)).arg(kept).exec(&mut bench.control).expect("a list");
        let state = State::SlidingLog(SlidingLogState::restore(entries));
        let long = limit.explain(&state, Timestamp::from_micros(LATE));
        assert_eq!(long.remaining > 0, text == "roomy");
        agrees(&bench.explained(LATE, &limit, text).await, &long);
    }
}

#[tokio::test]
async fn many_leases_are_explained_with_their_whole_sum() {
    let mut bench = Bench::start(TimeSource::Caller).await;
    let limit = Limit::in_flight(40_000, Span::from_secs(60)).expect("valid numbers");
    let leases = leases(20_000, |n| LATE - 4_999 + n, |n| 1 + n % 4);
    bench.keep_leases(&limit, "many", &leases);
    let state = State::InFlight(InFlightState::restore(leases, LATE - 1));
    let long = limit.explain(&state, Timestamp::from_micros(LATE));
    agrees(&bench.explained(LATE, &limit, "many").await, &long);
}
