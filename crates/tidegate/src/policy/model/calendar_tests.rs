use std::sync::Barrier;

use super::*;

const DAY: u64 = 86_400;

const UNITS: [CalendarUnit; 7] = [
    CalendarUnit::Hour,
    CalendarUnit::Day,
    CalendarUnit::Week(Weekday::Monday),
    CalendarUnit::Week(Weekday::Thursday),
    CalendarUnit::Week(Weekday::Sunday),
    CalendarUnit::Month,
    CalendarUnit::Year,
];

fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
    Calendar::new(unit, zone).unwrap_or_else(|error| panic!("{error}"))
}

/// The instant of a text such as `2011-12-30T00:00:00-10:00`.
fn at(text: &str) -> Timestamp {
    let instant: jiff::Timestamp = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    Timestamp::from_micros(instant.as_microsecond().try_into().unwrap())
}

fn seconds(period: Period) -> u64 {
    (period.end.as_micros() - period.start.as_micros()) / 1_000_000
}

/// The period of `now`, after checking that it contains `now`, that it meets its neighbours, and
/// that an empty cache gives the same.
fn checked(calendar: &Calendar, now: Timestamp) -> Period {
    let period = calendar.period(now);
    let context = || format!("{calendar:?} at {now}: {period:?}");
    assert!(period.start <= now && now < period.end, "{}", context());
    let fresh = Calendar { last: AtomicU64::new(0), ..calendar.clone() };
    assert_eq!(fresh.period(now), period, "{}", context());
    let last = Timestamp::from_micros(period.end.as_micros() - 1);
    assert_eq!(fresh.period(last), period, "{}", context());
    if period.end < Timestamp::MAX {
        assert_eq!(fresh.period(period.end).start, period.end, "{}", context());
    }
    assert_eq!(fresh.period(period.start), period, "{}", context());
    if period.start > Timestamp::EPOCH {
        let before = Timestamp::from_micros(period.start.as_micros() - 1);
        assert_eq!(fresh.period(before).end, period.start, "{}", context());
    }
    check_label(calendar, now, period);
    period
}

/// A period begins with the time that clocks first show, and contains no later one.
fn check_label(calendar: &Calendar, now: Timestamp, period: Period) {
    let local = |micros: u64| {
        let instant = jiff::Timestamp::from_microsecond(micros.try_into().unwrap()).unwrap();
        calendar.zone.to_datetime(instant)
    };
    let (start, end) = (period.start.as_micros(), period.end.as_micros());
    let context = format!("{calendar:?} at {now}: {period:?}");
    if calendar.unit == CalendarUnit::Hour {
        let lasts = seconds(period);
        let is_full = local(start).minute() == 0 && local(start).second() == 0;
        assert!(lasts < 3_600 || lasts == 3_600 && is_full || start == 0, "{context}");
        return;
    }
    let label = |micros: u64| calendar.first_day(local(micros).date());
    assert!(start == 0 || label(start - 1) < label(start), "{context}");
    assert!(
        [now.as_micros(), end - 1].into_iter().all(|at| label(at) <= label(start)),
        "{context}"
    );
    assert!(period.end == Timestamp::MAX || label(end) > label(start), "{context}");
}

#[test]
fn periods_of_every_zone_tile_time() {
    let mut rng = fastrand::Rng::with_seed(11);
    for zone in TimeZoneDatabase::bundled().available() {
        let Ok(of_units) = Calendar::new(CalendarUnit::Day, zone.as_str()) else {
            assert_eq!(zone.as_str(), "Etc/Unknown");
            continue;
        };
        for unit in UNITS {
            let calendar = Calendar { unit, ..of_units.clone() };
            for _ in 0..4 {
                // Most rules changed before 2030; the rest repeats.
                let end =
                    *rng.choice(&[1_900_000_000_000_000, Timestamp::MAX.as_micros()]).unwrap();
                checked(&calendar, Timestamp::from_micros(rng.u64(0..end)));
            }
        }
    }
}

/// Instants around changes of the clock, where mistakes are likely.
#[test]
fn periods_tile_around_every_change_of_every_zone() {
    for zone in TimeZoneDatabase::bundled().available() {
        let Ok(of_units) = Calendar::new(CalendarUnit::Day, zone.as_str()) else { continue };
        let changes = of_units.zone.following(jiff::Timestamp::UNIX_EPOCH);
        let changes = changes.map(|change| change.timestamp().as_second());
        for change in changes.take_while(|change| *change < 1_900_000_000) {
            let change = u64::try_from(change).unwrap();
            for unit in [CalendarUnit::Hour, CalendarUnit::Day] {
                let calendar = Calendar { unit, ..of_units.clone() };
                let period = checked(&calendar, Timestamp::from_secs(change));
                let before = checked(&calendar, Timestamp::from_secs(change - 1));
                let longest = if unit == CalendarUnit::Hour { 3_600 } else { 2 * DAY };
                assert!(
                    seconds(period) <= longest && seconds(before) <= longest,
                    "{zone} {change}"
                );
            }
        }
    }
}

