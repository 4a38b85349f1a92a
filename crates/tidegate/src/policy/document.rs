//! YAML text as a tree in which every node knows where it was written.
//!
//! Scalars mean what they mean to envoyproxy/ratelimit, whose files are read unchanged: a reader of
//! the tree says which type it expects, so `no` is a fine name and still a bool where one is due.

mod extent;
pub(super) mod finding;
pub(super) mod nearest;
mod reader;
pub(super) mod source;
mod syntax;

use std::sync::Arc;

use crate::policy::document::finding::{Finding, Findings, Location, quoted, shortened};

/// One YAML document. A file may hold several, separated by `---`.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    pub(crate) file: Arc<str>,
    pub(crate) root: Node,
}

/// A part of a document. Cheap to clone: aliases share what they refer to.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Where it was written; for an alias where it is used, while its children are where the anchor
    /// is. A block text (`|`, `>`) is where its first line is, a map where its first key is.
    pub(crate) place: Location,
    file: Arc<str>,
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar {
        text: Arc<str>,
        /// Not quoted, so it may be a number or a bool.
        plain: bool,
    },
    List(Arc<Vec<Node>>),
    /// In the order written, merged keys (`<<`) last. Keys are scalars, and no two are the same.
    Map(Arc<Vec<(Node, Node)>>),
    /// `null`, `~`, or nothing at all.
    Null,
}

impl Document {
    /// Reads a file. What is wrong with it goes to `findings`; what could be read is returned all
    /// the same, so that the author learns of every mistake in one run.
    pub(crate) fn parse(file: &str, text: &str, findings: &mut Findings) -> Vec<Self> {
        reader::read(Arc::from(file), text, findings)
    }
}

impl Node {
    /// Any scalar: an unquoted `7` or `true` is a text where one is expected.
    pub(crate) fn as_text(&self) -> Result<&str, Finding> {
        match &self.kind {
            Kind::Scalar { text, .. } => Ok(text),
            Kind::List(_) | Kind::Map(_) | Kind::Null => Err(self.mismatch("text")),
        }
    }

    /// The spellings of YAML 1.1, as Go's yaml takes them for a bool.
    pub(crate) fn as_bool(&self) -> Result<bool, Finding> {
        match self.plain_text() {
            Some(
                "true" | "True" | "TRUE" | "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON",
            ) => Ok(true),
            Some(
                "false" | "False" | "FALSE" | "n" | "N" | "no" | "No" | "NO" | "off" | "Off"
                | "OFF",
            ) => Ok(false),
            _ => Err(self.mismatch("true or false")),
        }
    }

    /// Decimal, `0x`, `0o`, `0b` or octal with a leading zero, with `_` anywhere between: what Go's
    /// yaml takes for an unsigned integer.
    pub(crate) fn as_u64(&self) -> Result<u64, Finding> {
        let whole = self.plain_text().and_then(whole_number);
        whole.ok_or_else(|| {
            let is_too_large =
                self.plain_text().is_some_and(|text| text.bytes().all(|c| c.is_ascii_digit()))
                    && self.is_number();
            self.mismatch(if is_too_large {
                "a whole number of at most 18446744073709551615"
            } else {
                "a whole number, 0 or more"
            })
        })
    }

    pub(crate) fn as_list(&self) -> Result<&[Self], Finding> {
        match &self.kind {
            Kind::List(items) => Ok(items),
            Kind::Scalar { .. } | Kind::Map(_) | Kind::Null => Err(self.mismatch("a list")),
        }
    }

    pub(crate) fn as_map(&self) -> Result<&[(Self, Self)], Finding> {
        match &self.kind {
            Kind::Map(pairs) => Ok(pairs),
            Kind::Scalar { .. } | Kind::List(_) | Kind::Null => Err(self.mismatch("a map")),
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Where it was written, as `file:line:column`.
    pub(crate) fn at(&self) -> String {
        format!("{}:{}:{}", self.file, self.place.line, self.place.column)
    }

    /// An error about this node; whoever knows the path adds it.
    pub(crate) fn error(&self, message: impl Into<String>) -> Finding {
        Finding::error(&self.file, self.place, message)
    }

    /// A warning about this node; whoever knows the path adds it.
    pub(crate) fn warning(&self, message: impl Into<String>) -> Finding {
        Finding::warning(&self.file, self.place, message)
    }

    /// An error that says what was expected here and what was found.
    pub(crate) fn mismatch(&self, expected: &str) -> Finding {
        self.error(format!("expected {expected}, found {}", self.description()))
    }

    /// What it is, for a message: `a list`, `the number 7`, `the text "abc"`.
    pub(crate) fn description(&self) -> String {
        match &self.kind {
            Kind::Null => "nothing".into(),
            Kind::List(_) => "a list".into(),
            Kind::Map(_) => "a map".into(),
            Kind::Scalar { text, .. } if self.is_number() => {
                format!("the number {}", shortened(text))
            }
            Kind::Scalar { text, .. } => format!("the text {}", quoted(text)),
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        let Some(text) = self.plain_text() else { return false };
        // Not `inf`, nor `nan`, which Rust takes for numbers.
        let starts_so = text.trim_start_matches(['+', '-', '.']);
        let starts_so = starts_so.starts_with(|c: char| c.is_ascii_digit());
        starts_so && (whole_number(text).is_some() || text.parse::<f64>().is_ok())
    }

    fn plain_text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, plain: true } => Some(text),
            Kind::Scalar { .. } | Kind::List(_) | Kind::Map(_) | Kind::Null => None,
        }
    }
}

fn whole_number(text: &str) -> Option<u64> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    if !unsigned.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let digits = unsigned.replace('_', "");
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, &*digits),
    };
    // A second sign would be taken otherwise, as in `0x+7`.
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
