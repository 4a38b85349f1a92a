//! Detects possible changes of files without reading them.

use std::fs::{self, Metadata};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::policy::document::source::Source;

/// Names and metadata of all files, links followed. `None` if the files could not be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(Option<Vec<(PathBuf, Option<Print>)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    identity: Identity,
    size: u64,
    modified: Option<SystemTime>,
    /// The inode's change time, which changes even if a copy preserves the modification time.
    changed: (i64, i64),
}

/// Distinguishes a file or folder from a later one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// Creation time, because file systems reuse the inodes of deleted files.
    born: Option<SystemTime>,
}

impl Fingerprint {
    pub(super) fn of(source: &Source) -> Self {
        let print = |path: PathBuf| {
            let print = fs::metadata(&path).ok().map(|metadata| Print::of(&metadata));
            (path, print)
        };
        Self(source.files().ok().map(|files| files.into_iter().map(print).collect()))
    }
}

impl Print {
    fn of(metadata: &Metadata) -> Self {
        Self {
            identity: Identity::of(metadata),
            size: metadata.len(),
            modified: metadata.modified().ok(),
            changed: changed(metadata),
        }
    }
}

impl Identity {
    #[cfg(unix)]
    pub(super) fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self { device: metadata.dev(), inode: metadata.ino(), born: metadata.created().ok() }
    }

    /// Without inodes, only times and sizes are compared.
    #[cfg(not(unix))]
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self { device: 0, inode: 0, born: metadata.created().ok() }
    }
}

#[cfg(unix)]
fn changed(metadata: &Metadata) -> (i64, i64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.ctime(), metadata.ctime_nsec())
}

#[cfg(not(unix))]
fn changed(_: &Metadata) -> (i64, i64) {
    (0, 0)
}
