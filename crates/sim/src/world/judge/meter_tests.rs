use proptest::prelude::*;

use super::*;

fn moment(time: u64) -> Moment {
    Moment { now: time, clock: time, time, steps: 0 }
}

fn admission(units: u64, asked: u64, answered: u64) -> Admission {
    Admission { units, asked: moment(asked), answered: moment(answered), place: None }
}

/// One unit every 10 microseconds, and a burst of 5.
const BUCKET: Promise = Promise { kind: Kind::Bucket, units: 5, count: 1, per: 10 };

const fn window(kind: Kind) -> Promise {
    Promise { kind, units: 4, count: 4, per: 100 }
}

/// Every interval that begins with an arrival and ends with an answer, one by one.
fn brute_force(admissions: &[Admission], extras: &[(u64, u64, u64)]) -> u64 {
    let mut most = 0;
    for end in admissions.iter().map(|it| it.answered.time) {
        for start in admissions.iter().map(|it| it.asked.time).filter(|start| *start <= end) {
            let inside = |it: &&Admission| it.asked.time >= start && it.answered.time <= end;
            let units: u64 = admissions.iter().filter(inside).map(|it| it.units).sum();
            let meets = |(from, until, _): &&(u64, u64, u64)| *from <= end && *until >= start;
            let extra: u64 = extras.iter().filter(meets).map(|it| it.2).sum();
            let allowed = 10 * (BUCKET.units + extra) + (end - start);
            most = most.max((10 * units).saturating_sub(allowed).div_ceil(10));
        }
    }
    most
}

proptest! {
    #[test]
    fn a_bucket_is_judged_in_every_interval(
        mut events in prop::collection::vec((0..400u64, 0..30u64, 1..5u64, 0..10u8), 1..60),
    ) {
        events.sort_by_key(|(answered, ..)| *answered);
        let (mut meter, mut most) = (Meter::new(BUCKET), 0);
        let (mut admissions, mut extras) = (Vec::new(), Vec::new());
        for (number, (answered, wait, units, kind)) in events.iter().enumerate() {
            if *kind == 0 {
                meter.add(moment(*answered), answered + wait, *units);
                extras.push((*answered, answered + wait, *units));
                continue;
            }
            let later = events[number + 1..].iter().filter(|it| it.3 > 0);
            let arrival = |it: &(u64, u64, u64, u8)| it.0.saturating_sub(it.1);
            let oldest = later.map(arrival).min().unwrap_or(*answered).min(*answered);
            let it = admission(*units, answered.saturating_sub(*wait), *answered);
            admissions.push(it);
            most = most.max(meter.admit(&it, oldest));
        }
        // Extras of the same instant may come after the admission, so the meter may be stricter by these.
        let expected = brute_force(&admissions, &extras);
        prop_assert!(most >= expected);
        if extras.is_empty() {
            prop_assert_eq!(most, expected);
        }
    }
}

#[test]
fn a_window_counts_requests_that_lie_within_it() {
    let mut meter = Meter::new(window(Kind::FixedWindow));
    assert_eq!(meter.admit(&admission(4, 110, 120), 120), 0);
    assert_eq!(meter.admit(&admission(1, 190, 205), 205), 0, "of either window");
    assert_eq!(meter.admit(&admission(4, 210, 220), 220), 0);
    assert_eq!(meter.admit(&admission(2, 230, 240), 240), 2);
    meter.add(moment(250), 250, 3);
    assert_eq!(meter.admit(&admission(1, 260, 270), 270), 0, "three came back");
    assert_eq!(meter.admit(&admission(5, 310, 320), 320), 1);
}

#[test]
fn a_sliding_window_counts_a_part_of_the_one_before() {
    let mut meter = Meter::new(window(Kind::SlidingWindow));
    assert_eq!(meter.admit(&admission(4, 110, 120), 120), 0);
    assert_eq!(meter.admit(&admission(3, 240, 250), 250), 1, "half of four count");
}

#[test]
fn a_log_counts_one_period() {
    let mut meter = Meter::new(window(Kind::Log));
    assert_eq!(meter.admit(&admission(4, 100, 110), 110), 0);
    assert_eq!(meter.admit(&admission(1, 180, 190), 190), 1);
    assert_eq!(meter.admit(&admission(3, 195, 200), 200), 0);
}
