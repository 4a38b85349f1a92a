//! Calendar periods: an hour, a day, a week, a month or a year in a time zone.
//!
//! # Meaning
//! A day, week, month or year begins when the clocks of the zone first show its first midnight or a
//! later time, and ends when the next one begins. A day therefore has 23 or 25 hours when daylight
//! saving time begins or ends. A midnight that clocks skip is the moment of the skip, a day that is
//! skipped altogether has no period, and a clock set back over midnight does not reopen the
//! previous day.
//!
//! An hour lasts an hour even when the clocks are set back and show it twice. It begins when they
//! show a full hour; it is shorter only where clocks are set by less than an hour.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase, TimeZoneTransition};
use tidegate_core::Timestamp;

const HOUR: i64 = 3_600;
/// Bits for the length in seconds, enough for a leap year; together with 34 bits for
/// [`Timestamp::MAX`] they fit a 64-bit word.
const LENGTH_BITS: u32 = 26;

/// Calendar periods of one unit in one time zone.
pub struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    /// The last period in seconds, as a cache: its start above [`LENGTH_BITS`] of its length. One
    /// word, so that no thread reads the start of one period and the length of another. Zero means
    /// none.
    last: AtomicU64,
}

/// How long a period is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From a full hour to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// Seven days that start on this weekday.
    Week(Weekday),
    /// From the first of a month to the first of the next.
    Month,
    /// From the first of January to the first of January of the next year.
    Year,
}

/// A day of the week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weekday {
    /// The first day of the week by default, as in ISO 8601.
    #[default]
    Monday,
    /// Tuesday.
    Tuesday,
    /// Wednesday.
    Wednesday,
    /// Thursday.
    Thursday,
    /// Friday.
    Friday,
    /// Saturday.
    Saturday,
    /// Sunday.
    Sunday,
}

/// The time from `start` up to, and not including, `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// The first instant of the period.
    pub start: Timestamp,
    /// The first instant of the next period.
    pub end: Timestamp,
}

/// The error for a name that no time zone has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownZone(Box<str>);

impl Weekday {
    /// All days, from Monday.
    pub const ALL: [Self; 7] = [
        Self::Monday,
        Self::Tuesday,
        Self::Wednesday,
        Self::Thursday,
        Self::Friday,
        Self::Saturday,
        Self::Sunday,
    ];

    /// The spelling in policies.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Monday => "monday",
            Self::Tuesday => "tuesday",
            Self::Wednesday => "wednesday",
            Self::Thursday => "thursday",
            Self::Friday => "friday",
            Self::Saturday => "saturday",
            Self::Sunday => "sunday",
        }
    }
}

/// As in `month of Europe/Paris`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            CalendarUnit::Hour => "hour",
            CalendarUnit::Day => "day",
            CalendarUnit::Week(_) => "week",
            CalendarUnit::Month => "month",
            CalendarUnit::Year => "year",
        };
        write!(f, "{unit} of {}", self.zone())
    }
}

impl Calendar {
    /// The periods of a time zone, given by its IANA name, as `Europe/Paris`, or `UTC`.
    pub(in crate::policy) fn new(unit: CalendarUnit, zone: &str) -> Result<Self, UnknownZone> {
        let found = TimeZoneDatabase::bundled().get(zone).ok();
        // Excludes jiff's zone for "unknown", which behaves like UTC.
        let found = found.filter(|zone| !zone.is_unknown());
        let zone = found.ok_or_else(|| UnknownZone(zone.into()))?;
        Ok(Self { unit, zone, last: AtomicU64::new(0) })
    }

