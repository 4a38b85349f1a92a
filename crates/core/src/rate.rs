//! Rates: units per time, kept as an exact fraction.

use core::fmt;
use core::str::FromStr;

use crate::invalid::InvalidLimit;
use crate::time::Span;

/// `count` units per `per`. Any numbers are accepted here; a [`Limit`](crate::Limit) checks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Units per `per`.
    pub count: u64,
    /// The time `count` units refer to; for windows, the window.
    pub per: Span,
}

impl Rate {
    /// `count` units per `per`.
    pub fn new(count: u64, per: impl Into<Span>) -> Self {
        Self { count, per: per.into() }
    }

    /// `count` units per second.
    pub const fn per_second(count: u64) -> Self {
        Self { count, per: Span::from_secs(1) }
    }

    /// `count` units per minute.
    pub const fn per_minute(count: u64) -> Self {
        Self { count, per: Span::from_secs(60) }
    }

    /// `count` units per hour.
    pub const fn per_hour(count: u64) -> Self {
        Self { count, per: Span::from_secs(3_600) }
    }

    /// `count` units per day of 24 hours.
    pub const fn per_day(count: u64) -> Self {
        Self { count, per: Span::from_secs(86_400) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.count, self.per)
    }
}

impl FromStr for Rate {
    type Err = InvalidLimit;

    /// Parses `100/60s`, `100/s`, `5000/hour`, `3/250ms`.
    ///
    /// A month is 30 days and a year 365, as in envoyproxy/ratelimit.
    fn from_str(text: &str) -> Result<Self, InvalidLimit> {
        let (count, per) = text.split_once('/').ok_or(InvalidLimit::RateText)?;
        let count = count.trim().parse().map_err(|_| InvalidLimit::RateText)?;
        let per = per.trim();
        let digits = per.len() - per.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = per.split_at(digits);
        let number: u64 = match number {
            "" => 1,
            digits => digits.parse().map_err(|_| InvalidLimit::RateText)?,
        };
        let unit = unit_micros(unit.trim()).ok_or(InvalidLimit::RateText)?;
        let micros = number.checked_mul(unit).ok_or(InvalidLimit::Period)?;
        Ok(Self::new(count, Span::from_micros(micros)))
    }
}

fn unit_micros(unit: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000;
    const DAY: u64 = 86_400 * SECOND;
    Some(match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" | "sec" | "second" => SECOND,
        "m" | "min" | "minute" => 60 * SECOND,
        "h" | "hour" => 3_600 * SECOND,
        "d" | "day" => DAY,
        "w" | "week" => 7 * DAY,
        "month" => 30 * DAY,
        "y" | "year" => 365 * DAY,
        _ => return None,
    })
}

/// The exact time one unit takes: `ticks + part / den` microseconds, `part < den`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Interval {
    /// The whole interval in parts: `num / den` microseconds, reduced.
    pub(crate) num: u64,
    pub(crate) den: u64,
    pub(crate) ticks: u64,
    pub(crate) part: u64,
    /// `floor((2^64 - 1) / num)`: a division by `num` is a multiplication by this and one
    /// correction.
    pub(crate) inverse: u64,
}

impl Interval {
    pub(crate) const MAX_COUNT: u64 = 1 << 52;
    const MAX_PERIOD: u64 = 10 * 365 * 86_400 * 1_000_000;

    /// The reduced interval of `rate`, within the bounds that keep all later arithmetic exact.
    pub(crate) fn of(rate: Rate) -> Result<Self, InvalidLimit> {
        let per = rate.per.as_micros();
        if rate.count == 0 || rate.count > Self::MAX_COUNT {
            return Err(InvalidLimit::Count);
        }
        check_period(rate.per)?;
        let divisor = gcd(per, rate.count);
        let (num, den) = (per / divisor, rate.count / divisor);
        Ok(Self { num, den, ticks: num / den, part: num % den, inverse: u64::MAX / num })
    }

    /// Exactly `units` intervals as (ticks, part).
    #[inline(always)]
    pub(crate) fn times(&self, units: u64) -> (u64, u64) {
        let (carry, part) = match self.den {
            1 => (0, 0),
            den => times_part(units, self.part, den),
        };
        (units * self.ticks + carry, part)
    }

    /// How many whole intervals fit into `ticks + part / den` microseconds.
    #[inline(always)]
    pub(crate) fn fit(&self, ticks: u64, part: u64) -> u64 {
        match ticks.checked_mul(self.den).and_then(|parts| parts.checked_add(part)) {
            Some(parts) => self.divide(parts),
            None => {
                let parts = u128::from(ticks) * u128::from(self.den) + u128::from(part);
                narrow(parts / u128::from(self.num))
            }
        }
    }

