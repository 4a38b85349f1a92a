//! Acceptance of the concurrency limiter in short, simulated forms of the goodput experiments.

use tidegate_core::Span;
use tidegate_sim::overload::{
    CLASSES, Contender, OverloadReport, Phase, Scenario, ServerKind, simulate,
};

fn play(phases: &[Phase], server: ServerKind, contender: Contender) -> OverloadReport {
    let phases = phases.to_vec();
    simulate(&Scenario { server, phases, ..Scenario::default() }, contender)
}

fn adaptive(phases: &[Phase]) -> OverloadReport {
    play(phases, ServerKind::Pool, Contender::Adaptive)
}

/// E1: goodput at twice and ten times the capacity, and the latency of what is admitted.
#[test]
fn e1_goodput_holds_on_every_server() {
    for server in ServerKind::ALL {
        // Two cores serve as many requests as the others if each is short.
        let service = Span::from_millis(if server == ServerKind::Cpu { 2 } else { 10 });
        let play = |load, contender| {
            let phases = vec![Phase::load(load, 60)];
            simulate(&Scenario { server, service, phases, ..Scenario::default() }, contender)
        };
        let unloaded = play(20, Contender::Unlimited).p99(10..60);
        // A thrashing server is at its best when every request takes twice as long.
        let factor = if server == ServerKind::Thrashing { 3 } else { 2 };
        let most = unloaded.as_micros() * factor + 10_000;
        for (load, least) in [(200, 95), (1_000, 90)] {
            let run = play(load, Contender::Adaptive);
            let (goodput, p99) = (run.goodput(10..60), run.p99(10..60));
            eprintln!(
                "{server:?} at {load} %: goodput {goodput} %, p99 {p99}, unloaded {unloaded}"
            );
            assert!(goodput >= least, "{server:?} at {load} %: {goodput} %");
            assert!(p99.as_micros() <= most, "{server:?} at {load} %: {p99}, unloaded {unloaded}");
        }
    }
}

/// E1, the reason for all of this: without a limit nothing is answered in time.
#[test]
fn e1_an_unlimited_server_answers_nothing_in_time() {
    for server in ServerKind::ALL {
        let run = play(&[Phase::load(200, 40)], server, Contender::Unlimited);
        assert!(run.goodput(20..40) <= 2, "{server:?}");
    }
}

/// E2: a server that keeps up sheds next to nothing.
#[test]
fn e2_little_is_shed_below_the_capacity() {
    let run = adaptive(&[Phase::load(80, 600)]);
    assert!(run.shed(0..600) <= 10, "{} of 10,000", run.shed(0..600));
    let lowest = run.success(CLASSES.len() - 1, 0..600);
    assert!(lowest >= 995, "{lowest} of 1,000");
}

/// E3: an hour at 1.2 times the capacity. Gradient2 takes its baseline from saturated traffic.
#[test]
fn e3_an_hour_of_overload_drifts_gradient2_and_not_adaptive() {
    let scenario = Scenario {
        service: Span::from_millis(40),
        deadline: Span::from_millis(400),
        phases: vec![Phase::load(120, 3_600)],
        ..Scenario::default()
    };
    let minutes = |contender| {
        let run = simulate(&scenario, contender);
        (run.goodput(60..120), run.goodput(3_540..3_600), run.highest_limit(3_540..3_600))
    };
    let (second, last, limit) = minutes(Contender::Adaptive);
    assert!(second >= 95 && last * 100 >= second * 95, "{second} → {last}, limit {limit:?}");
    let (second, last, limit) = minutes(Contender::Gradient2);
    assert!(second >= 95 && last <= 20 && limit >= Some(190), "{second} → {last}, limit {limit:?}");
}

