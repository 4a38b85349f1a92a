//! Texts that clients hold, such as leases and reservations: bytes in hexadecimal digits.

pub(in crate::policy) mod leases;
pub(in crate::policy) mod reservations;

use std::fmt;

/// Reads the bytes of a text from the front.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn field(&mut self) -> Option<Box<[u8]>> {
        let length = u32::from_be_bytes(self.take(4)?.try_into().ok()?);
        Some(self.take(usize::try_from(length).ok()?)?.into())
    }
}

/// Appends numbers, eight bytes each.
pub(super) fn push_numbers(bytes: &mut Vec<u8>, numbers: &[u64]) {
    bytes.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
}

/// Appends a field and its length.
pub(super) fn push_field(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend((field.len() as u32).to_be_bytes());
    bytes.extend_from_slice(field);
}

/// Writes bytes as digits.
pub(super) fn write(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// The bytes of a text.
pub(super) fn read(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    bytes.collect::<Option<Vec<u8>>>().filter(|_| rest.is_empty())
}
