//! The folder of a server.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of lines of a log that explain a failure.
const TAIL_LINES: usize = 40;
const LOG: &str = "server.log";

/// A new folder, removed with everything in it when dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a folder with a unique name.
    pub fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The name is short, because the path of a socket may have at most about a hundred
        // characters.
        let name = format!("tidegate-{}-{number}-{:08x}", process::id(), fastrand::u32(..));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the folder for temporary files can be written");
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, text).expect("a new folder can be written");
        path
    }

    /// The server's output of all its starts.
    pub(crate) fn log_for_appending(&self) -> File {
        let path = self.file(LOG);
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.expect("a new folder can be written")
    }

    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.file(LOG)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The end of the log, for panics.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover folder is not a failed test.
        let _ = fs::remove_dir_all(&self.0);
    }
}
