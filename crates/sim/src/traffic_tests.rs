use tidegate_core::Rate;

use super::*;

fn setup(rate: &str) -> Setup {
    Setup::new(rate.parse::<Rate>().unwrap(), None, Seed(1)).unwrap()
}

fn instants(traffic: &Traffic) -> Vec<u64> {
    traffic.clients.iter().map(|client| client.at.as_micros()).collect()
}

#[test]
fn every_shape_asks_in_proportion_to_the_limit() {
    for (rate, count) in [("100/60s", 100u64), ("10/1s", 10), ("1/day", 1), ("7/1ms", 7)] {
        for (shape, demand) in [
            (Shape::BoundaryBurst, 2 * count),
            (Shape::WindowDrip, 3 * count),
            (Shape::RetryStorm, 3 * count),
            (Shape::Steady, count * 36 / 10),
            (Shape::IdleThenBurst, count.div_ceil(2) + 2 * count),
            (Shape::BatchJob, 3 * count),
            (Shape::FlashSale, (3 * count).div_ceil(2) + 10 * count),
        ] {
            assert_eq!(setup(rate).traffic(shape).demand(), demand, "{shape} at {rate}");
        }
    }
}

#[test]
fn the_boundary_burst_is_two_bursts_within_two_seconds() {
    let times = instants(&setup("100/60s").traffic(Shape::BoundaryBurst));
    assert_eq!(times.first(), Some(&59_000_000));
    assert!(times[99] < 60_000_000 && times[100] >= 60_000_000);
    assert!(times[199] < 61_000_000);
    for rate in ["10/1s", "3/10s", "5/hour", "100/1ms"] {
        let setup = setup(rate);
        let times = instants(&setup.traffic(Shape::BoundaryBurst));
        let count = usize::try_from(setup.rate().count).unwrap();
        let boundary = setup.rate().per.as_micros();
        assert!(times[..count].iter().all(|at| *at < boundary), "{rate}");
        assert!(times[count..].iter().all(|at| *at >= boundary), "{rate}");
        assert!(times[2 * count - 1] - times[0] < 2_000_000, "{rate}");
    }
}

#[test]
fn steady_gaps_are_no_shorter_than_the_interval_of_the_rate() {
    for rate in ["100/60s", "1/60s", "3/s", "7/day"] {
        let setup = setup(rate);
        let interval = setup.rate().per.as_micros() / setup.rate().count;
        let times = instants(&setup.traffic(Shape::Steady));
        let shortest = times.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(interval);
        assert!(shortest >= interval, "{rate}: {shortest} < {interval}");
    }
}

#[test]
fn the_idle_client_is_away_for_half_an_hour_and_for_two_periods() {
    for rate in ["100/60s", "10/1s", "100/hour", "1/day"] {
        let setup = setup(rate);
        let times = instants(&setup.traffic(Shape::IdleThenBurst));
        let away = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        let period = setup.rate().per.as_micros();
        assert!(away >= 1_800_000_000 && away >= 2 * period, "{rate}: {away}");
    }
}

#[test]
fn chance_follows_the_seed_and_nothing_else() {
    let at = |seed| Setup::new(Rate::per_minute(100), None, Seed(seed)).unwrap();
    for shape in [Shape::RetryStorm, Shape::Steady, Shape::FlashSale] {
        assert_eq!(at(1).traffic(shape), at(1).traffic(shape));
        assert_ne!(at(1).traffic(shape), at(2).traffic(shape), "{shape}");
    }
}

#[test]
fn the_largest_setup_does_not_overflow() {
    for shape in Shape::ALL {
        let traffic = setup("100000/10year").traffic(shape);
        assert!(traffic.until < Timestamp::MAX && traffic.from < traffic.until, "{shape}");
    }
}
