//! Rules about crates, from `cargo metadata`.

use std::process::Command;

use serde_json::Value;

use crate::tree::{Violation, root};

/// Published crates; each may depend on those of a lower rank only.
const RANKS: [(&str, u8); 6] = [
    ("tidegate-core", 0),
    ("tidegate", 1),
    ("tidegate-sim", 2),
    ("tidegate-tower", 2),
    ("tidegate-server", 3),
    ("tidegate-cli", 4),
];

/// What a user of `tidegate` without features builds, and what each buys.
const LIBRARY: [(&str, &str); 7] = [
    ("tidegate-core", "the algorithms"),
    ("arc-swap", "limits change while running, without a lock on the path of a decision"),
    ("foldhash", "a keyed hash that costs two nanoseconds"),
    ("memmap2", "memory that is reserved at once and resident only when touched"),
    ("quanta", "a clock that costs less than the decision"),
    ("self_cell", "owns the mapping beside the table laid over it, without unsafe code"),
    ("zerocopy", "lays the table over the mapping, without unsafe code"),
];

/// A crate of the workspace.
#[derive(Debug)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Its manifest, from the root of the workspace.
    pub(crate) manifest: String,
    pub(crate) is_published: bool,
    pub(crate) dependencies: Vec<Dependency>,
}

/// What it depends on.
#[derive(Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) is_optional: bool,
}

/// What the dependency is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Normal,
    Build,
    Test,
}

impl Crate {
    fn at_dependencies(&self, advice: impl Into<String>) -> Violation {
        Violation::new(format!("{}: {}", self.manifest, self.name), advice)
    }
}

/// The crates as cargo sees them.
pub(crate) fn workspace() -> Vec<Crate> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs the tests, so it can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let root = text(&metadata["workspace_root"]);
    list(&metadata["packages"]).map(|package| read_crate(package, &root)).collect()
}

fn read_crate(package: &Value, root: &str) -> Crate {
    let dependencies = list(&package["dependencies"]).map(|dependency| Dependency {
        name: text(&dependency["name"]),
        kind: match (dependency["target"].as_str(), dependency["kind"].as_str()) {
            // Exists only while the schedule explorer runs.
            (Some("cfg(tidegate_shuttle)"), _) => Kind::Test,
            (_, None) => Kind::Normal,
            (_, Some("build")) => Kind::Build,
            (_, Some(_)) => Kind::Test,
        },
        is_optional: dependency["optional"] == true,
    });
    Crate {
        name: text(&package["name"]),
        manifest: text(&package["manifest_path"]).replace(&format!("{root}/"), ""),
        is_published: package["publish"].is_null(),
        dependencies: dependencies.collect(),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().into()
}

pub(crate) fn dependencies_point_one_way(crates: &[Crate]) -> Vec<Violation> {
    let mut found = Vec::new();
    for package in crates {
        let Some(rank) = rank_of(&package.name) else {
            if package.is_published {
                let advice = "set publish = false, or give it a rank in tests/tests/tidy/layers.rs";
                found.push(package.at_dependencies(advice));
            }
            continue;
        };
        for dependency in &package.dependencies {
            let ours = crates.iter().any(|other| other.name == dependency.name);
            let is_lower = rank_of(&dependency.name).is_some_and(|lower| lower < rank);
            // A crate's tests may turn on its own features, and start the servers of the others.
            let is_own_test = dependency.kind == Kind::Test
                && [&*package.name, "tidegate-tests"].contains(&&*dependency.name);
            if ours && !is_lower && !is_own_test {
                let advice = format!(
                    "may not depend on {}: core ← tidegate ← sim, tower ← server ← cli",
                    dependency.name
                );
                found.push(package.at_dependencies(advice));
            }
        }
    }
    found
}

fn rank_of(name: &str) -> Option<u8> {
    RANKS.iter().find(|(known, _)| *known == name).map(|(_, rank)| *rank)
}

pub(crate) fn the_core_depends_on_nothing(crates: &[Crate]) -> Vec<Violation> {
    let core = crates.iter().find(|package| package.name == "tidegate-core");
    let Some(core) = core else { return vec![Violation::new("tidegate-core", "missing")] };
    core.dependencies
        .iter()
        .filter(|dependency| dependency.kind != Kind::Test)
        .map(|dependency| {
            let advice = format!("may not depend on {}: it is arithmetic only", dependency.name);
            core.at_dependencies(advice)
        })
        .collect()
}

pub(crate) fn the_library_depends_on_what_is_listed(crates: &[Crate]) -> Vec<Violation> {
    let library = crates.iter().find(|package| package.name == "tidegate");
    let Some(library) = library else { return vec![Violation::new("tidegate", "missing")] };
    let always =
        |dependency: &&Dependency| dependency.kind != Kind::Test && !dependency.is_optional;
    let needed: Vec<&str> =
        library.dependencies.iter().filter(always).map(|d| d.name.as_str()).collect();
    let unlisted = needed.iter().filter(|name| !LIBRARY.iter().any(|(listed, _)| listed == *name));
    let unused = LIBRARY.iter().filter(|(listed, _)| !needed.contains(listed));
    let unlisted = unlisted.map(|name| {
        format!("depends on {name}: put it behind a feature, or list what it buys in LIBRARY")
    });
    let unused =
        unused.map(|(name, reason)| format!("no longer depends on {name} ({reason}): strike it"));
    unlisted.chain(unused).map(|advice| library.at_dependencies(advice)).collect()
}
