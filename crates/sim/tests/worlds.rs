//! Worlds by the thousand: promises are kept whatever goes wrong.

#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate_sim::Seed;
use tidegate_sim::world::{Fault, WorldReport, WorldSetup, simulate_as_set_up};

fn world(seed: u64) -> WorldReport {
    simulate_as_set_up(&WorldSetup::drawn(Seed(seed))).unwrap()
}

/// Says how to see it again.
fn complain(seed: u64, report: &WorldReport) {
    if let Some(broken) = &report.broken {
        panic!("{broken}; see it again: cargo run -- simulate cluster --seed {seed}");
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
    faults: BTreeSet<Fault>,
}

fn worlds(seeds: Range<u64>) -> Sum {
    let mut sum = Sum::default();
    for seed in seeds {
        let report = world(seed);
        complain(seed, &report);
        sum.admitted += report.admitted;
        sum.failed += report.failed;
        sum.denied += report.denied;
        sum.dropped += report.dropped;
        sum.fallback += report.fallback;
        sum.faults.extend(report.faults);
    }
    sum
}

/// Ten thousand worlds, in two halves for two threads.
#[test]
fn nodes_keep_their_promises() {
    let sum = worlds(0..5_000);
    let seen = [sum.admitted, sum.failed, sum.denied, sum.fallback, 100 * sum.dropped];
    assert!(seen.iter().all(|figure| *figure > 5_000), "{sum:?}");
    assert_eq!(sum.faults.len(), Fault::ALL.len(), "{sum:?}");
}

#[test]
fn other_nodes_keep_theirs() {
    worlds(5_000..10_000);
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
    assert_eq!(world(7).trace.to_string(), "063dc2f3ffb7fd48");
}

#[test]
fn without_faults_the_store_answers_everybody() {
    for seed in 0..20 {
        let setup =
            WorldSetup { faults: Vec::new(), in_flight: false, ..WorldSetup::drawn(Seed(seed)) };
        let report = simulate_as_set_up(&setup).unwrap();
        complain(seed, &report);
        assert_eq!((report.failed, report.dropped, report.fallback), (0, 0, 0), "seed {seed}");
        // What was denied is not asked for again.
        assert!(report.store_calls <= report.requests, "seed {seed}");
    }
}
