use tidegate_core::Rate;

use super::*;
use crate::store::lease::leased;

const START: Timestamp = Timestamp::from_secs(1_000_000_000);

fn at(millis: u64) -> Timestamp {
    START + Span::from_millis(millis)
}

/// A thousand a second.
fn bucket() -> Limit {
    leased(&Limit::token_bucket(Rate::per_second(1_000)).build().unwrap()).unwrap()
}

fn budget(limit: &Limit) -> LocalBudget {
    LocalBudget::new(limit, START)
}

/// A budget with a demand of one unit per millisecond for a turn, and without a grant.
fn wanted(limit: &Limit) -> LocalBudget {
    let mut budget = budget(limit);
    for millis in 0..TURN.as_micros() / 1_000 {
        assert_eq!(budget.take(at(millis), 1, false), Step::Ask, "after {millis} ms");
    }
    budget
}

fn allowed(remaining: u64) -> Decision {
    let (outcome, reset_after) = (Outcome::Allow, Span::from_millis(10));
    Decision { outcome, limit: 900, remaining, reset_after, unbooked: 0, lease: None }
}

fn grant(sent: Timestamp, units: u64, last: Decision) -> Grant {
    Grant { number: 1, sent, units, last, first: last, is_all: last.is_allowed() }
}

fn denied(retry_millis: u64) -> Decision {
    let outcome = Outcome::Deny { retry_after: Some(Span::from_millis(retry_millis)) };
    Decision { outcome, ..allowed(0) }
}

fn is_allowed(step: Step) -> bool {
    matches!(step, Step::Answer(decision, _) if decision.is_allowed())
}

fn is_settled(budget: &mut LocalBudget, now: Timestamp, cost: u64) -> bool {
    budget.settle(now, cost).is_some_and(|(decision, _)| decision.is_allowed())
}

#[test]
fn a_key_in_demand_is_filled_with_what_a_turn_takes() {
    let limit = bucket();
    let mut budget = wanted(&limit);
    let Step::Fill(order) = budget.take(at(50), 1, false) else { panic!("{budget:?}") };
    // A demand of fifty units in a turn makes pieces of four, because there are at most sixteen.
    assert_eq!(order, Order { units: 4, times: 12 });
    assert_eq!(budget.take(at(50), 1, false), Step::Wait, "one fills, others wait");
    budget.fill(at(51), &grant(at(50), 48, allowed(100)));
    budget.filled();
    assert!(is_settled(&mut budget, at(51), 1));
    for unit in 0..47 {
        assert!(is_allowed(budget.take(at(52), 1, false)), "unit {unit}");
    }
    assert!(matches!(budget.take(at(52), 1, false), Step::Fill(_)));
    assert_eq!(budget.stats.granted, budget.stats.spent);
}

#[test]
fn a_key_that_few_ask_for_is_decided_in_the_store() {
    let limit = bucket();
    let mut budget = budget(&limit);
    for second in 0..100 {
        assert_eq!(budget.take(START + Span::from_secs(second), 1, false), Step::Ask);
    }
}

#[test]
fn a_grant_ends_counted_from_before_it_was_asked_for() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    // The grant was 30 ms on its way.
    budget.fill(at(80), &grant(at(50), 10, allowed(0)));
    budget.filled();
    let last = at(50) + Span::from_micros(LEASE.as_micros() * 999 / 1_000 - 1);
    assert!(is_allowed(budget.take(last, 1, false)), "to the last microsecond");
    assert!(!is_allowed(budget.take(last + Span::from_micros(1), 1, false)), "and not one more");
    let LeaseStats { granted, spent, expired, .. } = budget.stats;
    assert_eq!((granted, spent, expired), (10, 1, 9));
}

#[test]
fn a_grant_that_comes_too_late_is_worth_nothing() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(150), &grant(at(50), 10, allowed(0)));
    budget.filled();
    assert_eq!(budget.settle(at(150), 1), None, "the store has to say");
    assert_eq!(budget.stats.expired, 10);
}

#[test]
fn what_is_left_of_an_earlier_grant_lives_no_longer() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(50), &grant(at(50), 3, allowed(0)));
    budget.filled();
    // The cost exceeds the units left, so the budget asks for more.
    let Step::Fill(order) = budget.take(at(100), 5, false) else { panic!("{budget:?}") };
    assert!(order.units >= 2, "{order:?}");
    budget.fill(at(101), &grant(at(100), 10, allowed(0)));
    budget.filled();
    assert!(is_settled(&mut budget, at(101), 5));
    assert!(!is_allowed(budget.take(at(150), 1, false)), "all ends with the oldest unit");
}

