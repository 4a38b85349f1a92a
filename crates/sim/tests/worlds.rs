//! Worlds by the thousand: promises are kept whatever goes wrong.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate::store::OnStoreFailure;
use tidegate_core::{AlgorithmName, Rate, Span};
use tidegate_sim::Seed;
use tidegate_sim::world::{Fault, WorldReport, WorldSetup, simulate_as_set_up};

fn world(seed: u64) -> WorldReport {
    simulate_as_set_up(&WorldSetup::drawn(Seed(seed))).unwrap()
}

/// What has to be given to get the same world.
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
    // Places have no rate.
    let numbers = if setup.in_flight { "" } else { &numbers };
    format!("{seed} --tier {} --on-store-failure {mode}{numbers}{faults}", setup.stack)
}

/// Says how to see it again.
fn complain(setup: &WorldSetup, report: &WorldReport) {
    if let Some(broken) = &report.broken {
        panic!("{broken}; see it again: cargo run -- simulate cluster {}", given(setup));
    }
}

/// All that many worlds came to.
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
        complain(&setup, &report);
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

/// Units are taken ahead in all of them. Every other one is strict: nothing is let in without the store, and
/// neither its clock nor its memory goes back, so that nothing whatever may be above the limit.
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

/// In two halves for two threads, as the next.
#[test]
fn nodes_keep_their_promises() {
    let sum = worlds(drawn(0..2_000));
    let seen = [sum.admitted, sum.failed, sum.denied, sum.fallback, sum.pairs, 100 * sum.dropped];
    assert!(seen.iter().all(|figure| *figure > 2_000), "{sum:?}");
    assert_eq!(sum.faults.len(), Fault::ALL.len(), "{sum:?}");
}

#[test]
fn other_nodes_keep_theirs() {
    worlds(drawn(2_000..4_000));
}

/// Done-when 2: ten thousand worlds of leases, half of them strict.
#[test]
fn leases_never_exceed_the_limit() {
    let sum = worlds(leased(0..5_000));
    assert_eq!(sum.faults.len(), Fault::ALL.len(), "{sum:?}");
    assert!(sum.admitted > 1_000_000 && sum.pairs > 100_000 && sum.dropped > 0, "{sum:?}");
}

#[test]
fn nor_do_others() {
    worlds(leased(5_000..10_000));
}

/// One node whose keys are asked for so often that much happens while a message is on its way, and a store that
/// comes and goes.
fn busy(algorithm: AlgorithmName, rate: Rate, burst: u64, seeds: Range<u64>) {
    let setups = drawn(seeds).map(|setup| WorldSetup {
        nodes: 1,
        keys: 3,
        algorithm,
        rate,
        burst,
        load: 170,
        in_flight: false,
        on_store_failure: OnStoreFailure::Local,
        faults: vec![Fault::StoreDown, Fault::Partition],
        ..setup
    });
    let sum = worlds(setups);
    assert!(sum.admitted > 10_000 && sum.fallback > 10_000 && sum.pairs > 0, "{sum:?}");
}

/// Answers of one window come in after those of the next, and nodes see the store's clock go back from one
/// window to the other. Seeds 181, 234, 231 and 453 are such.
#[test]
fn windows_that_are_hardly_longer_than_messages_take_are_kept() {
    let per = |count, millis| Rate::new(count, Span::from_millis(millis));
    busy(AlgorithmName::FixedWindow, per(60, 50), 60, 176..186);
    busy(AlgorithmName::FixedWindow, per(12, 10), 12, 229..239);
    busy(AlgorithmName::SlidingWindow, per(60, 50), 60, 226..236);
    busy(AlgorithmName::SlidingLog, per(12, 10), 12, 448..458);
}

/// A share that gave back what was refilled meanwhile would be found out here.
#[test]
fn shares_get_back_no_more_than_is_owed_to_them() {
    busy(AlgorithmName::TokenBucket, Rate::new(600, Span::from_millis(50)), 8, 10..18);
}

#[test]
fn a_seed_tells_the_same_story_every_time() {
    let stories = || (0..20).map(|seed| world(seed).trace.to_string()).collect::<Vec<_>>();
    let first = stories();
    assert_eq!(first, stories());
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), first.len());
}

/// However it is compiled and wherever it runs. Whoever changes what worlds do changes this number.
#[test]
fn a_story_is_the_same_in_every_build() {
    assert_eq!(world(7).trace.to_string(), "830ddb6b112a6d88");
}

#[test]
fn without_faults_the_store_answers_everybody() {
    for seed in 0..20 {
        let setup =
            WorldSetup { faults: Vec::new(), in_flight: false, ..WorldSetup::drawn(Seed(seed)) };
        let report = simulate_as_set_up(&setup).unwrap();
        complain(&setup, &report);
        assert_eq!((report.failed, report.dropped, report.fallback), (0, 0, 0), "seed {seed}");
        // What was denied is not asked for again.
        assert!(report.store_calls <= report.requests, "seed {seed}");
    }
}
