use tidegate_core::Timestamp;

use super::*;

const WINDOW: Numbers = Numbers::Window { limit: 10, length: 1_000, is_sliding: false };

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// F5, F8: a failover forgets units that a node still holds, and then the clock is set back.
#[test]
fn what_was_forgotten_may_be_spent_for_as_long_as_its_window_lasts() {
    let mut meter = Meter::new(&WINDOW);
    meter.add(&WINDOW, at(5_100), 6, None);
    meter.forgive(&WINDOW, at(5_200), 8, 5_300);
    // The store goes on in its sixth window, though by its clock that has not begun.
    meter.set_clock(&WINDOW, at(5_200), at(4_900));
    meter.go_on_in(5, false);
    assert!(meter.fits(&WINDOW, at(4_900), 12) && !meter.fits(&WINDOW, at(4_900), 13));
    meter.add(&WINDOW, at(4_900), 2, None);
    assert!(meter.fits(&WINDOW, at(5_500), 10) && !meter.fits(&WINDOW, at(5_500), 11));
}

#[test]
fn what_was_forgotten_in_one_window_is_nothing_in_another() {
    let mut meter = Meter::new(&WINDOW);
    meter.forgive(&WINDOW, at(5_200), 8, 5_300);
    assert!(meter.fits(&WINDOW, at(5_200), 18));
    meter.set_clock(&WINDOW, at(5_200), at(1_900));
    meter.go_on_in(1, true);
    assert!(!meter.fits(&WINDOW, at(1_900), 11));
    assert!(!meter.fits(&WINDOW, at(5_200), 11), "the same window comes again");
}

#[test]
fn a_clock_that_is_set_back_gives_nobody_longer_to_spend_what_was_forgotten() {
    let (unit, scale) = (100, 1);
    let bucket = Numbers::Bucket { unit, capacity: 10 * unit, slack: 0, scale };
    let mut meter = Meter::new(&bucket);
    meter.forgive(&bucket, at(5_000), 3, 5_300);
    assert!(meter.fits(&bucket, at(5_300), 13));
    meter.set_clock(&bucket, at(5_100), at(4_100));
    assert!(meter.fits(&bucket, at(4_300), 13) && !meter.fits(&bucket, at(4_301), 11));
}
