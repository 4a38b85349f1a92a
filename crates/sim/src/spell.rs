//! Durations for people.

use tidegate_core::Span;

/// `span` in the unit a person would choose, with at most one decimal: `600ms`, `59.4s`, `2h`.
pub fn spell(span: Span) -> String {
    /// For each unit: the shortest length that uses it, its length in microseconds, and its name.
    const UNITS: [(u64, u64, &str); 5] = [
        (86_400_000_000, 86_400_000_000, "d"),
        (3_600_000_000, 3_600_000_000, "h"),
        (120_000_000, 60_000_000, "min"),
        (1_000_000, 1_000_000, "s"),
        (1_000, 1_000, "ms"),
    ];
    let micros = span.as_micros();
    if micros == 0 {
        return "0".to_owned();
    }
    let (unit, name) = UNITS
        .iter()
        .find(|(least, ..)| micros >= *least)
        .map_or((1, "us"), |(_, unit, name)| (*unit, *name));
    let tenths = (u128::from(micros) * 10 + u128::from(unit / 2)) / u128::from(unit);
    match tenths % 10 {
        0 => format!("{}{name}", tenths / 10),
        tenth => format!("{}.{tenth}{name}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_fits_the_length() {
        for (micros, text) in [
            (0, "0"),
            (7, "7us"),
            (600_000, "600ms"),
            (1_500, "1.5ms"),
            (60_000_000, "60s"),
            (59_399_999, "59.4s"),
            (90_000_000, "90s"),
            (120_000_000, "2min"),
            (1_800_000_000, "30min"),
            (3_600_000_000, "1h"),
            (86_400_000_000, "1d"),
        ] {
            assert_eq!(spell(Span::from_micros(micros)), text);
        }
    }
}
