//! The engine decides as the oracle does, field by field, for every algorithm.

use tidegate_core::AlgorithmName;
use tidegate_tests::comparison::Comparison;
use tidegate_tests::subject::Subject;

const SEED: u64 = 20_260_101;
const DECISIONS: u64 = 500_000;

#[track_caller]
fn agrees(subject: Subject) {
    let comparison = Comparison { subject, seed: SEED };
    let tally = comparison.run(DECISIONS, |_| ()).unwrap_or_else(|mismatch| panic!("{mismatch}"));
    assert!(tally.decisions >= DECISIONS, "{subject}: only {} compared", tally.decisions);
    // A run that meets no denials compares nothing worth comparing.
    assert!(tally.waits >= DECISIONS / 20, "{subject}: only {} waits", tally.waits);
    assert!(tally.nevers >= DECISIONS / 100, "{subject}: only {} nevers", tally.nevers);
    let shapes = subject == Subject::Rated(AlgorithmName::LeakyBucket);
    assert_eq!(tally.delays >= DECISIONS / 20, shapes, "{subject}: {} delays", tally.delays);
}

#[test]
fn fixed_window_agrees_with_the_oracle() {
    agrees(Subject::Rated(AlgorithmName::FixedWindow));
}

#[test]
fn sliding_log_agrees_with_the_oracle() {
    agrees(Subject::Rated(AlgorithmName::SlidingLog));
}

#[test]
fn sliding_window_agrees_with_the_oracle() {
    agrees(Subject::Rated(AlgorithmName::SlidingWindow));
}

#[test]
fn token_bucket_agrees_with_the_oracle() {
    agrees(Subject::Rated(AlgorithmName::TokenBucket));
}

#[test]
fn gcra_agrees_with_the_oracle() {
    agrees(Subject::Rated(AlgorithmName::Gcra));
}

#[test]
fn leaky_bucket_agrees_with_the_oracle() {
    agrees(Subject::Rated(AlgorithmName::LeakyBucket));
}

#[test]
fn in_flight_agrees_with_the_oracle() {
    agrees(Subject::InFlight);
}
