use tidegate_core::Span;

use super::*;
use crate::key::{Key, Scope};

const NOW: Timestamp = Timestamp::from_secs(1_000_020);

fn bucket() -> Limit {
    Limit::token_bucket(Rate::per_second(1)).burst(10).build().unwrap()
}

fn charge<'a>(limit: &'a Limit, text: &'a [u8]) -> Charge<'a> {
    Charge::new(Key::new(Scope::new("owed", limit), text), limit, Op::Take(1))
}

fn due(owed: &PendingDebits, now: Timestamp) -> Vec<u64> {
    owed.due(now, usize::MAX, |_| true).iter().map(|debit| debit.units).collect()
}

#[test]
fn what_was_let_in_is_booked_once() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    for _ in 0..3 {
        owed.owe(NOW, &charge(&limit, b"bob"), 2);
    }
    assert_eq!(due(&owed, NOW), [6]);
    assert!(due(&owed, NOW).is_empty());
    assert_eq!(owed.tally(), (0, 0));
}

/// F13: a debit covers only the units that the store would still count, and never more than the
/// limit has.
#[test]
fn what_the_store_would_have_forgotten_is_not_booked() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    owed.owe(NOW, &charge(&limit, b"bob"), 9);
    assert_eq!(due(&owed, NOW + Span::from_secs(4)), [5]);
    owed.owe(NOW, &charge(&limit, b"bob"), 9);
    owed.owe(NOW, &charge(&limit, b"bob"), 9);
    assert_eq!(due(&owed, NOW), [10], "no more than an empty bucket");
    let window = Limit::fixed_window(Rate::per_minute(100)).build().unwrap();
    owed.owe(NOW, &charge(&window, b"bob"), 30);
    owed.owe(NOW, &charge(&window, b"eve"), 30);
    assert_eq!(due(&owed, NOW + Span::from_secs(60)), [0; 0], "of a window that is over");
    let log = Limit::sliding_log(Rate::per_minute(100)).build().unwrap();
    owed.owe(NOW, &charge(&log, b"bob"), 30);
    assert_eq!(due(&owed, NOW + Span::from_secs(1)), [30]);
}

/// F13: the network delay of replies makes the estimate of the store's clock vary.
#[test]
fn no_more_is_booked_than_was_let_in() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    owed.owe(NOW, &charge(&limit, b"bob"), 1);
    owed.owe(NOW, &charge(&limit, b"bob"), 2);
    assert_eq!(due(&owed, NOW - Span::from_millis(3)), [3]);
    for _ in 0..5 {
        owed.owe(NOW, &charge(&limit, b"bob"), 1);
        owed.give_back(NOW, &charge(&limit, b"bob"), 1);
    }
    assert_eq!(due(&owed, NOW - Span::from_millis(3)), [0; 0]);
    // Debt is stored as time, which is twice as many units at twice the rate.
    let twice = Limit::token_bucket(Rate::per_second(2)).burst(20).build().unwrap();
    owed.owe(NOW, &charge(&limit, b"bob"), 2);
    owed.owe(NOW, &Charge { limit: &twice, ..charge(&limit, b"bob") }, 1);
    assert_eq!(due(&owed, NOW - Span::from_millis(3)), [5]);
}

#[test]
fn what_is_given_back_is_not_booked() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    owed.give_back(NOW, &charge(&limit, b"bob"), 5);
    owed.owe(NOW, &charge(&limit, b"bob"), 5);
    owed.give_back(NOW, &charge(&limit, b"bob"), 2);
    owed.owe(NOW, &charge(&limit, b"eve"), 5);
    owed.forget(&charge(&limit, b"eve"));
    assert_eq!(owed.tally().0, 1);
    owed.owe(NOW, &charge(&limit, b"eve"), 4);
    owed.forget(&charge(&limit, b"eve"));
    assert_eq!(due(&owed, NOW), [3]);
}

#[test]
fn what_could_not_be_booked_is_owed_still() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    owed.owe(NOW, &charge(&limit, b"bob"), 3);
    let lost = owed.due(NOW, 1, |_| true);
    owed.owe(NOW, &charge(&limit, b"bob"), 1);
    owed.owe_again(NOW, lost);
    assert_eq!(due(&owed, NOW), [4]);
}

/// F4: a server that is still unavailable does not delay the debits on other servers.
#[test]
fn only_keys_whose_server_is_back_are_booked() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    for number in 0..2_000_u32 {
        owed.owe(NOW, &charge(&limit, &number.to_le_bytes()), 1);
    }
    let is_back = |charge: &Charge<'_>| charge.key.text[0] == 1;
    let booked = (0..100).map(|_| owed.due(NOW, 64, is_back).len()).sum::<usize>();
    assert_eq!((booked, owed.tally().0), (8, 1_992));
}

#[test]
fn there_is_a_most_of_it() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    for number in 0..=u32::try_from(MAX_KEYS).unwrap() {
        owed.owe(NOW, &charge(&limit, &number.to_le_bytes()), 7);
    }
    assert_eq!(owed.tally(), (MAX_KEYS, 7));
    let long = vec![b'x'; MAX_BYTES];
    let owed = PendingDebits::default();
    owed.owe(NOW, &charge(&limit, &long), 2);
    assert_eq!(owed.tally(), (0, 2), "the text is its own tag");
    let places = Limit::in_flight(3, Span::from_secs(9)).unwrap();
    owed.owe(NOW, &charge(&places, b"bob"), 1);
    assert_eq!(owed.tally(), (0, 2), "a place is given back by who holds it");
}

/// The options of a limit determine its keys: without them, another key would be debited.
#[test]
fn a_booking_goes_where_the_charge_would_have_gone() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    let options = LimitOptions::default().shards(4.try_into().unwrap());
    owed.owe(NOW, &charge(&limit, b"bob").on(options), 3);
    let debits = owed.due(NOW, 1, |charge| charge.options == options);
    assert_eq!(debits[0].charge().options, options);
    owed.owe_again(NOW, debits);
    assert_eq!(owed.due(NOW, 1, |charge| charge.options == options).len(), 1);
}

/// Sent together with other keys, a key that the store refuses would make it debit those again.
#[test]
fn a_refused_debit_is_tried_alone() {
    let (owed, limit) = (PendingDebits::default(), bucket());
    owed.owe(NOW, &charge(&limit, b"poisoned"), 5);
    let refused = StoreError::Protocol("a string where a hash should be".into());
    let debits = owed.due(NOW, usize::MAX, |_| true);
    owed.owe_again(NOW, debits.into_iter().map(|it| it.refused_by(&refused)).collect());
    owed.owe(NOW, &charge(&limit, b"bob"), 3);
    owed.owe(NOW, &charge(&limit, b"eve"), 4);
    assert_eq!(due(&owed, NOW), [5]);
    assert_eq!(due(&owed, NOW), [3, 4]);
}
