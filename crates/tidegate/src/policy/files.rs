//! A limiter from policy files, and its reload.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::policy::document::source::{Source, SourceError};
use crate::policy::{Merging, PolicyLimiter};
#[cfg(feature = "watch")]
use crate::policy::{Refusal, Watch};
#[cfg(feature = "watch")]
use crate::store::Store;
use crate::store::memory::MemoryStore;

impl PolicyLimiter<MemoryStore> {
    /// The limits of a file, or of all files in a folder, with state in this process.
    ///
    /// # Errors
    /// If the files cannot be read or have mistakes, or if there is no memory.
    pub fn from_path(path: impl Into<PathBuf>) -> Result<Self, LoadError> {
        let source = Source::new([path.into()], Merging::default());
        let loaded = source.load().map_err(LoadError::Unreadable)?;
        let policy = loaded.policy.ok_or(LoadError::Wrong(loaded.findings))?;
        Self::in_memory(policy).map_err(LoadError::Memory)
    }
}

#[cfg(feature = "watch")]
impl<S: Store + 'static> PolicyLimiter<S> {
    /// Replaces the policy whenever the file, or a file in the folder, changes; until the watch is dropped.
    /// Files with mistakes are passed to `refused`, and the last policy stays in force.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn follow(
        &self,
        path: impl Into<PathBuf>,
        mut refused: impl FnMut(Refusal) + Send + 'static,
    ) -> io::Result<Watch> {
        let limiter = self.clone();
        let source = Source::new([path.into()], Merging::default());
        Watch::builder(source).start(move |update| match update {
            Ok(update) => limiter.replace(update.policy),
            Err(refusal) => refused(refusal),
        })
    }
}

/// Why there is no limiter.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The files could not be read.
    Unreadable(SourceError),
    /// The files have mistakes: one `file:line:column: message` per line.
    Wrong(String),
    /// The system refused to reserve memory.
    Memory(io::Error),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Wrong(findings) => f.write_str(findings.trim_end()),
            Self::Memory(_) => f.write_str("the system refused to reserve address space"),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(error),
            Self::Memory(error) => Some(error),
            Self::Wrong(_) => None,
        }
    }
}
