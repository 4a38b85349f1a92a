use tidegate_core::{Limit, Op, Rate};

use super::*;
use crate::clock::ManualClock;
use crate::key::{Hashing, Key, Scope};
use crate::store::memory::MemoryStore;
use crate::store::testing::{at_once, layered};
use crate::store::{Batch, Charge, DecisionSource, OnStoreFailure, Store};

const START: Timestamp = Timestamp::from_secs(1_000);

#[test]
fn a_drill_ends_at_the_exact_instant() {
    let clock = ManualClock::at(START);
    let store = layered(MemoryStore::new(1 << 20, Hashing::Fast).unwrap(), clock.clone());
    let limit = Limit::token_bucket(Rate::per_hour(100)).build().unwrap();
    let key = Key::new(Scope::new("drill", &limit), b"key");
    let take = Charge::new(key, &limit, Op::Take(1));
    let source = || at_once(store.decide(clock.now(), Batch::one(&take), &mut Vec::new())).unwrap();
    let fallback = DecisionSource::Fallback(OnStoreFailure::Local);
    assert_eq!((source(), store.drill()), (DecisionSource::Store, None));
    store.start_drill(Span::from_secs(5));
    assert_eq!((source(), store.drill()), (fallback, Some(Span::from_secs(5))));
    clock.set(START + Span::from_micros(4_999_999));
    assert_eq!(source(), fallback);
    clock.set(START + Span::from_secs(5));
    assert_eq!((source(), store.drill()), (DecisionSource::Store, None));
    assert!(!store.end_drill(), "it is over");
    store.start_drill(Span::from_secs(1_000_000));
    assert_eq!(store.drill(), Some(MAX_DRILL), "bounded");
    assert!(store.end_drill() && !store.end_drill());
    assert_eq!(source(), DecisionSource::Store);
}
