//! Which rule applies to a descriptor, and what its state is kept under.

use super::rule::{Domain, Rule};

/// One key and value of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What is told.
    pub key: &'a str,
    /// What it is.
    pub value: &'a str,
}

impl Domain {
    /// The rule that these entries lead to: at exactly the last of them, neither before nor beyond.
    /// Appends to `text` what a state of it is kept under.
    ///
    /// Values are told apart by a comma, and a comma or a backslash within one is escaped, so that no
    /// two descriptors share a text.
    pub fn resolve(&self, entries: &[Entry<'_>], text: &mut Vec<u8>) -> Option<&Rule> {
        let mut level = &self.first;
        let mut rule = None;
        for (place, entry) in entries.iter().enumerate() {
            let found = self.rule(level.find(entry.key, entry.value)?);
            if place > 0 {
                text.push(b',');
            }
            escape(found.shared_as.as_deref().unwrap_or(entry.value), text);
            (rule, level) = (Some(found), &found.next);
        }
        rule
    }
}

fn escape(value: &str, text: &mut Vec<u8>) {
    if !value.bytes().any(|byte| matches!(byte, b',' | b'\\')) {
        text.extend_from_slice(value.as_bytes());
        return;
    }
    for byte in value.bytes() {
        if matches!(byte, b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
}