    /// The unit of the periods.
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The name of the zone.
    pub fn zone(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    /// The period that contains `now`, cut to the range from the epoch to [`Timestamp::MAX`].
    #[inline]
    pub fn period(&self, now: Timestamp) -> Period {
        // Clocks are set at whole seconds, so no boundary lies within one.
        let now = now.as_micros() / 1_000_000;
        // Relaxed is enough: the word is the whole cache, and no other memory depends on it.
        let last = self.last.load(Ordering::Relaxed);
        let (start, length) = (last >> LENGTH_BITS, last & ((1 << LENGTH_BITS) - 1));
        let (start, end) = match now.checked_sub(start) {
            Some(elapsed) if elapsed < length => (start, start + length),
            _ => self.find(now),
        };
        Period { start: Timestamp::from_secs(start), end: Timestamp::from_secs(end) }
    }

    /// The period of a second by the zone's rules; cached if it fits.
    #[cold]
    fn find(&self, now: u64) -> (u64, u64) {
        let second = i64::try_from(now).unwrap_or(i64::MAX);
        let (start, end) = match self.unit {
            CalendarUnit::Hour => self.hour(second),
            CalendarUnit::Day
            | CalendarUnit::Week(_)
            | CalendarUnit::Month
            | CalendarUnit::Year => self.days(second),
        };
        // Ensures that the period contains `now`, whatever the zone's rules are.
        let start = u64::try_from(start).unwrap_or(0).min(now);
        let end = u64::try_from(end).unwrap_or(0).max(now + 1);
        if end - start < 1 << LENGTH_BITS {
            self.last.store(start << LENGTH_BITS | (end - start), Ordering::Relaxed);
        }
        (start, end)
    }

    fn hour(&self, now: i64) -> (i64, i64) {
        let phase = |second: i64| {
            let offset = self.zone.to_offset(instant(second)).seconds();
            i64::from(offset).rem_euclid(HOUR)
        };
        let here = phase(now);
        let full = now - (now + here).rem_euclid(HOUR);
        let second = |transition: TimeZoneTransition<'_>| transition.timestamp().as_second();
        let before = self.zone.preceding(instant(now + 1)).map(second);
        let after = self.zone.following(instant(now)).map(second);
        let start = before.take_while(|set| *set > full).find(|set| phase(set - 1) != here);
        let end = after.take_while(|set| *set < full + HOUR).find(|set| phase(*set) != here);
        (start.unwrap_or(full), end.unwrap_or(full + HOUR))
    }

    fn days(&self, now: i64) -> (i64, i64) {
        let mut first = self.first_day(self.zone.to_datetime(instant(now)).date());
        loop {
            let next = self.next_first_day(first);
            let end = self.beginning(next);
            // A clock set back shows the old period again, although the next one has begun. The
            // calendar ends in the year 9999.
            if end > now || next == first {
                return (self.beginning(first), end);
            }
            first = next;
        }
    }

    /// The first day of the period that contains this day.
    fn first_day(&self, day: Date) -> Date {
        match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => day,
            CalendarUnit::Week(start) => {
                let weekday = i64::from(day.weekday().to_monday_zero_offset());
                let since = (weekday - start as i64).rem_euclid(7);
                day.saturating_sub(jiff::Span::new().days(since))
            }
            CalendarUnit::Month => day.first_of_month(),
            CalendarUnit::Year => day.first_of_year(),
        }
    }

    fn next_first_day(&self, first: Date) -> Date {
        let span = jiff::Span::new();
        first.saturating_add(match self.unit {
            CalendarUnit::Hour | CalendarUnit::Day => span.days(1),
            CalendarUnit::Week(_) => span.days(7),
            CalendarUnit::Month => span.months(1),
            CalendarUnit::Year => span.years(1),
        })
    }

    /// The first second at which clocks show this day's midnight or a later time.
    fn beginning(&self, day: Date) -> i64 {
        let midnight = day.at(0, 0, 0, 0);
        let at = |offset: jiff::tz::Offset| {
            offset.to_timestamp(midnight).map_or(i64::MAX, |instant| instant.as_second())
        };
        match self.zone.to_ambiguous_timestamp(midnight).offset() {
            AmbiguousOffset::Unambiguous { offset } => at(offset),
            AmbiguousOffset::Fold { before, .. } => at(before),
            // By the clock before the change, midnight is at the moment of the skip or later.
            AmbiguousOffset::Gap { before, .. } => {
                let unset = at(before);
                let skip = self.zone.preceding(instant(unset.saturating_add(1))).next();
                skip.map_or(unset, |skip| skip.timestamp().as_second())
            }
        }
    }
}

fn instant(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::MAX)
}

impl Clone for Calendar {
    fn clone(&self) -> Self {
        let last = AtomicU64::new(self.last.load(Ordering::Relaxed));
        Self { unit: self.unit, zone: self.zone.clone(), last }
    }
}

/// Ignores the cached period.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit && self.zone == other.zone
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Calendar");
        shown.field("unit", &self.unit).field("zone", &self.zone()).finish_non_exhaustive()
    }
}

impl fmt::Display for UnknownZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no time zone is called {:?}; expected a name such as Europe/Paris or UTC",
            self.0
        )
    }
}

impl std::error::Error for UnknownZone {}

#[cfg(test)]
#[path = "calendar_tests.rs"]
mod tests;
