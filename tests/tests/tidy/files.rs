//! Rules about files: how long, how named, what no text may contain.

use std::collections::BTreeMap;

use crate::tree::{Source, Tree, Violation};

const LONGEST_SOURCE: usize = 500;
const LONGEST_MAIN: usize = 80;
const LONGEST_LIMITER: usize = 300;
const LIMITER: &str = "crates/tidegate/src/limiter.rs";
const VAGUE: [&str; 9] =
    ["utils", "util", "common", "helpers", "helper", "types", "misc", "base", "mod"];
const DEFAULT_REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(crate) fn source_files_are_short(tree: &Tree) -> Vec<Violation> {
    let too_long = |source: &Source| {
        let length = source.tests_begin();
        let is_main = source.path.ends_with("/main.rs");
        let longest = if is_main { LONGEST_MAIN } else { LONGEST_SOURCE };
        (length > longest).then(|| {
            let advice =
                format!("{length} lines without tests, at most {longest}: split it by noun");
            source.at(longest, advice)
        })
    };
    tree.rust().filter_map(too_long).collect()
}

pub(crate) fn the_limiter_fits_one_reading(tree: &Tree) -> Vec<Violation> {
    let Some(limiter) = tree.find(LIMITER) else {
        return vec![Violation::new(LIMITER, "missing: it is the file everyone reads first")];
    };
    let length = limiter.text.lines().count();
    if length <= LONGEST_LIMITER {
        return Vec::new();
    }
    let advice = format!("{length} lines, at most {LONGEST_LIMITER}: move what is not the flow");
    vec![limiter.at(LONGEST_LIMITER, advice)]
}

pub(crate) fn file_names_are_nouns_of_the_domain(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    // Names of other people's protocols are a part of the protocols.
    for path in tree.paths().filter(|path| !path.contains("/proto/")) {
        let vague = path
            .split('/')
            .map(|part| part.split('.').next().unwrap_or_default())
            .find(|stem| VAGUE.contains(stem));
        if let Some(stem) = vague {
            let advice =
                format!("`{stem}` says nothing: name it by what it holds, foo.rs beside foo/");
            found.push(Violation::new(format!("{path}:1"), advice));
        }
    }
    found
}

pub(crate) fn no_text_names_a_machine(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.sources.iter().filter(|source| !source.is_tidy()) {
        for (number, line) in source.text.lines().enumerate() {
            if let Some(root) = machine_path(line) {
                let advice =
                    format!("`{root}` exists on one machine only: write a path from the root");
                found.push(source.at(number, advice));
            }
        }
    }
    found
}

/// The root of an absolute path of one machine.
fn machine_path(line: &str) -> Option<&'static str> {
    ["/work", "/root", "/tmp", "/home"].into_iter().find(|root| {
        line.match_indices(root).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + root.len()..].chars().next();
            // Part of a longer path or word: an address, `frame/work`, `/workspace`.
            let starts = before.is_none_or(|c| !c.is_alphanumeric() && !"/._-*)]}>".contains(c));
            let ends = after.is_none_or(|c| !c.is_alphanumeric() && !"_-.".contains(c));
            starts && ends
        })
    })
}

pub(crate) fn locked_dependencies_come_from_the_default_registry(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for lock in tree.sources.iter().filter(|source| source.path.ends_with("Cargo.lock")) {
        for (number, line) in lock.text.lines().enumerate() {
            let Some(origin) = line.strip_prefix("source = ") else { continue };
            if origin.trim_matches('"') != DEFAULT_REGISTRY {
                let advice = format!("{origin} is not the default registry: depend on a release");
                found.push(lock.at(number, advice));
            }
        }
    }
    found
}

pub(crate) fn manifests_inherit_the_lints(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(root) = tree.find("Cargo.toml") else {
        return vec![Violation::new("Cargo.toml", "missing")];
    };
    if !root.text.lines().any(|line| line == "unsafe_code = \"forbid\"") {
        found.push(root.at(0, "[workspace.lints.rust] must say unsafe_code = \"forbid\""));
    }
    // Separate workspaces: the benches, so that users never resolve what they compare with; the fuzzers, which
    // are a line each; and the program that uses the library from outside.
    let members = tree.sources.iter().filter(|source| {
        source.path.ends_with("/Cargo.toml")
            && !["bench/", "fuzz/", "tests/outside/"]
                .iter()
                .any(|apart| source.path.starts_with(apart))
    });
    for manifest in members {
        let lines: Vec<&str> = manifest.text.lines().map(str::trim).collect();
        if !lines.windows(2).any(|pair| pair == ["[lints]", "workspace = true"]) {
            found.push(manifest.at(0, "add [lints] workspace = true"));
        }
    }
    found
}

/// Most source files of a folder, without unit tests.
const LARGEST_FOLDER: usize = 12;

/// A folder with more files has a row in the table "Large folders", which gives the reason.
pub(crate) fn large_folders_have_a_reason(tree: &Tree) -> Vec<Violation> {
    let mut folders: BTreeMap<&str, usize> = BTreeMap::new();
    for path in tree.rust().map(|source| source.path.as_str()) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *folders.entry(folder).or_default() += usize::from(!path.ends_with("_tests.rs"));
    }
    let reasons = tree.find("ARCHITECTURE.md").map_or("", |source| source.text.as_str());
    let has_reason = |folder: &str| reasons.contains(&format!("| `{folder}/` |"));
    let large =
        folders.iter().filter(|(folder, files)| **files > LARGEST_FOLDER && !has_reason(folder));
    let violation = |(folder, files): (&&str, &usize)| {
        let advice = format!(
            "{files} files, at most {LARGEST_FOLDER}: divide it, or give the reason in ARCHITECTURE.md"
        );
        Violation::new(*folder, advice)
    };
    large.map(violation).collect()
}
