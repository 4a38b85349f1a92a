//! Whether files may have changed, without reading them.

use std::fs::{self, Metadata};
use std::path::PathBuf;
use std::time::SystemTime;

use crate::policy::document::source::Source;

/// Names and metadata of all files, links followed. None if they could not even be listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(Option<Vec<(PathBuf, Option<Print>)>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    identity: Identity,
    size: u64,
    modified: Option<SystemTime>,
    /// A copy that keeps the time of modification still changes this one.
    changed: (i64, i64),
}

/// Tells a file or folder from another of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    /// File systems give the inode of what was deleted to what is made next.
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

    /// Without inodes the times and sizes have to do.
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
