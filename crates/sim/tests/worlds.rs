//! Thousands of simulated clusters keep their promises.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate::store::OnStoreFailure;
use tidegate_core::{AlgorithmName, Rate, Span};
use tidegate_sim::Seed;
use tidegate_sim::world::{Fault, Stack, WorldReport, WorldSetup, simulate_as_set_up};

fn world(seed: u64) -> WorldReport {
    simulate_as_set_up(&WorldSetup::drawn(Seed(seed))).unwrap()
}

/// The options that repeat a world.
fn given(setup: &WorldSetup) -> String {
    let seed = format!("--seed {}", setup.seed.0);
    if *setup == WorldSetup::drawn(setup.seed) {
        return seed;
    }
    let mode = setup.on_store_failure.as_str();
    let faults: String = setup.faults.iter().map(|it| format!(" --fault {it}")).collect();
    let faults = if faults.is_empty() { " --no-faults" } else { &faults };
    let WorldSetup { nodes, keys, rate, burst, algorithm, load, .. } = setup;
    let numbers = format!(
        " --nodes {nodes} --keys {keys} --limit {rate} --burst {burst} --algorithm {algorithm} --load {load}"
    );
    // Places in flight have no rate.
    let numbers = if setup.in_flight { "" } else { &numbers };
    format!("{seed} --tier {} --on-store-failure {mode}{numbers}{faults}", setup.stack)
}

/// Panics with the command that repeats a broken world.
fn check(setup: &WorldSetup, report: &WorldReport) {
    if let Some(broken) = &report.broken {
        panic!("{broken}; repeat it with: cargo run -- simulate cluster {}", given(setup));
    }
}

/// The sum of many reports.
#[derive(Debug, Default)]
struct Sum {
    admitted: u64,
    failed: u64,
    denied: u64,
    dropped: u64,
    fallback: u64,
    pairs: u64,
    faults: BTreeSet<Fault>,
}

fn worlds(setups: impl Iterator<Item = WorldSetup>) -> Sum {
    let mut sum = Sum::default();
    for setup in setups {
        let report = simulate_as_set_up(&setup).unwrap();
        check(&setup, &report);
        sum.admitted += report.admitted;
        sum.failed += report.failed;
        sum.denied += report.denied;
        sum.dropped += report.dropped;
        sum.fallback += report.fallback;
        sum.pairs += report.pairs;
        sum.faults.extend(report.faults);
    }
    sum
}

fn drawn(seeds: Range<u64>) -> impl Iterator<Item = WorldSetup> {
    seeds.map(|seed| WorldSetup::drawn(Seed(seed)))
}

/// Leased worlds. Every other one is strict: nodes admit nothing without the store, its clock is not set and it
/// loses no writes, so no fault adds anything to the limit.
fn leased(seeds: Range<u64>) -> impl Iterator<Item = WorldSetup> {
    drawn(seeds).map(|mut setup| {
        setup.make_leased();
        if setup.seed.0 % 2 == 0 {
            setup.on_store_failure = OnStoreFailure::Deny;
            setup.faults.retain(|it| !matches!(it, Fault::StoreClock | Fault::Failover));
        }
        setup
    })
}

/// In two halves, for two threads.
#[test]
fn nodes_keep_their_promises() {
    let sum = worlds(drawn(0..2_000));
    let seen = [sum.admitted, sum.failed, sum.denied, sum.fallback, sum.pairs, 100 * sum.dropped];
    assert!(seen.iter().all(|figure| *figure > 2_000), "{sum:?}");
    assert_eq!(sum.faults.len(), Fault::ALL.len(), "{sum:?}");
}

#[test]
fn more_nodes_keep_their_promises() {
    worlds(drawn(2_000..4_000));
}

/// Ten thousand leased worlds in two halves; every other world is strict.
#[test]
fn leases_never_exceed_the_limit() {
    let sum = worlds(leased(0..5_000));
    assert_eq!(sum.faults.len(), Fault::ALL.len(), "{sum:?}");
    assert!(sum.admitted > 1_000_000 && sum.pairs > 100_000 && sum.dropped > 0, "{sum:?}");
}