#[test]
fn any_instant_has_a_period() {
    let ends =
        [0, 1, 1_000_000, u64::MAX, Timestamp::MAX.as_micros(), Timestamp::MAX.as_micros() - 1];
    for zone in ["UTC", "Pacific/Kiritimati", "America/Los_Angeles", "Africa/Monrovia"] {
        for unit in UNITS {
            for micros in ends {
                let now = Timestamp::from_micros(micros);
                let period = calendar(unit, zone).period(now);
                assert!(period.start <= now && period.start < period.end, "{zone} {unit:?} {now}");
                assert!(now < period.end || now == Timestamp::MAX, "{zone} {unit:?} {now}");
            }
        }
    }
}

#[test]
fn days_of_summer_time_are_shorter_and_longer() {
    let paris = calendar(CalendarUnit::Day, "Europe/Paris");
    for (noon, start, hours) in [
        ("2024-03-30T12:00:00+01:00", "2024-03-30T00:00:00+01:00", 24),
        ("2024-03-31T12:00:00+02:00", "2024-03-31T00:00:00+01:00", 23),
        ("2024-10-27T12:00:00+01:00", "2024-10-27T00:00:00+02:00", 25),
        ("2024-10-28T12:00:00+01:00", "2024-10-28T00:00:00+01:00", 24),
    ] {
        let period = checked(&paris, at(noon));
        assert_eq!((period.start, seconds(period)), (at(start), hours * 3_600), "{noon}");
    }
}

#[test]
fn an_hour_lasts_an_hour_even_when_it_is_shown_twice() {
    let paris = calendar(CalendarUnit::Hour, "Europe/Paris");
    for start in ["2024-10-27T02:00:00+02:00", "2024-10-27T02:00:00+01:00"] {
        let period = checked(&paris, at(start));
        assert_eq!((period.start, seconds(period)), (at(start), 3_600));
    }
    let kolkata =
        checked(&calendar(CalendarUnit::Hour, "Asia/Kolkata"), at("2024-01-01T12:10:00Z"));
    assert_eq!(kolkata.start, at("2024-01-01T17:00:00+05:30"));
    // Lord Howe sets its clocks by half an hour, at two.
    let half = calendar(CalendarUnit::Hour, "Australia/Lord_Howe");
    let period = checked(&half, at("2024-04-07T01:45:00+10:30"));
    assert_eq!((period.start, seconds(period)), (at("2024-04-07T01:30:00+10:30"), 1_800));
    let period = checked(&half, at("2024-10-06T02:45:00+11:00"));
    assert_eq!((period.start, seconds(period)), (at("2024-10-06T02:30:00+11:00"), 1_800));
}

#[test]
fn months_and_years_have_their_lengths() {
    let months = calendar(CalendarUnit::Month, "UTC");
    for (year, february) in [(2023, 28), (2024, 29), (2000, 29), (2100, 28)] {
        let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        for (number, days) in (1..).zip(lengths) {
            let period = checked(&months, at(&format!("{year}-{number:02}-17T03:04:05Z")));
            assert_eq!(period.start, at(&format!("{year}-{number:02}-01T00:00:00Z")));
            assert_eq!(seconds(period), days * DAY, "{year}-{number}");
        }
        let period =
            checked(&calendar(CalendarUnit::Year, "UTC"), at(&format!("{year}-07-01T00:00:00Z")));
        assert_eq!(seconds(period), (337 + february) * DAY);
    }
    let march = checked(&calendar(CalendarUnit::Month, "Europe/Paris"), at("2024-03-31T20:00:00Z"));
    assert_eq!(march.start, at("2024-03-01T00:00:00+01:00"));
    assert_eq!(seconds(march), 31 * DAY - 3_600);
}

#[test]
fn a_week_starts_on_the_named_day() {
    // A Wednesday.
    let now = at("2024-05-15T10:00:00+02:00");
    let starts = ["13", "14", "15", "09", "10", "11", "12"];
    for (weekday, start) in Weekday::ALL.into_iter().zip(starts) {
        let period = checked(&calendar(CalendarUnit::Week(weekday), "Europe/Berlin"), now);
        assert_eq!(period.start, at(&format!("2024-05-{start}T00:00:00+02:00")), "{weekday:?}");
        assert_eq!(seconds(period), 7 * DAY);
    }
}

