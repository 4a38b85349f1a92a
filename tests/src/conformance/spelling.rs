//! Instants and spans in cases.

use tidegate_core::{Span, Timestamp};

/// An instant as in `2026-03-29T00:30:00Z`.
///
/// # Panics
/// If the text is not an instant: a case that cannot be parsed must not pass.
pub fn instant(text: &str) -> Timestamp {
    let read: jiff::Timestamp = text.parse().expect("an instant such as 2026-03-29T00:30:00Z");
    Timestamp::from_micros(read.as_microsecond().try_into().expect("an instant since 1970"))
}

/// A span as in `30s`, `100ms` or `2d`.
///
/// # Panics
/// If the text is not a span.
pub fn span(text: &str) -> Span {
    let digits = text.find(|c: char| !c.is_ascii_digit()).expect("a span such as 30s");
    let (count, unit) = text.split_at(digits);
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => panic!("{text} has none of the units us, ms, s, m, h, d"),
    };
    Span::from_micros(count.parse::<u64>().expect("a whole number") * micros)
}
