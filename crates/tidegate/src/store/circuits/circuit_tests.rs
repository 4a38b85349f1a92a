use super::*;

const PAUSE: Span = PROBE_INTERVAL;

fn at(millis: u64) -> Timestamp {
    Timestamp::from_secs(1_000) + Span::from_millis(millis)
}

fn ask(circuit: &mut Circuit, millis: u64, heard: Heard) -> bool {
    let ticket = circuit.enter(at(millis), 0).expect("it is closed, or key 0 is among the first");
    circuit.leave(at(millis), ticket, heard, PAUSE)
}

/// A circuit that has been open since `millis`.
fn opened(millis: u64) -> Circuit {
    let mut circuit = Circuit::default();
    let opened = (0..IN_A_ROW).map(|_| ask(&mut circuit, millis, Heard::Silence)).last();
    assert_eq!(opened, Some(true));
    circuit
}

#[test]
fn five_silences_in_a_row_open_it() {
    let mut circuit = Circuit::default();
    for round in 0..10 {
        for _ in 1..IN_A_ROW {
            assert!(!ask(&mut circuit, round * 1_000, Heard::Silence));
        }
        assert!(!ask(&mut circuit, round * 1_000, Heard::Answer), "an answer in between");
    }
    assert_eq!(opened(0).state(at(0)), CircuitState::Open);
}

#[test]
fn half_of_twenty_within_a_second_open_it() {
    let outcomes = |answers: u32, silences: u32, apart: u64| {
        let mut circuit = Circuit::default();
        let mut opened = false;
        for number in 0..answers + silences {
            // No two silences in a row.
            let is_silent = number % 2 == 1 && number / 2 < silences;
            let heard = if is_silent { Heard::Silence } else { Heard::Answer };
            opened |= ask(&mut circuit, u64::from(number) * apart, heard);
        }
        opened
    };
    assert!(outcomes(10, 10, 1));
    assert!(!outcomes(11, 9, 1), "fewer than half");
    assert!(!outcomes(9, 9, 1), "fewer than 20");
    assert!(!outcomes(10, 10, 100), "in more than a second");
}

#[test]
fn an_open_circuit_sends_no_request_and_only_a_probe_closes_it() {
    let mut circuit = opened(0);
    for millis in [0, 249, 250, 10_000, 1_000_000] {
        let wait = circuit.enter(at(millis), millis).expect_err("a request must not be the probe");
        assert_eq!(wait, Span::from_millis(250_u64.saturating_sub(millis)));
    }
    assert!(!circuit.probed(at(10_000), Heard::Silence, PAUSE));
    assert_eq!(circuit.enter(at(10_100), 0), Err(Span::from_millis(150)));
    assert!(circuit.probed(at(10_250), Heard::Answer, PAUSE));
    assert_eq!(circuit.state(at(10_250)), CircuitState::Ramping);
    assert_eq!(circuit.trips(), 1);
}

/// A quarter more of the keys is sent every 100 ms, and a key once sent stays sent.
#[test]
fn recovery_lets_in_a_quarter_more_at_a_time() {
    let mut circuit = opened(0);
    assert!(circuit.probed(at(1_000), Heard::Answer, PAUSE));
    let keys = 0..10_000_u64;
    let mut let_in: Vec<u64> = Vec::new();
    for step in 0..4 {
        let now = at(1_000 + step * 100);
        let now_in: Vec<u64> =
            keys.clone().filter(|key| circuit.enter(now, *key).is_ok()).collect();
        let share = now_in.len() as u64;
        assert!(share.abs_diff(2_500 * (step + 1)) < 250, "{share} of 10,000 in step {step}");
        assert!(let_in.iter().all(|key| now_in.contains(key)), "some key was sent away again");
        let_in = now_in;
    }
    assert_eq!(circuit.state(at(1_399)), CircuitState::Ramping);
    assert_eq!(circuit.state(at(1_400)), CircuitState::Closed);
    assert!(circuit.enter(at(1_400), 0).is_ok() && circuit.is_closed());
}

#[test]
fn who_has_to_wait_is_told_how_long() {
    let mut circuit = opened(0);
    assert!(circuit.probed(at(0), Heard::Answer, PAUSE));
    for key in 0..1_000 {
        if let Err(wait) = circuit.enter(at(0), key) {
            assert!(circuit.enter(at(0) + wait, key).is_ok());
            assert!(circuit.enter(at(0) + wait - Span::from_micros(1), key).is_err());
        }
    }
}

