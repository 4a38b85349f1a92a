//! Whole numbers in any JSON notation.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The largest number that every client can write exactly, JavaScript included.
const MAX: u64 = 1 << 53;

/// A whole number from 0 to 2^53. JSON has only one kind of number, so `5.0` is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WholeNumber(pub(crate) u64);

impl WholeNumber {
    pub(crate) fn from_u64<E: Error>(number: u64) -> Result<Self, E> {
        match number {
            0..=MAX => Ok(Self(number)),
            _ => Err(E::custom(format!("{number} is more than 2^53"))),
        }
    }

    pub(crate) fn from_f64<E: Error>(number: f64) -> Result<Self, E> {
        match number.fract() == 0.0 && (0.0..=MAX as f64).contains(&number) {
            true => Ok(Self(number as u64)),
            false => Err(E::custom(format!("{number} is not a whole number from 0 to 2^53"))),
        }
    }
}

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = WholeNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number, 0 or more")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<WholeNumber, E> {
                WholeNumber::from_u64(number)
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<WholeNumber, E> {
                WholeNumber::from_f64(number)
            }
        }
        deserializer.deserialize_u64(Reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With any number of digits, also after the decimal point.
    #[test]
    fn whole_numbers_are_read_as_they_are_written() {
        for (text, expected) in [
            ("0", Some(0)),
            ("5.0", Some(5)),
            ("5e2", Some(500)),
            ("2203157417771133.0", Some(2_203_157_417_771_133)),
            ("9007199254740992.0", Some(MAX)),
            ("9007199254740993", None),
            ("0.5", None),
            ("-1.0", None),
        ] {
            let read = serde_json::from_str::<WholeNumber>(text).ok().map(|number| number.0);
            assert_eq!(read, expected, "{text}");
        }
    }
}
