use super::*;

const WINDOW: Numbers = Numbers::Window { limit: 10, length: 1_000, is_sliding: false };
const SLIDING: Numbers = Numbers::Window { limit: 10, length: 1_000, is_sliding: true };
const LOG: Numbers = Numbers::Log { limit: 10, length: 1_000 };

const BUCKET: Numbers = Numbers::Bucket { unit: 100, capacity: 1_000, slack: 0, scale: 1 };

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn share(by: &Numbers) -> Share {
    Share::new(by)
}

#[test]
fn what_was_taken_first_counts_before_what_was_decided_meanwhile() {
    for by in [WINDOW, SLIDING, LOG] {
        let mut share = share(&by);
        share.opened(1, at(5_100), 0);
        share.decided(2, at(5_200), 0, Some(5));
        assert_eq!(share.settle(&[by]), None, "nobody knows yet");
        share.took_first(1, 6);
        assert_eq!(share.settle(&[by]), Some((2, 5)), "there were four left");
    }
}

#[test]
fn what_was_given_back_takes_nothing_from_others() {
    for by in [WINDOW, SLIDING, LOG] {
        let mut share = share(&by);
        share.opened(1, at(5_100), 0);
        share.decided(2, at(5_200), 0, Some(5));
        share.let_go(1, 6, at(5_300), Span::ZERO);
        share.decided(1, at(5_300), 0, Some(5));
        assert_eq!(share.settle(&[by]), None);
        share.decided(3, at(5_400), 0, Some(1));
        assert_eq!(share.settle(&[by]), Some((3, 1)));
    }
}

#[test]
fn who_waits_may_have_begun_a_window_that_the_clock_goes_back_from() {
    let mut share = share(&WINDOW);
    share.decided(1, at(5_900), 0, Some(10));
    share.opened(2, at(6_001), 0);
    share.decided(3, at(5_990), 0, Some(1));
    share.let_go(2, 6, at(6_200), Span::ZERO);
    assert_eq!(share.settle(&[WINDOW]), None);
    share.decided(4, at(6_300), 0, Some(10));
    assert_eq!(share.settle(&[WINDOW]), Some((4, 10)), "it was let in by that window");
}

#[test]
fn a_bucket_keeps_what_was_taken_first_as_of_then() {
    let of = |units| {
        let mut share = share(&BUCKET);
        share.opened(1, at(5_000), 0);
        share.decided(2, at(5_300), 0, Some(units));
        share.took_first(1, 8);
        share.settle(&[BUCKET])
    };
    assert_eq!((of(5), of(6)), (None, Some((2, 6))), "three were refilled");
}

#[test]
fn a_bucket_refills_nothing_more_because_somebody_held_units() {
    let mut share = share(&BUCKET);
    share.decided(1, at(5_000), 0, Some(5));
    share.opened(2, at(5_000), 0);
    share.let_go(2, 5, at(5_200), Span::ZERO);
    share.decided(3, at(5_200), 0, Some(7));
    assert_eq!(share.settle(&[BUCKET]), None);
    share.decided(4, at(5_200), 0, Some(1));
    assert_eq!(share.settle(&[BUCKET]), Some((4, 1)));
}

/// By the smaller numbers others cut what is kept against the key, and then what was held is given back.
#[test]
fn numbers_that_change_meanwhile_give_what_was_held_and_no_more() {
    let few = Numbers::Bucket { unit: 100, capacity: 500, slack: 0, scale: 1 };
    let of = |revision, units| {
        let mut share = share(&BUCKET);
        share.decided(1, at(5_000), 0, Some(5));
        share.opened(2, at(5_000), 0);
        share.decided(3, at(5_001), revision, None);
        share.let_go(2, 3, at(5_002), Span::ZERO);
        share.decided(4, at(5_002), 0, Some(units));
        share.settle(&[BUCKET, few])
    };
    assert_eq!((of(1, 8), of(1, 9)), (None, Some((4, 9))));
    assert_eq!((of(0, 5), of(0, 6)), (None, Some((4, 6))));
}

#[test]
fn who_was_answered_by_the_store_leaves_a_share_as_it_is() {
    let mut share = share(&WINDOW);
    share.decided(1, at(5_900), 0, Some(10));
    share.opened(2, at(6_001), 0);
    share.decided(3, at(5_990), 0, Some(1));
    share.passed_by(2);
    assert_eq!(share.settle(&[WINDOW]), Some((3, 1)), "nobody has begun the next window");
}

#[test]
fn a_clock_that_is_set_back_goes_on_in_a_window_that_was_begun() {
    let mut share = share(&WINDOW);
    share.decided(1, at(5_990), 0, Some(10));
    share.opened(2, at(6_001), 0);
    share.set_clock(at(6_001), at(5_500));
    share.let_go(2, 6, at(5_500), Span::ZERO);
    share.decided(3, at(5_500), 0, Some(10));
    share.decided(4, at(5_500), 0, Some(1));
    assert_eq!(share.settle(&[WINDOW]), Some((4, 1)));
}

/// A refund goes for the newest units, and those may be held: then what is given back is another's.
#[test]
fn units_that_were_given_back_for_those_held_are_given_back_instead() {
    let mut refunded = share(&WINDOW);
    refunded.opened(1, at(5_100), 0);
    refunded.returned(at(5_150), 0, 2);
    refunded.decided(2, at(5_200), 0, Some(8));
    refunded.let_go(1, 2, at(5_300), Span::ZERO);
    refunded.decided(3, at(5_400), 0, Some(4));
    assert_eq!(refunded.settle(&[WINDOW]), None);
    refunded.decided(4, at(5_500), 0, Some(1));
    assert_eq!(refunded.settle(&[WINDOW]), Some((4, 1)));

    let mut other = share(&WINDOW);
    other.returned(at(5_150), 0, 2);
    other.decided(2, at(5_200), 0, Some(8));
    other.decided(3, at(5_400), 0, Some(4));
    assert_eq!(other.settle(&[WINDOW]), Some((3, 4)), "nobody held anything");
}
