//! Limits and lengths of time in words, for explanations and messages.

use std::fmt;

use tidegate_core::{Limit, Span};

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
