//! The files of the repository, or of a planted one.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// A rule of style: what breaks it in a tree.
pub(crate) type Check = fn(&Tree) -> Vec<Violation>;

/// All files, and the text of those that hold text.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) sources: Vec<Source>,
    paths: BTreeSet<String>,
}

/// A text file. The path is relative to the root, with `/`.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// One place where a rule is broken, and what to do about it.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) place: String,
    advice: String,
}

impl Tree {
    pub(crate) fn repository() -> Self {
        let mut tree = Self::default();
        tree.walk(&root(), "");
        tree
    }

    /// A tree of these files and nothing else.
    pub(crate) fn planted(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            tree.add(path, (*text).into());
        }
        tree
    }

    /// True for files and for folders that hold any.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{path}/");
        path.is_empty()
            || self.paths.contains(path)
            || self.paths.range(folder.clone()..).next().is_some_and(|p| p.starts_with(&folder))
    }

    pub(crate) fn find(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.path == path)
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &str> {
        self.paths.iter().map(String::as_str)
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.path.ends_with(".rs"))
    }

    pub(crate) fn markdown(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|source| source.path.ends_with(".md"))
    }

    fn walk(&mut self, folder: &Path, prefix: &str) {
        let entries = fs::read_dir(folder).expect("the repository is readable");
        for entry in entries {
            let entry = entry.expect("the repository is readable");
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            // `.git` is a file in a worktree.
            if is_generated(&name) {
                continue;
            }
            if entry.path().is_dir() {
                self.walk(&entry.path(), &format!("{path}/"));
            } else {
                self.add(&path, fs::read_to_string(entry.path()).unwrap_or_default());
            }
        }
    }

    fn add(&mut self, path: &str, text: String) {
        self.paths.insert(path.into());
        self.sources.push(Source { path: path.into(), text });
    }
}

impl Source {
    /// The tidy test names what it forbids, so it cannot be held to that itself.
    pub(crate) fn is_tidy(&self) -> bool {
        self.path.starts_with("tests/tests/tidy")
    }

    /// True if the whole file is test code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.split('/').any(|part| part == "tests")
            || self.path.ends_with("_tests.rs")
            || self.path.ends_with("/tests.rs")
    }

    /// The number of the line at which the tests at the foot of the file begin, counted from 0.
    pub(crate) fn tests_begin(&self) -> usize {
        if self.is_test() {
            return 0;
        }
        let lines: Vec<&str> = self.text.lines().collect();
        let is_start = |pair: &[&str]| {
            pair[0].trim() == "#[cfg(test)]"
                && pair[1].trim_start().starts_with("mod ")
                && pair[1].trim_end().ends_with('{')
        };
        lines.windows(2).position(is_start).unwrap_or(lines.len())
    }

    /// A violation at this line, counted from 0.
    pub(crate) fn at(&self, line: usize, advice: impl Into<String>) -> Violation {
        Violation::new(format!("{}:{}", self.path, line + 1), advice)
    }
}

impl Violation {
    pub(crate) fn new(place: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { place: place.into(), advice: advice.into() }
    }
}

/// Fails the test if there is any violation, and shows them all.
pub(crate) fn report(violations: &[Violation]) {
    let lines: Vec<String> = violations
        .iter()
        .map(|violation| format!("  {}: {}", violation.place, violation.advice))
        .collect();
    assert!(lines.is_empty(), "{} to tidy up:\n{}\n", lines.len(), lines.join("\n"));
}

/// The root of the repository that the test was started in.
///
/// Not the one it was compiled in: two checkouts that share a target directory share the binary.
pub(crate) fn root() -> PathBuf {
    let here = env::current_dir().expect("the tests run somewhere");
    let is_root = |folder: &&Path| folder.join("xtask/Cargo.toml").is_file();
    here.ancestors().find(is_root).expect("the tests run inside the repository").to_path_buf()
}

fn is_generated(folder: &str) -> bool {
    matches!(folder, "target" | ".git") || folder.starts_with("mutants.out")
}
