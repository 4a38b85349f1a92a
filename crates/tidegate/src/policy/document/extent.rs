//! Converts the parser's positions to positions in the file.

use saphyr_parser::Marker;

use crate::policy::document::finding::Location;

/// Inserted before a root in brackets, so that the parser does not take the root for a possible
/// key: it would hold all of it in memory until the bracket closes. JSON may be as long as any
/// file.
pub(super) const DOCUMENT_START: &str = "--- ";

/// The end of the text, and the position at which [`DOCUMENT_START`] was inserted.
pub(super) struct Extent {
    end: Location,
    shifted_line: Option<u32>,
}

impl Extent {
    /// `root` is where [`DOCUMENT_START`] was inserted.
    pub(super) fn new(text: &str, root: Option<usize>) -> Self {
        let shifted_line = root.map(|root| end_of(&text[..root]).line);
        Self { end: end_of(text), shifted_line }
    }

    pub(super) fn place(&self, marker: Marker) -> Location {
        let line = narrow(marker.line()).max(1);
        let column = narrow(marker.col()).saturating_add(1);
        let is_shifted = self.shifted_line == Some(line);
        let shift = if is_shifted { narrow(DOCUMENT_START.len()) } else { 0 };
        let place = Location { line, column: column.saturating_sub(shift).max(1) };
        // The parser reports an unexpected end on the line after it.
        place.min(self.end)
    }
}

/// Offset of the line that starts with the first bracket, if the file is one list or map in
/// brackets.
pub(super) fn bracketed_root(text: &str) -> Option<usize> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_matches([' ', '\t', '\r', '\n']);
        // A lone carriage return ends a line too; text after it is not examined here.
        let is_skipped = content.is_empty() || content.starts_with('#');
        if !is_skipped || content.contains('\r') {
            return line.starts_with(['[', '{']).then_some(start);
        }
        start += line.len();
    }
    None
}

/// The position after the last character.
fn end_of(text: &str) -> Location {
    let bytes = text.as_bytes();
    let ends_line = |&(at, byte): &(usize, &u8)| {
        *byte == b'\n' || (*byte == b'\r' && bytes.get(at + 1) != Some(&b'\n'))
    };
    let breaks = bytes.iter().enumerate().filter(ends_line).count();
    let last = text.rsplit(['\n', '\r']).next().unwrap_or_default();
    Location { line: narrow(breaks + 1), column: narrow(last.chars().count() + 1) }
}

/// Converts a position; files are far shorter than `u32::MAX`.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
