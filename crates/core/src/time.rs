//! Time in whole microseconds.
//!
//! Both types stay below 2^53, so a double (Lua's only number) holds every value exactly.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// An instant: microseconds since the Unix epoch.
///
/// Values above [`Timestamp::MAX`] (the year 2255) saturate to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last representable instant, 2^53 - 1 microseconds.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// The instant `micros` microseconds after the epoch.
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// The instant `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Microseconds since the epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this instant is; zero if it is not after it.
    #[inline]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    #[inline]
    fn add(self, span: Span) -> Self {
        Self::from_micros(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    #[inline]
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC: `2026-11-18T10:31:31Z`, with microseconds if there are any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / 1_000_000, self.0 % 1_000_000);
        let (year, month, day) = civil_date(seconds / 86_400);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if micros > 0 {
            write!(f, ".{micros:06}")?;
        }
        f.write_str("Z")
    }
}

/// Year, month and day of the Gregorian calendar, from days since 1970-01-01.
///
/// Counts in eras of 400 years that begin in March, so that a leap day is the last day of its year.
const fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + (month <= 2) as u64, month, day)
}

/// A length of time: whole microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// A span of length zero.
    pub const ZERO: Self = Self(0);
    /// 2^53 - 1 microseconds, 285 years.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// A span of `micros` microseconds, saturating at [`Span::MAX`].
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// A span that the bounds of a limit keep below [`Span::MAX`].
    #[inline(always)]
    pub(crate) const fn within_bounds(micros: u64) -> Self {
        debug_assert!(micros <= Self::MAX.0, "a bucket fills within 100 years");
        Self(micros)
    }

    /// A span of `millis` milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_micros(millis.saturating_mul(1_000))
    }

    /// A span of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_micros(secs.saturating_mul(1_000_000))
    }

    /// Whole microseconds.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// True if the span is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl Add for Span {
    type Output = Self;

    #[inline]
    fn add(self, other: Self) -> Self {
        Self::from_micros(self.0.saturating_add(other.0))
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

impl From<Duration> for Span {
    /// Rounds up to a whole microsecond, because a shorter wait would end before units are free.
    fn from(duration: Duration) -> Self {
        let micros = duration.as_nanos().div_ceil(1_000);
        Self::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Span {
    /// The shortest exact spelling that [`Rate`](crate::Rate) also reads: `90s`, `250ms`, `7us`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us % 1_000_000 == 0 => write!(f, "{}s", us / 1_000_000),
            us if us % 1_000 == 0 => write!(f, "{}ms", us / 1_000),
            us => write!(f, "{us}us"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_and_spans_saturate_instead_of_wrapping() {
        assert_eq!(Timestamp::from_micros(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX + Span::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH - Span::from_secs(1), Timestamp::EPOCH);
        assert_eq!(Span::from_secs(u64::MAX), Span::MAX);
    }

    #[test]
    fn an_instant_is_written_as_a_date() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (951_868_799_999_999, "2000-02-29T23:59:59.999999Z"),
            (1_795_084_291_000_007, "2026-11-19T10:31:31.000007Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00Z"),
            (u64::MAX, "2255-06-05T23:47:34.740991Z"),
        ] {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
        }
    }

    #[test]
    fn a_duration_rounds_up_to_the_next_microsecond() {
        assert_eq!(Span::from(Duration::from_nanos(1)), Span::from_micros(1));
        assert_eq!(Span::from(Duration::from_nanos(1_000)), Span::from_micros(1));
        assert_eq!(Span::from(Duration::MAX), Span::MAX);
    }

    #[test]
    fn a_span_is_spelled_in_the_largest_exact_unit() {
        assert_eq!(Span::from_secs(90).to_string(), "90s");
        assert_eq!(Span::from_millis(250).to_string(), "250ms");
        assert_eq!(Span::from_micros(7).to_string(), "7us");
    }
}