/// The store had as many units as requested, so the budget must not deny.
#[test]
fn what_others_spent_meanwhile_is_asked_for_again() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(50), &grant(at(50), 3, allowed(0)));
    budget.filled();
    let Step::Fill(order) = budget.take(at(60), 5, false) else { panic!("{budget:?}") };
    assert!(order.units >= 2, "{order:?}");
    assert!(is_allowed(budget.take(at(60), 3, false)), "another request is quicker");
    budget.fill(at(61), &grant(at(60), 2, allowed(90)));
    budget.filled();
    assert_eq!(budget.settle(at(61), 5), None);
    assert_eq!(budget.units(at(61)), 2, "for others");
}

#[test]
fn a_store_that_had_less_is_left_alone_for_a_while() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(50), &grant(at(50), 4, denied(3)));
    budget.filled();
    for _ in 0..4 {
        assert!(is_allowed(budget.take(at(51), 1, false)));
    }
    let Step::Answer(decision, _) = budget.take(at(55), 1, false) else { panic!("{budget:?}") };
    assert_eq!(decision.retry_after(), Some(Span::from_millis(15)), "when it is asked again");
    assert!(matches!(budget.take(at(70), 1, false), Step::Fill(_)));
}

#[test]
fn a_wait_that_is_longer_than_the_pause_is_told() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(50), &grant(at(50), 0, denied(300)));
    budget.filled();
    let Step::Answer(decision, _) = budget.take(at(60), 1, false) else { panic!("{budget:?}") };
    assert_eq!(decision.retry_after(), Some(Span::from_millis(290)));
}

/// A leased window's grant ends with the window.
#[test]
fn a_window_takes_its_grants_with_it() {
    let fixed = Limit::fixed_window(Rate::per_second(1_000)).build().unwrap();
    let sliding = Limit::sliding_window(Rate::per_second(1_000)).build().unwrap();
    // The window ends 200 ms after the store was asked; a unit of a sliding one counts in the next too.
    for (limit, reset_millis) in [(fixed, 200), (sliding, 1_200)] {
        let mut budget = wanted(&limit);
        assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
        let last = Decision { reset_after: Span::from_millis(reset_millis), ..allowed(0) };
        budget.fill(at(50), &grant(at(50), 10, last));
        budget.filled();
        assert!(is_allowed(budget.take(at(160), 1, false)), "longer than a bucket's: {limit:?}");
        assert!(!is_allowed(budget.take(at(250), 1, false)), "{limit:?}");
    }
}

#[test]
fn what_was_spent_for_nothing_is_spent_again_unless_it_has_ended() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(50), &grant(at(50), 3, allowed(0)));
    budget.filled();
    let (_, number) = budget.settle(at(50), 2).unwrap();
    budget.unspend(at(51), 2, number);
    assert_eq!(budget.units(at(51)), 3);
    let (_, number) = budget.settle(at(51), 2).unwrap();
    budget.unspend(at(151), 2, number);
    assert_eq!(budget.units(at(151)), 0, "its time is over");
    let LeaseStats { spent, unspent, expired, .. } = budget.stats;
    assert_eq!((spent, unspent, expired), (4, 2, 1));
}

#[test]
fn large_costs_are_for_the_store() {
    let limit = bucket();
    let mut budget = wanted(&limit);
    assert_eq!(budget.take(at(50), 51, false), Step::Ask, "more than a turn takes");
}

/// After any shortage, an order stays within the demand and the cost.
#[test]
fn scarcity_makes_pieces_smaller_and_orders_no_larger() {
    let mut budget = wanted(&bucket());
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    budget.fill(at(50), &grant(at(50), 48, denied(3)));
    budget.filled();
    budget.void();
    let Step::Fill(order) = budget.take(at(75), 20, false) else { panic!("{budget:?}") };
    assert_eq!((order.units, order.times), (20, 2));
    budget.filled();
    // Long after, the shortage has no effect.
    let fill = |millis: u64| match budget.take(at(1_000 + millis), 1, false) {
        Step::Fill(order) => Some(order),
        _ => None,
    };
    assert_eq!((0..200).find_map(fill), Some(Order { units: 4, times: 12 }));
}

/// A grant ends with the window of its first piece, even if later pieces came from the next window.
#[test]
fn a_grant_ends_with_its_first_piece() {
    let window = Limit::fixed_window(Rate::per_second(1_000)).build().unwrap();
    let mut budget = wanted(&window);
    assert!(matches!(budget.take(at(50), 1, false), Step::Fill(_)));
    let of = |millis| Decision { reset_after: Span::from_millis(millis), ..allowed(0) };
    let two = Grant { first: of(5), ..grant(at(50), 10, of(1_000)) };
    budget.fill(at(51), &two);
    budget.filled();
    assert!(is_allowed(budget.take(at(52), 1, false)));
    assert!(!is_allowed(budget.take(at(55), 1, false)));
}
