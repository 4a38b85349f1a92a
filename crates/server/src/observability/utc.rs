//! Times as RFC 3339 writes them.

use std::fmt;

use tidegate::Timestamp;

/// A time in UTC, to the millisecond.
pub(crate) struct Utc(pub(crate) Timestamp);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_micros() / 1_000;
        let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
        // Counted from 1 March 0000, so that the leap day is the last of its year.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
        let year_of_era = (day_of_era - leap_days.min(day_of_era)) / 365;
        let before = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
        let day_of_year = day_of_era - before.min(day_of_era);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
        let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Utc(Timestamp::from_secs(secs)).to_string(), text);
        }
    }
}
