//! Errors and warnings about a policy file, with their positions.

use std::fmt;
use std::sync::Arc;

use crate::policy::document::nearest::nearest;

/// The most findings that are kept, because a hostile file could cause millions.
const MAX_FINDINGS: usize = 1_000;

/// The most characters of a text from the file that a message repeats.
const MAX_QUOTED: usize = 40;

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    pub(crate) file: Arc<str>,
    pub(crate) place: Location,
    /// Path in the tree, as in `descriptors[2].rate_limit.unit`; empty for the file as a whole.
    pub(crate) path: String,
    pub(crate) message: String,
}

/// Whether the file can still be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Severity {
    Error,
    Warning,
}

/// A position in a file. Line and column count from 1; a column is one character.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Location {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

/// All errors and warnings of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    dropped: usize,
    errors: usize,
}

impl Finding {
    pub(crate) fn error(file: &Arc<str>, place: Location, message: impl Into<String>) -> Self {
        let file = Arc::clone(file);
        let severity = Severity::Error;
        Self { severity, file, place, path: String::new(), message: message.into() }
    }

    pub(crate) fn warning(file: &Arc<str>, place: Location, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(file, place, message) }
    }

    /// Adds `; did you mean …?` if one of the words is close to `written`.
    pub(crate) fn suggesting(mut self, written: &str, words: &[&str]) -> Self {
        if let Some(meant) = nearest(written, words) {
            self.message += &format!("; did you mean `{meant}`?");
        }
        self
    }

    /// The finding with the path of its node.
    pub(crate) fn at(mut self, path: impl Into<String>) -> Self {
        self.path = path.into();
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, file, place, path, message } = self;
        write!(f, "{file}:{}:{}: ", place.line, place.column)?;
        if *severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        f.write_str(message)?;
        if path.is_empty() { Ok(()) } else { write!(f, " (at {path})") }
    }
}

impl Location {
    /// The beginning of a file.
    pub(crate) const START: Self = Self { line: 1, column: 1 };
}

impl Findings {
    pub(crate) fn push(&mut self, finding: Finding) {
        self.errors += usize::from(finding.severity == Severity::Error);
        if self.kept.len() < MAX_FINDINGS {
            self.kept.push(finding);
        } else {
            self.dropped += 1;
        }
    }

    /// Orders the findings by file, in the order of `files`, then by line and column.
    pub(crate) fn sort(&mut self, files: &[(&str, &str)]) {
        let number = |file: &str| files.iter().position(|(name, _)| *name == file);
        self.kept.sort_by_cached_key(|finding| (number(&finding.file), finding.place));
    }

    /// Number of errors, including those that were not kept.
    pub(crate) fn errors(&self) -> usize {
        self.errors
    }
}

#[cfg(test)]
impl Findings {
    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Number of findings that were not kept.
    pub(crate) fn dropped(&self) -> usize {
        self.dropped
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.kept.iter()
    }
}

/// One finding per line.
impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, finding) in self.kept.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(f, "{separator}{finding}")?;
        }
        if self.dropped > 0 { write!(f, "\nand {} more", self.dropped) } else { Ok(()) }
    }
}

/// The beginning of a text from the file, quoted and escaped to one line.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

/// The beginning of a text from the file.
pub(crate) fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
