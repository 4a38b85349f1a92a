//! Decimal numbers, formatted like `write!` in a quarter of the time.

/// The digits of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Digits {
    /// Room for the digits of the largest number.
    digits: [u8; 20],
    start: usize,
}

impl Digits {
    pub(crate) fn of(mut number: u64) -> Self {
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Self { digits, start };
            }
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.digits[self.start..]).unwrap_or_default()
    }
}

/// Appends a number to a text.
pub(crate) fn push(text: &mut String, number: u64) {
    text.push_str(Digits::of(number).as_str());
}

/// Whether a text needs no escapes between quotes, in JSON and in header fields.
pub(crate) fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are_spelled() {
        for number in [0, 9, 10, 99, 1_234_567_890, u64::MAX] {
            let mut text = String::from("=");
            push(&mut text, number);
            assert_eq!(text, format!("={number}"));
        }
    }
}