/// E4: what is important is served, each class at least as well as the one below it.
#[test]
fn e4_important_classes_are_served_first() {
    for (load, least) in [(120, 990), (200, 990), (250, 990), (400, 950)] {
        let run = adaptive(&[Phase::load(load, 60)]);
        let success: Vec<u64> = (0..CLASSES.len()).map(|class| run.success(class, 5..60)).collect();
        assert!(success[0] >= least, "{load} %: {success:?}");
        assert!(success.windows(2).all(|pair| pair[0] + 5 >= pair[1]), "{load} %: {success:?}");
    }
    let without_classes = play(&[Phase::load(200, 30)], ServerKind::Pool, Contender::Fixed);
    assert!(without_classes.success(0, 5..30) < 600, "the naive version");
}

/// E5: half of the workers fail and return.
#[test]
fn e5_the_limit_follows_workers_that_fail_and_return() {
    let half = Phase { workers: 50, ..Phase::load(150, 20) };
    let run = adaptive(&[Phase::load(150, 20), half, Phase::load(150, 20)]);
    assert!(run.goodput(22..40) >= 45, "{} of 50", run.goodput(22..40));
    assert!(run.goodput(42..60) >= 90, "{} of 100", run.goodput(42..60));
}

/// E6: a dependency takes three times as long for a minute.
#[test]
fn e6_the_limit_survives_a_slow_dependency() {
    let slow = Phase { slowness: 300, ..Phase::load(150, 60) };
    let scenario = Scenario {
        deadline: Span::from_millis(300),
        phases: vec![Phase::load(150, 20), slow, Phase::load(150, 20)],
        ..Scenario::default()
    };
    let run = simulate(&scenario, Contender::Adaptive);
    // A third of the healthy server's capacity is possible.
    assert!(run.goodput(20..80) >= 28, "{} of 33", run.goodput(20..80));
    assert!(run.goodput(85..100) >= 95, "{} of 100", run.goodput(85..100));
}

/// E7: half a minute of ten times the capacity, with three retries at once.
#[test]
fn e7_a_retry_storm_ends_with_its_cause() {
    let storm = [Phase::load(80, 10), Phase::load(1_000, 30), Phase::load(80, 60)];
    let run = |contender| {
        let scenario = Scenario { retries: 3, phases: storm.to_vec(), ..Scenario::default() };
        simulate(&scenario, contender)
    };
    let unlimited = run(Contender::Unlimited);
    assert!(unlimited.goodput(90..100) <= 5, "still down a minute later");
    let limited = run(Contender::Adaptive);
    let success: Vec<u64> =
        (0..CLASSES.len()).map(|class| limited.success(class, 45..100)).collect();
    assert!(success.iter().all(|success| *success >= 990), "{success:?}");
}

/// E9: ten idle minutes do not raise the limit.
#[test]
fn e9_a_burst_after_idle_time_is_served() {
    let run = adaptive(&[Phase::load(2, 600), Phase::load(300, 10)]);
    assert!(run.goodput(600..601) >= 90, "{}", run.goodput(600..601));
}

/// E10: fast and slow services, with deadlines to match.
#[test]
fn e10_the_limit_fits_fast_and_slow_services() {
    for (millis, seconds) in [(1, 20), (100, 200), (1_000, 1_200)] {
        let scenario = Scenario {
            service: Span::from_millis(millis),
            deadline: Span::from_millis(10 * millis),
            phases: vec![Phase::load(200, seconds)],
            ..Scenario::default()
        };
        let run = simulate(&scenario, Contender::Adaptive);
        let goodput = run.goodput(0..run.seconds.len());
        assert!(goodput >= 95, "{millis} ms: {goodput}");
    }
}

#[test]
fn the_same_seed_gives_the_same_seconds() {
    let run = |contender| play(&[Phase::load(150, 10)], ServerKind::Cpu, contender).seconds;
    assert_eq!(run(Contender::Adaptive), run(Contender::Adaptive));
    let requests =
        |contender| run(contender).iter().map(|second| second.requests).collect::<Vec<_>>();
    assert_eq!(requests(Contender::Vegas), requests(Contender::Unlimited), "the same arrivals");
}
