//! The files of a policy, and reading them.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::hash::Hasher;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::policy::{Loaded, Merging, Policy};

/// The largest size of a file; larger files are not read. The parser has the same bound.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The largest size of all files together.
const MAX_TOTAL_BYTES: u64 = 64 << 20;

/// The most files; a folder with more was probably named by mistake.
const MAX_FILES: usize = 1_000;

/// Where a policy is loaded from: files, and folders of `.yaml` and `.yml` files.
///
/// A folder stands for the files in it, sorted by name, without subfolders. Names that begin with a
/// dot are skipped, because editors and Kubernetes keep copies under them.
#[derive(Clone, Debug)]
pub struct Source {
    paths: Vec<PathBuf>,
    merging: Merging,
    /// Refuses pipes, because opening one blocks until another process writes to it. A command may
    /// wait for that, a watch must not.
    refuses_pipes: bool,
}

/// The texts of all files of a [`Source`], as they were at one time.
#[derive(Clone, Debug)]
pub struct Texts {
    files: Vec<(String, String)>,
    merging: Merging,
}

/// A hash of names and texts: equal on every machine if all names and texts are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Revision(u128);

/// Why the files could not be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceError {
    /// The operating system returned an error.
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// Neither a file nor a folder.
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A folder without a policy file.
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// No path was given.
    NoPaths,
    /// A file is larger than 16 MiB.
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size, or the bytes read so far if it grew meanwhile.
        bytes: u64,
    },
    /// The files together are larger than 64 MiB.
    TooLarge {
        /// The file that exceeded the bound.
        path: PathBuf,
    },
    /// There are more than 1,000 files.
    TooManyFiles {
        /// The path that exceeded the bound.
        path: PathBuf,
    },
}

impl Source {
    /// A source of these paths. Does not read them.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>, merging: Merging) -> Self {
        Self { paths: paths.into_iter().collect(), merging, refuses_pipes: false }
    }

    /// Reads all files and loads a policy from them.
    pub fn load(&self) -> Result<Loaded, SourceError> {
        Ok(self.read()?.load())
    }

    /// The revision of the files' current texts.
    #[doc(hidden)]
    pub fn revision(&self) -> Result<Revision, SourceError> {
        Ok(self.read()?.revision())
    }

    /// Reads all files.
    #[doc(hidden)]
    pub fn read(&self) -> Result<Texts, SourceError> {
        let mut left = MAX_TOTAL_BYTES;
        let mut files = Vec::new();
        for path in self.files()? {
            let text = self.text(&path, left)?;
            left = left.saturating_sub(text.len() as u64);
            files.push((path.display().to_string(), text));
        }
        Ok(Texts { files, merging: self.merging })
    }

    /// All files, including those of the folders, in the order in which they are read.
    pub(in crate::policy) fn files(&self) -> Result<Vec<PathBuf>, SourceError> {
        if self.paths.is_empty() {
            return Err(SourceError::NoPaths);
        }
        let mut files = Vec::new();
        for path in &self.paths {
            if path.is_dir() {
                files.append(&mut files_of(path)?);
            } else {
                files.push(path.clone());
            }
            if files.len() > MAX_FILES {
                return Err(SourceError::TooManyFiles { path: path.clone() });
            }
        }
        Ok(files)
    }

    fn text(&self, path: &Path, left: u64) -> Result<String, SourceError> {
        let unreadable = |error| SourceError::Unreadable { path: path.to_owned(), error };
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if self.refuses_pipes && !metadata.is_file() && !metadata.is_dir() {
            return Err(SourceError::NotAFile { path: path.to_owned() });
        }
        let check = |bytes: u64| {
            if bytes > MAX_FILE_BYTES {
                return Err(SourceError::FileTooLarge { path: path.to_owned(), bytes });
            }
            if bytes > left {
                return Err(SourceError::TooLarge { path: path.to_owned() });
            }
            Ok(())
        };
        check(metadata.len())?;
        let file = File::open(path).map_err(unreadable)?;
        let mut text = String::new();
        // The file may have grown since, and a pipe reports no size.
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
        check(text.len() as u64)?;
        Ok(text)
    }
}

#[cfg(feature = "watch")]
impl Source {
    pub(in crate::policy) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    pub(in crate::policy) fn refusing_pipes(mut self) -> Self {
        self.refuses_pipes = true;
        self
    }
}

/// Every `.yaml` and `.yml` of a folder, by name.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, SourceError> {
    let unreadable = |error| SourceError::Unreadable { path: folder.to_owned(), error };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if is_policy(&path) {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(SourceError::TooManyFiles { path: folder.to_owned() });
        }
    }
    if found.is_empty() {
        return Err(SourceError::NoFiles { path: folder.to_owned() });
    }
    found.sort();
    Ok(found)
}

fn is_policy(path: &Path) -> bool {
    let is_hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    path.extension().is_some_and(|end| end == "yaml" || end == "yml")
        && !path.file_name().is_some_and(is_hidden)
}

impl Texts {
    /// The names of the files, in the order in which they were read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, _)| &**name)
    }

    /// Loads a policy from the texts.
    pub fn load(&self) -> Loaded {
        let files: Vec<(&str, &str)> =
            self.files.iter().map(|(name, text)| (&**name, &**text)).collect();
        Policy::load(&files, self.merging)
    }

    /// The revision of the texts.
    pub fn revision(&self) -> Revision {
        // The keys are not secret: an attacker who could make two texts collide could write the
        // policy anyway.
        let mut hasher = SipHasher13::new_with_keys(0x706f_6c69, 0x6379);
        for part in self.files.iter().flat_map(|(name, text)| [name, text]) {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part.as_bytes());
        }
        Revision(hasher.finish128().as_u128())
    }

    /// Number of files.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }
}

#[cfg(feature = "watch")]
impl Texts {
    /// Each file's name, and whether it has any content.
    pub(in crate::policy) fn files(&self) -> impl Iterator<Item = (&str, bool)> {
        self.files.iter().map(|(name, text)| (&**name, !is_blank(text)))
    }
}

/// Whether the text consists of space and comments only. A `---` alone is an error already.
#[cfg(feature = "watch")]
fn is_blank(text: &str) -> bool {
    let says_nothing = |line: &str| {
        let line = line.trim_start_matches('\u{feff}').trim();
        line.is_empty() || line.starts_with('#')
    };
    text.lines().all(says_nothing)
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Revision({self})")
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                write!(f, "cannot read {}: {error}", path.display())
            }
            Self::NotAFile { path } => {
                write!(f, "cannot read {}: neither a file nor a folder", path.display())
            }
            Self::NoFiles { path } => {
                write!(f, "{} contains no .yaml or .yml file", path.display())
            }
            Self::NoPaths => f.write_str("no policy file is given"),
            Self::FileTooLarge { path, bytes } => {
                let path = path.display();
                write!(f, "{path} has {bytes} bytes; the maximum is {MAX_FILE_BYTES}")
            }
            Self::TooLarge { path } => write!(
                f,
                "the files up to {} have more than {MAX_TOTAL_BYTES} bytes together",
                path.display()
            ),
            Self::TooManyFiles { path } => {
                write!(
                    f,
                    "the paths up to {} have more than {MAX_FILES} files together",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::NotAFile { .. }
            | Self::NoFiles { .. }
            | Self::NoPaths
            | Self::FileTooLarge { .. }
            | Self::TooLarge { .. }
            | Self::TooManyFiles { .. } => None,
        }
    }
}
