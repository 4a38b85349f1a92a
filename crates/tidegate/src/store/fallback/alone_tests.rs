use tidegate_core::{Explanation, Rate};

use super::*;
use crate::clock::ManualClock;
use crate::key::{Key, Scope};
use crate::store::reservation::ReservationId;
use crate::store::shared::{SharedOptions, SharedStore};
use crate::store::testing::{at_once, layered_with};

const NOW: Timestamp = Timestamp::from_secs(1_000_020);

/// A store that never answers.
struct Silent;

impl Store for Silent {
    async fn decide(
        &self,
        _now: Timestamp,
        _batch: Batch<'_>,
        _decisions: &mut Vec<Decision>,
    ) -> Result<DecisionSource, StoreError> {
        Err(StoreError::Timeout)
    }

    async fn explain(
        &self,
        _now: Timestamp,
        _charge: &Charge<'_>,
    ) -> Result<Explanation, StoreError> {
        Err(StoreError::Timeout)
    }
}

fn charge<'a>(limit: &'a Limit, text: &'a [u8], op: Op) -> Charge<'a> {
    Charge::new(Key::new(Scope::new("alone", limit), text), limit, op)
}

fn decide(node: &SharedStore<Silent>, charges: &[Charge<'_>]) -> Option<Vec<Decision>> {
    let mut decisions = Vec::new();
    let decided = at_once(node.decide(NOW, Batch::each(charges), &mut decisions));
    decided.ok().map(|_| decisions)
}

/// The caller gets an error, so that it repeats or denies the request.
#[test]
fn charges_beside_one_that_needs_the_store_take_no_units() {
    let limit = Limit::token_bucket(Rate::per_hour(100)).build().unwrap();
    let places = Limit::in_flight(10, Span::from_secs(60)).unwrap();
    let reset = charge(&limit, b"eve", Op::Reset);
    let release = charge(&places, b"eve", Op::Release(LeaseId::new(7).unwrap()));
    let closing = Some(Reserving::Close(ReservationId::new(7).unwrap()));
    let settle = Charge { reserving: closing, ..charge(&limit, b"eve", Op::Return(1)) };
    for needy in [reset, release, settle] {
        let node = layered_with(Silent, ManualClock::at(NOW), &SharedOptions::default());
        let left = || decide(&node, &[charge(&limit, b"bob", Op::Read(0))]).unwrap()[0].remaining;
        let whole = left();
        assert!(decide(&node, &[charge(&limit, b"bob", Op::Take(5)), needy]).is_none());
        assert_eq!((left(), node.stats().fallback.owing_keys), (whole, 0), "{needy:?}");
        assert!(decide(&node, &[charge(&limit, b"bob", Op::Take(5))]).is_some());
        assert_eq!((left(), node.stats().fallback.owing_keys), (whole - 5, 1), "{needy:?}");
    }
}

#[test]
fn a_reset_that_fails_applies_to_the_share_of_its_key() {
    let limit = Limit::token_bucket(Rate::per_hour(100)).build().unwrap();
    let node = layered_with(Silent, ManualClock::at(NOW), &SharedOptions::default());
    let left = || decide(&node, &[charge(&limit, b"eve", Op::Read(0))]).unwrap()[0].remaining;
    let whole = left();
    assert!(decide(&node, &[charge(&limit, b"eve", Op::Take(5))]).is_some());
    assert_eq!(left(), whole - 5);
    assert_eq!(node.stats().fallback.owing_keys, 1);
    assert!(decide(&node, &[charge(&limit, b"eve", Op::Reset)]).is_none());
    assert_eq!((left(), node.stats().fallback.owing_keys), (whole, 0), "nothing is debited later");
}
