//! How much a limit allows, by fixed periods or by the calendar.

use std::fmt;
use std::sync::Arc;

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Limit, Rate, Span, Timestamp};

use crate::key::Scope;
use crate::policy::model::calendar::Calendar;

/// How much a limit allows.
#[derive(Clone, Debug, PartialEq)]
pub enum Allowance {
    /// Any number of units, not counted.
    Unlimited,
    /// The units of a limit.
    Limited {
        /// The limit's numbers.
        limit: Limit,
        /// The limit's part of its keys.
        scope: Scope,
    },
    /// A count of units per calendar period.
    Calendar(CalendarQuota),
}

/// A quota per calendar period.
#[derive(Clone, Debug, PartialEq)]
pub struct CalendarQuota {
    pub(in crate::policy) id: Arc<str>,
    pub(in crate::policy) count: u64,
    pub(in crate::policy) denied: Denied,
    pub(in crate::policy) calendar: Calendar,
}

impl Allowance {
    /// The numbers at `now`, and the scope of the keys; `None` if unlimited.
    pub fn at(&self, now: Timestamp) -> Option<(Limit, Scope)> {
        match self {
            Self::Unlimited => None,
            Self::Limited { limit, scope } => Some((*limit, *scope)),
            Self::Calendar(quota) => quota.at(now),
        }
    }

    /// Whether its windows are calendar periods.
    pub const fn is_calendar(&self) -> bool {
        matches!(self, Self::Calendar(_))
    }
}

impl CalendarQuota {
    /// A fixed window equal to the period that contains `now`. The scope includes length and
    /// offset, so each period is counted separately, however long it is.
    fn at(&self, now: Timestamp) -> Option<(Limit, Scope)> {
        let period = self.calendar.period(now);
        let length = period.end.as_micros() - period.start.as_micros();
        let offset = Span::from_micros(period.start.as_micros() % length);
        let rate = Rate::new(self.count, Span::from_micros(length));
        let window = Limit::fixed_window(rate).offset(offset);
        let window = match self.denied {
            Denied::Counted => window.count_denied(),
            Denied::Ignored => window,
        };
        // Count and length were checked when the policy was loaded.
        let limit = window.build().ok()?;
        Some((limit, Scope::new(&self.id, &limit)))
    }
}

/// As in `100/60s token bucket`, for explanations.
impl fmt::Display for Allowance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Limited { limit, .. } => write!(f, "{}", Numbers(limit)),
            Self::Calendar(quota) => write!(f, "{} in each {}", quota.count, quota.calendar),
        }
    }
}

/// The numbers of a limit, in words.
pub fn in_words(limit: &Limit) -> impl fmt::Display + '_ {
    Numbers(limit)
}

struct Numbers<'a>(&'a Limit);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Limit::Bucket(bucket) => {
                let refill = length_in_words(Span::from_micros(bucket.fill_time().ticks));
                write!(f, "{} at once, full again after {refill}", bucket.capacity())
            }
            Limit::FixedWindow(window) => {
                write!(
                    f,
                    "{} in each window of {}",
                    window.limit(),
                    length_in_words(window.length())
                )
            }
            Limit::SlidingWindow(window) => {
                write!(f, "{} in about any {}", window.limit(), length_in_words(window.length()))
            }
            Limit::SlidingLog(log) => {
                write!(f, "{} in any {}", log.limit(), length_in_words(log.length()))
            }
            Limit::InFlight(in_flight) => {
                let (places, ttl) = (in_flight.limit(), length_in_words(in_flight.ttl()));
                write!(f, "{places} at once, each for {ttl} unless renewed")
            }
            Limit::Blocking(blocking) => {
                let block = length_in_words(blocking.block_for());
                write!(f, "{}; a denial blocks the key for {block}", Numbers(&blocking.rate()))
            }
            other => f.write_str(other.family()),
        }
    }
}

/// A readable length of time: `250ms`, `1.5s`, `60s`, `1h`, `30d`, `29d 23h 59m 59s`. Rounded up to
/// milliseconds, and from an hour on to seconds.
pub fn length_in_words(span: Span) -> impl fmt::Display {
    Length(span)
}

struct Length(Span);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_micros().div_ceil(1_000);
        if millis < 1_000 {
            return self.0.fmt(f);
        }
        if millis < 3_600_000 {
            let (seconds, rest) = (millis / 1_000, format!("{:03}", millis % 1_000));
            let rest = rest.trim_end_matches('0');
            let point = if rest.is_empty() { "" } else { "." };
            return write!(f, "{seconds}{point}{rest}s");
        }
        let seconds = millis.div_ceil(1_000);
        let parts = [
            (seconds / 86_400, "d"),
            (seconds / 3_600 % 24, "h"),
            (seconds / 60 % 60, "m"),
            (seconds % 60, "s"),
        ];
        let mut separator = "";
        for (count, unit) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{separator}{count}{unit}")?;
            separator = " ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_the_units_of_a_calendar() {
        for (micros, text) in [
            (0, "0s"),
            (7, "7us"),
            (250_000, "250ms"),
            (1_500_000, "1.5s"),
            (60_000_000, "60s"),
            (3_599_999_000, "3599.999s"),
            (3_600_000_000, "1h"),
            (5_400_000_001, "1h 30m 1s"),
            (2_592_000_000_000, "30d"),
            (2_591_999_000_000, "29d 23h 59m 59s"),
        ] {
            assert_eq!(length_in_words(Span::from_micros(micros)).to_string(), text);
        }
    }
}
