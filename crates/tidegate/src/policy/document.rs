//! Parsed YAML as a tree whose nodes know their position in the file.
//!
//! Scalars have no type until the loader asks for one, as in envoyproxy/ratelimit, whose files load
//! unchanged: `no` is a valid name and also a bool where the loader expects a bool.

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

/// A node of a document. Cheap to clone: aliases share the node they refer to.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    /// Position in the file. An alias has the position of its use, while its children have those of
    /// the anchor. A block scalar (`|`, `>`) has the position of its first line, a map that of its
    /// first key.
    pub(crate) place: Location,
    file: Arc<str>,
}

/// The content of a node.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Scalar {
        text: Arc<str>,
        /// Not quoted, so it may be a number or a bool.
        plain: bool,
    },
    List(Arc<Vec<Node>>),
    /// Entries in the order written, merged keys (`<<`) last. Keys are unique scalars.
    Map(Arc<Vec<(Node, Node)>>),
    /// `null`, `~`, or an empty value.
    Null,
}

impl Document {
    /// Parses a file. Reports problems in `findings` and returns the documents that could be parsed
    /// anyway, so that one run reports every mistake.
    pub(crate) fn parse(file: &str, text: &str, findings: &mut Findings) -> Vec<Self> {
        reader::read(Arc::from(file), text, findings)
    }
}

impl Node {
    /// The text of any scalar; an unquoted `7` or `true` is accepted as text.
    pub(crate) fn as_text(&self) -> Result<&str, Finding> {
        match &self.kind {
            Kind::Scalar { text, .. } => Ok(text),
            Kind::List(_) | Kind::Map(_) | Kind::Null => Err(self.mismatch("text")),
        }
    }

    /// A bool, in the YAML 1.1 spellings that Go's yaml accepts.
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

    /// An unsigned integer in the spellings that Go's yaml accepts: decimal, `0x`, `0o`, `0b` or
    /// octal with a leading zero, with `_` anywhere between digits.
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

    /// Position in the file, as `file:line:column`.
    pub(crate) fn at(&self) -> String {
        format!("{}:{}:{}", self.file, self.place.line, self.place.column)
    }

    /// An error about this node, without a path; the caller adds it.
    pub(crate) fn error(&self, message: impl Into<String>) -> Finding {
        Finding::error(&self.file, self.place, message)
    }

    /// A warning about this node, without a path; the caller adds it.
    pub(crate) fn warning(&self, message: impl Into<String>) -> Finding {
        Finding::warning(&self.file, self.place, message)
    }

    /// An error that names the expected and the actual kind of value.
    pub(crate) fn mismatch(&self, expected: &str) -> Finding {
        self.error(format!("expected {expected}, found {}", self.description()))
    }

    /// The node's kind and value, for a message: `a list`, `the number 7`, `the text "abc"`.
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
        // Excludes `inf` and `nan`, which Rust parses as numbers.
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
    // `from_str_radix` accepts a second sign, as in `0x+7`.
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}

#[cfg(test)]
#[path = "document_tests.rs"]
mod tests;