#[test]
fn skipped_days_and_midnights_leave_no_hole() {
    // Samoa went from the 29th to the 31st.
    let apia = calendar(CalendarUnit::Day, "Pacific/Apia");
    let last = checked(&apia, at("2011-12-29T12:00:00-10:00"));
    assert_eq!((last.end, seconds(last)), (at("2011-12-31T00:00:00+14:00"), DAY));
    let next = checked(&apia, last.end);
    assert_eq!(seconds(next), DAY);
    let year = checked(&calendar(CalendarUnit::Year, "Pacific/Apia"), last.end);
    // The year began and ended in daylight saving time, a day early.
    assert_eq!(seconds(year), 364 * DAY);
    // Daylight saving time began at midnight: the day begins at one and has 23 hours.
    let paulo = calendar(CalendarUnit::Day, "America/Sao_Paulo");
    let day = checked(&paulo, at("2018-11-04T12:00:00-02:00"));
    assert_eq!((day.start, seconds(day)), (at("2018-11-04T01:00:00-02:00"), 23 * 3_600));
    // Daylight saving time ended at midnight, which then came an hour later.
    let day = checked(&paulo, at("2018-02-17T23:30:00-03:00"));
    assert_eq!((day.end, seconds(day)), (at("2018-02-18T00:00:00-03:00"), 25 * 3_600));
    let beirut =
        checked(&calendar(CalendarUnit::Day, "Asia/Beirut"), at("2022-03-27T12:00:00+03:00"));
    assert_eq!((beirut.start, seconds(beirut)), (at("2022-03-27T01:00:00+03:00"), 23 * 3_600));
}

/// St John's set its clocks back at a minute past midnight: the day had begun and continued.
#[test]
fn a_clock_set_back_over_midnight_does_not_bring_yesterday_back() {
    let johns = calendar(CalendarUnit::Day, "America/St_Johns");
    let start = at("2010-11-07T00:00:00-02:30");
    for now in
        ["2010-11-07T00:00:30-02:30", "2010-11-06T23:30:00-03:30", "2010-11-07T12:00:00-03:30"]
    {
        let period = checked(&johns, at(now));
        assert_eq!((period.start, seconds(period)), (start, 25 * 3_600), "{now}");
    }
}

/// No zone has done so since 1970: half past eleven became half past midnight.
#[test]
fn a_midnight_within_a_skip_is_the_moment_of_the_skip() {
    let zone = TimeZone::posix("AAA0BBB,M3.2.0/23:30,M11.1.0/00:15").unwrap();
    let calendar = Calendar { zone, ..calendar(CalendarUnit::Day, "UTC") };
    let day = checked(&calendar, at("2024-03-11T12:00:00+01:00"));
    assert_eq!((day.start, seconds(day)), (at("2024-03-10T23:30:00Z"), 23 * 3_600 + 1_800));
    let day = checked(&calendar, at("2024-11-03T12:00:00Z"));
    assert_eq!((day.start, seconds(day)), (at("2024-11-03T00:00:00+01:00"), 25 * 3_600));
}

#[test]
fn a_zone_is_found_by_its_name_only() {
    for name in ["", "Europe/Atlantis", "Etc/Unknown", "CET-1CEST", "../Europe/Paris", "+01:00"] {
        let error = Calendar::new(CalendarUnit::Day, name).err();
        assert_eq!(error, Some(UnknownZone(name.into())), "{name}");
    }
    assert_eq!(calendar(CalendarUnit::Day, "utc").zone(), "UTC");
    assert_eq!(calendar(CalendarUnit::Day, "Europe/Paris").zone(), "Europe/Paris");
    let paris = calendar(CalendarUnit::Day, "Europe/Paris");
    paris.period(at("2024-05-15T10:00:00Z"));
    assert_eq!(paris, calendar(CalendarUnit::Day, "Europe/Paris"));
    assert_ne!(paris, calendar(CalendarUnit::Hour, "Europe/Paris"));
    assert_ne!(paris, calendar(CalendarUnit::Day, "Europe/Rome"));
}

#[test]
fn threads_at_a_boundary_see_their_own_period() {
    let paris = calendar(CalendarUnit::Day, "Europe/Paris");
    let boundary = at("2024-03-31T00:00:00+01:00").as_micros();
    let (before, after) = (paris.period(Timestamp::from_micros(boundary - 1)), boundary);
    let after = paris.period(Timestamp::from_micros(after));
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (paris, barrier) = (&paris, &barrier);
            scope.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                barrier.wait();
                for _ in 0..20_000 {
                    let now = Timestamp::from_micros(boundary - 500 + rng.u64(0..1_000));
                    let expected = if now < after.start { before } else { after };
                    assert_eq!(paris.period(now), expected);
                }
            });
        }
    });
}