#[test]
fn two_silences_during_the_ramp_open_it_again() {
    let mut circuit = opened(0);
    assert!(circuit.probed(at(1_000), Heard::Answer, PAUSE));
    assert!(!ask(&mut circuit, 1_050, Heard::Silence));
    assert!(!ask(&mut circuit, 1_050, Heard::Answer));
    assert!(ask(&mut circuit, 1_050, Heard::Silence));
    assert_eq!((circuit.state(at(1_050)), circuit.trips()), (CircuitState::Open, 2));
}

/// Otherwise a server that is sometimes late would never recover.
#[test]
fn few_silences_among_many_answers_do_not() {
    let mut circuit = opened(0);
    assert!(circuit.probed(at(1_000), Heard::Answer, PAUSE));
    for number in 0..400 {
        let heard = if number % 11 == 10 { Heard::Silence } else { Heard::Answer };
        assert!(!ask(&mut circuit, 1_000 + number, heard));
    }
    assert!(circuit.enter(at(1_400), u64::MAX).is_ok() && circuit.is_closed());
    assert_eq!(circuit.trips(), 1);
}

/// F22: a request that was sent before the circuit changed does not count when it times out later.
#[test]
fn a_silence_from_before_counts_once_and_then_no_more() {
    let mut circuit = Circuit::default();
    let early: Vec<Ticket> = (0..100).map(|_| circuit.enter(at(0), 0).unwrap()).collect();
    let opened =
        early.iter().filter(|ticket| circuit.leave(at(5), **ticket, Heard::Silence, PAUSE));
    assert_eq!(opened.count(), 1, "one trip for all that waited");
    assert!(circuit.probed(at(300), Heard::Answer, PAUSE));
    assert!(!circuit.leave(at(310), early[0], Heard::Silence, PAUSE));
    assert_eq!(circuit.state(at(310)), CircuitState::Ramping);
}

#[test]
fn pauses_are_a_quarter_of_a_second_give_or_take_a_fifth() {
    let pauses = (0..1_000).map(|chance| pause(chance * 0x1234_5678_9abc));
    let (least, most) =
        pauses.fold((Span::from_secs(9), Span::ZERO), |(a, b), it| (a.min(it), b.max(it)));
    assert!(least >= Span::from_millis(200) && least < Span::from_millis(205), "{least}");
    assert!(most <= Span::from_millis(300) && most > Span::from_millis(295), "{most}");
}

/// For any order of outcomes and any jumps of the clock: the state follows the rules, an open
/// circuit sends no request, and a server that answers again eventually gets all requests.
#[test]
fn any_history_keeps_the_rules() {
    for seed in 0..500 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut circuit, mut now) = (Circuit::default(), at(10_000));
        let mut under_way: Vec<Ticket> = Vec::new();
        for _ in 0..300 {
            let jump = Span::from_micros(random.u64(..400_000));
            now = if random.u8(..20) == 0 { now - jump } else { now + jump };
            let heard = if random.bool() { Heard::Answer } else { Heard::Silence };
            let (was, trips) = (circuit.state, circuit.trips);
            match random.u8(..4) {
                0 => under_way.extend(circuit.enter(now, random.u64(..))),
                1 if !under_way.is_empty() => {
                    let ticket = under_way.swap_remove(random.usize(..under_way.len()));
                    let opened = circuit.leave(now, ticket, heard, PAUSE);
                    assert_eq!(opened, circuit.trips > trips, "seed {seed}");
                }
                2 => {
                    let done = circuit.probed(now, heard, PAUSE);
                    let is_open = matches!(was, State::Open { .. });
                    assert_eq!(done, !is_open || heard == Heard::Answer, "seed {seed}");
                }
                _ => {}
            }
            match (was, circuit.state) {
                (State::Open { .. }, State::Closed { .. })
                | (State::Closed { .. }, State::Ramping { .. }) => panic!("a leap, seed {seed}"),
                _ => {}
            }
            if matches!(circuit.state, State::Open { .. }) {
                assert!(circuit.enter(now, random.u64(..)).is_err(), "seed {seed}");
            }
        }
        circuit.probed(now, Heard::Answer, PAUSE);
        let later = now + Span::from_secs(2);
        let ticket = circuit.enter(later, u64::MAX).expect("it has answered");
        assert!(!circuit.leave(later, ticket, Heard::Answer, PAUSE));
        assert!(circuit.is_closed(), "seed {seed}");
    }
}