#[test]
fn leases_do_not_exceed_the_limit_in_more_worlds() {
    worlds(leased(5_000..10_000));
}

/// One node with so many requests that much happens while a message travels, and a store with outages.
fn busy(algorithm: AlgorithmName, rate: Rate, burst: u64, seeds: Range<u64>) {
    let setups = drawn(seeds).map(|setup| WorldSetup {
        nodes: 1,
        keys: 3,
        algorithm,
        rate,
        burst,
        load: 170,
        in_flight: false,
        shards: 1,
        pre_limit: None,
        on_store_failure: OnStoreFailure::Local,
        faults: vec![Fault::StoreDown, Fault::Partition],
        ..setup
    });
    let sum = worlds(setups);
    assert!(sum.admitted > 10_000 && sum.fallback > 10_000 && sum.pairs > 0, "{sum:?}");
}

/// Answers of one window arrive after those of the next, so a node sees the store's clock go back from one window
/// to the other.
#[test]
fn windows_that_are_hardly_longer_than_messages_take_are_kept() {
    let per = |count, millis| Rate::new(count, Span::from_millis(millis));
    busy(AlgorithmName::FixedWindow, per(60, 50), 60, 176..186);
    busy(AlgorithmName::FixedWindow, per(12, 10), 12, 229..239);
    busy(AlgorithmName::SlidingWindow, per(60, 50), 60, 226..236);
    busy(AlgorithmName::SlidingLog, per(12, 10), 12, 448..458);
}

/// A share must not get back units that it has refilled meanwhile.
#[test]
fn shares_are_not_refunded_twice() {
    busy(AlgorithmName::TokenBucket, Rate::new(600, Span::from_millis(50)), 8, 10..18);
}

#[test]
fn a_seed_repeats_its_world() {
    let traces = || (0..20).map(|seed| world(seed).trace.to_string()).collect::<Vec<_>>();
    let first = traces();
    assert_eq!(first, traces());
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len());
}

/// The trace of a world does not depend on the build or the machine. It changes with the simulated code.
#[test]
fn a_trace_is_the_same_in_every_build() {
    assert_eq!(world(7).trace.to_string(), "6b72ea66e56a672e");
}

#[test]
fn without_faults_the_store_answers_every_request() {
    for seed in 0..20 {
        let drawn = WorldSetup::drawn(Seed(seed));
        // A key with several shards may be asked twice.
        let setup = WorldSetup { faults: Vec::new(), in_flight: false, shards: 1, ..drawn };
        let report = simulate_as_set_up(&setup).unwrap();
        check(&setup, &report);
        assert_eq!((report.failed, report.dropped, report.fallback), (0, 0, 0), "seed {seed}");
        assert!(report.store_calls <= report.requests, "seed {seed}");
    }
}

/// One key of the exact tier at ten times its limit on eight nodes: held denials keep nearly all of the excess away
/// from the store, and lose at most a hundredth of the limit.
#[test]
fn a_hot_exact_key_costs_few_store_calls() {
    let setup = WorldSetup {
        nodes: 8,
        keys: 1,
        seconds: 7,
        algorithm: AlgorithmName::TokenBucket,
        rate: Rate::per_second(10_000),
        burst: 10_000,
        load: 1_000,
        faults: Vec::new(),
        stack: Stack::Exact,
        on_store_failure: OnStoreFailure::Local,
        refunds: 0,
        pairs: 0,
        in_flight: false,
        shards: 1,
        pre_limit: None,
        ..WorldSetup::drawn(Seed(7))
    };
    let report = simulate_as_set_up(&setup).unwrap();
    check(&setup, &report);
    assert!(report.store_calls * 100 <= report.requests * 15, "{report:?}");
    assert!(report.admitted * 100 >= report.envelope * 99, "{report:?}");
}
