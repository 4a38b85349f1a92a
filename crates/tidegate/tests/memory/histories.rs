//! What threads were answered can be put in an order that the pure functions explain.
//!
//! Threads work on one key while a clock moves, each with the time it read, which may be older than
//! what another has already decided with. Every operation is recorded with the moments it was
//! called and answered. The checker looks for an order that keeps to these moments and in which the
//! pure function gives every answer, all fields of it (Wing and Gong's search).

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use fastrand::Rng;
use tidegate::store::Charge;
use tidegate::store::memory::MemoryStore;
use tidegate::{Algorithm, Decision, Hashing, Key, Limit, Op, Rate, Scope, Span, State, Timestamp};

const THREADS: u64 = 4;
const ROUNDS: u64 = 1_000;
const OPS: usize = 10;
const START: u64 = 1_700_000_000_000_000;

/// One operation: when it was called and answered (by a counter all threads share), and what.
#[derive(Clone, Copy, Debug)]
struct Event {
    called: u64,
    answered: u64,
    now: Timestamp,
    op: Op,
    answer: Decision,
}

/// Is there an order of `history` that explains it?
fn is_linearizable(limit: &Limit, history: &[Event]) -> bool {
    let mut seen = Vec::new();
    search(limit, history, 0, &State::Absent, &mut seen)
}

fn search(
    limit: &Limit,
    history: &[Event],
    done: u64,
    state: &State,
    seen: &mut Vec<(u64, State)>,
) -> bool {
    let open = |i: &usize| done & 1 << i == 0;
    let Some(first_answer) = (0..history.len()).filter(open).map(|i| history[i].answered).min()
    else {
        return true;
    };
    if seen.iter().any(|(other, known)| *other == done && known == state) {
        return false;
    }
    for i in (0..history.len()).filter(open) {
        let event = &history[i];
        // A call that began after another was answered cannot be decided before it.
        if event.called > first_answer {
            continue;
        }
        let mut after = state.clone();
        let decision = limit.decide(&mut after, event.now, event.op);
        if decision == event.answer && search(limit, history, done | 1 << i, &after, seen) {
            return true;
        }
    }
    seen.push((done, state.clone()));
    false
}

/// One operation on the key of this round, recorded.
fn operate(round: &Round<'_>, rng: &mut Rng) -> Event {
    let op = match rng.u8(0..10) {
        0..6 => Op::Take(1),
        6 => Op::Take(2),
        7 => Op::Return(1),
        8 => Op::Force(1),
        _ => Op::Read(1),
    };
    let text = round.number.to_le_bytes();
    let key = Key::new(Scope::new("hot", round.limit), &text);
    let called = round.ticket.fetch_add(1, Ordering::SeqCst);
    round.clock.fetch_add(rng.u64(0..100_000), Ordering::SeqCst);
    let now = Timestamp::from_micros(round.clock.load(Ordering::SeqCst));
    if rng.u8(0..4) == 0 {
        // Others overtake, with later times.
        thread::yield_now();
    }
    let answer = round.store.decide(now, &Charge::new(key, round.limit, op));
    let answered = round.ticket.fetch_add(1, Ordering::SeqCst);
    Event { called, answered, now, op, answer }
}

struct Round<'a> {
    number: u64,
    store: &'a MemoryStore,
    limit: &'a Limit,
    ticket: AtomicU64,
    clock: AtomicU64,
}

/// One round of all threads on a fresh key.
fn record(store: &MemoryStore, limit: &Limit, number: u64) -> Vec<Event> {
    let (ticket, clock) = (AtomicU64::new(0), AtomicU64::new(START));
    let round = Round { number, store, limit, ticket, clock };
    let start = Barrier::new(THREADS as usize);
    let work = |thread: u64| {
        let mut rng = Rng::with_seed(number * THREADS + thread);
        start.wait();
        (0..OPS).map(|_| operate(&round, &mut rng)).collect::<Vec<Event>>()
    };
    thread::scope(|threads| {
        let work = &work;
        let handles: Vec<_> = (0..THREADS).map(|t| threads.spawn(move || work(t))).collect();
        handles.into_iter().flat_map(|handle| handle.join().unwrap()).collect()
    })
}

fn listed(history: &[Event]) -> String {
    let mut events = history.to_vec();
    events.sort_by_key(|event| event.called);
    events.iter().map(|event| format!("\n{event:?}")).collect()
}

fn check(limit: Limit) {
    let store = MemoryStore::new(64 << 20, Hashing::Fast).unwrap();
    let mut overlapping = 0;
    for round in 0..ROUNDS {
        let history = record(&store, &limit, round);
        assert!(is_linearizable(&limit, &history), "round {round}: {}", listed(&history));
        let overlaps = |event: &Event| event.answered > event.called + 1;
        overlapping += history.iter().filter(|event| overlaps(event)).count();
    }
    assert!(overlapping > 0, "no two operations ever ran at the same time");
}

#[test]
fn histories_on_a_bucket_are_linearizable() {
    check(Limit::token_bucket(Rate::per_second(7)).burst(3).build().unwrap());
    let wide = Rate::new(7_919, Span::from_micros(1_131_285_714));
    check(Limit::token_bucket(wide).burst(3).build().unwrap());
}

#[test]
fn histories_on_a_fixed_window_are_linearizable() {
    check(Limit::fixed_window(Rate::per_second(5)).build().unwrap());
    check(Limit::fixed_window(Rate::per_second(5)).count_denied().build().unwrap());
}

#[test]
fn histories_on_a_sliding_window_are_linearizable() {
    check(Limit::sliding_window(Rate::per_second(5)).build().unwrap());
}

#[test]
fn histories_on_a_log_and_on_places_are_linearizable() {
    check(Limit::sliding_log(Rate::per_second(5)).build().unwrap());
    check(Limit::in_flight(5, Span::from_millis(300)).unwrap());
}

#[test]
fn the_checker_refuses_a_unit_that_was_given_twice() {
    let limit = Limit::token_bucket(Rate::per_day(1)).burst(1).build().unwrap();
    let now = Timestamp::from_micros(START);
    let mut state = State::Absent;
    let answer = limit.decide(&mut state, now, Op::Take(1));
    let event = |called, answered| Event { called, answered, now, op: Op::Take(1), answer };
    assert!(is_linearizable(&limit, &[event(0, 3)]));
    assert!(!is_linearizable(&limit, &[event(0, 3), event(1, 2)]));
}
