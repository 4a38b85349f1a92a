use super::*;

#[test]
fn a_request_goes_by_the_worst_of_its_charges() {
    let fallback = OnStoreFailure::ALL.map(DecisionSource::Fallback);
    assert!(fallback.iter().all(|decision_source| *decision_source > DecisionSource::Store));
    assert_eq!(fallback.iter().max(), Some(&DecisionSource::Fallback(OnStoreFailure::Deny)));
    let let_in = DecisionSource::Fallback(OnStoreFailure::Allow);
    assert!(let_in > DecisionSource::Fallback(OnStoreFailure::Local), "what is bounded is better");
}