    /// `parts / num`. The estimate is at most one too low, because `inverse` is less than one too
    /// low and `parts` is below 2^64.
    #[inline(always)]
    pub(crate) fn divide(&self, parts: u64) -> u64 {
        let estimate = narrow((u128::from(parts) * u128::from(self.inverse)) >> 64);
        estimate + u64::from(parts - estimate * self.num >= self.num)
    }
}

/// `units × part` in whole denominators, and the remainder.
fn times_part(units: u64, part: u64, den: u64) -> (u64, u64) {
    let parts = u128::from(units) * u128::from(part);
    // The value is below `units`, at most 2^53, and below `den`.
    (narrow(parts / u128::from(den)), narrow(parts % u128::from(den)))
}

/// Checks that a window or refill period is between 1 us and 10 years.
pub(crate) fn check_period(per: Span) -> Result<(), InvalidLimit> {
    match per.as_micros() {
        1..=Interval::MAX_PERIOD => Ok(()),
        _ => Err(InvalidLimit::Period),
    }
}

/// Converts a value that the caller has shown to fit; saturates if it does not.
#[inline(always)]
pub(crate) fn narrow(value: u128) -> u64 {
    debug_assert!(u64::try_from(value).is_ok(), "bounds checked when the limit was built");
    u64::try_from(value).unwrap_or(u64::MAX)
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(text: &str) -> Interval {
        Interval::of(text.parse().unwrap()).unwrap()
    }

    #[test]
    fn reads_the_spellings_of_the_policy_language() {
        for (text, count, micros) in [
            ("100/60s", 100, 60_000_000),
            ("100/s", 100, 1_000_000),
            ("5000/hour", 5_000, 3_600_000_000),
            ("3/250ms", 3, 250_000),
            ("10 / min", 10, 60_000_000),
            ("1/month", 1, 2_592_000_000_000),
            ("1/year", 1, 31_536_000_000_000),
            ("7/2week", 7, 1_209_600_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Rate::new(count, Span::from_micros(micros))), "{text}");
        }
        for text in ["", "100", "/s", "x/s", "1/", "1/fortnight", "1/-5s", "-1/s", "1/s/s"] {
            assert_eq!(text.parse::<Rate>(), Err(InvalidLimit::RateText), "{text:?}");
        }
        assert_eq!("1/99999999999999999y".parse::<Rate>(), Err(InvalidLimit::Period));
    }

    #[test]
    fn printed_rates_parse_again() {
        for text in ["100/60s", "3/250ms", "1/7us"] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate.to_string(), text);
        }
    }

    #[test]
    fn thirds_of_a_microsecond_are_kept() {
        let third = interval("3/s");
        assert_eq!((third.ticks, third.part, third.den), (333_333, 1, 3));
        assert_eq!(third.times(3), (1_000_000, 0));
        assert_eq!(third.times(2), (666_666, 2));
        assert_eq!(third.fit(666_666, 1), 1);
        assert_eq!(third.fit(666_666, 2), 2);
    }

    #[test]
    fn dividing_by_the_inverse_is_dividing() {
        for num in [1, 2, 3, 7, 10, 600_000, 999_983, (1 << 32) + 1, u64::MAX / 3, u64::MAX] {
            let rate = Interval { num, den: 1, ticks: num, part: 0, inverse: u64::MAX / num };
            for base in [0, 1, num / 2, num, u64::MAX / num * num, u64::MAX, 1 << 53] {
                for parts in [base.saturating_sub(1), base, base.saturating_add(1)] {
                    assert_eq!(rate.divide(parts), parts / num, "{parts} / {num}");
                }
            }
        }
    }

    #[test]
    fn the_fastest_and_the_slowest_rate_are_exact() {
        let fast = interval("1000000000000/s");
        assert_eq!((fast.ticks, fast.part, fast.den), (0, 1, 1_000_000));
        assert_eq!(fast.times(1_000_001), (1, 1));
        let slow = interval("1/year");
        assert_eq!(slow.times(100), (3_153_600_000_000_000, 0));
        let widest = interval(&format!("{}/10year", Interval::MAX_COUNT - 1));
        assert_eq!(widest.fit(widest.times(1 << 32).0, widest.times(1 << 32).1), 1 << 32);
    }

    #[test]
    fn counts_and_periods_out_of_range_are_refused() {
        let of = |count, per| Interval::of(Rate::new(count, Span::from_micros(per)));
        assert_eq!(of(0, 1), Err(InvalidLimit::Count));
        assert_eq!(of((1 << 52) + 1, 1), Err(InvalidLimit::Count));
        assert!(of(1 << 52, 1).is_ok());
        assert_eq!(of(1, 0), Err(InvalidLimit::Period));
        assert_eq!(of(1, Interval::MAX_PERIOD + 1), Err(InvalidLimit::Period));
        assert!(of(1, Interval::MAX_PERIOD).is_ok());
    }
}
