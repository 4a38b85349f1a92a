//! Each check is shown a tree that breaks its rule, and a near miss that does not.

use crate::layers::{self, Crate, Dependency, Kind};
use crate::tree::{Check, Tree};
use crate::{code, docs, files, words};

/// What a check says of one planted file: the places it names.
fn places(check: Check, path: &str, text: &str) -> Vec<String> {
    places_in(check, &[(path, text)])
}

fn places_in(check: Check, files: &[(&str, &str)]) -> Vec<String> {
    check(&Tree::planted(files)).into_iter().map(|violation| violation.place).collect()
}

#[track_caller]
fn caught(check: Check, path: &str, text: &str, line: usize) {
    assert_eq!(places(check, path, text), [format!("{path}:{line}")], "{text}");
}

#[track_caller]
fn passes(check: Check, path: &str, text: &str) {
    assert_eq!(places(check, path, text), [""; 0], "{text}");
}

const SOURCE: &str = "crates/tidegate/src/x.rs";
const CORE: &str = "crates/core/src/x.rs";

#[test]
fn long_files_are_caught() {
    let lines = |count: usize| "x\n".repeat(count);
    caught(files::source_files_are_short, SOURCE, &lines(501), 501);
    passes(files::source_files_are_short, SOURCE, &lines(500));
    caught(files::source_files_are_short, "crates/cli/src/main.rs", &lines(81), 81);
    passes(files::source_files_are_short, "crates/cli/src/main.rs", &lines(80));
    let tested = format!("{}#[cfg(test)]\nmod tests {{\n{}}}\n", lines(500), lines(900));
    passes(files::source_files_are_short, SOURCE, &tested);
    passes(files::source_files_are_short, "crates/core/src/x_tests.rs", &lines(900));
    let limiter = "crates/tidegate/src/limiter.rs";
    caught(files::the_limiter_fits_one_reading, limiter, &lines(301), 301);
    passes(files::the_limiter_fits_one_reading, limiter, &lines(300));
    assert_eq!(places(files::the_limiter_fits_one_reading, SOURCE, ""), [limiter]);
}

#[test]
fn vague_file_names_are_caught() {
    let check = files::file_names_are_nouns_of_the_domain;
    for name in
        ["utils.rs", "common.rs", "helpers/x.rs", "types.rs", "misc.md", "base.rs", "mod.rs"]
    {
        caught(check, &format!("crates/core/src/{name}"), "", 1);
    }
    passes(check, "crates/core/src/bucket.rs", "");
    passes(check, "crates/core/src/database.rs", "");
}

#[test]
fn a_module_page_without_an_example_is_caught() {
    let check = docs::public_modules_begin_with_an_example;
    let (root, page) = ("crates/tidegate/src/lib.rs", "crates/tidegate/src/x/y.rs");
    let example = "//! A store.\n//!\n//! ```\n//! ```\n";
    let planted = |parent: &str, text: &str| {
        let lib = format!("{example}pub mod x;\n");
        let x = format!("{example}{parent}");
        places_in(check, &[(root, &lib), ("crates/tidegate/src/x.rs", &x), (page, text)])
    };
    assert_eq!(planted("pub mod y;\n", example), [""; 0]);
    assert_eq!(planted("pub mod y;\n", "//! A store.\n"), [format!("{page}:1")]);
    assert_eq!(planted("#[doc(hidden)]\npub mod y;\n", "//! A store.\n"), [""; 0]);
}

#[test]
fn large_folders_are_caught() {
    let check = files::large_folders_have_a_reason;
    let numbered = |count: usize| -> Vec<String> {
        let tests = ["crates/core/src/law/a_tests.rs".to_owned()];
        (0..count).map(|n| format!("crates/core/src/law/x{n}.rs")).chain(tests).collect()
    };
    let planted = |paths: &[String], reason: &str| {
        let sources = paths.iter().map(|path| (path.as_str(), ""));
        let files: Vec<(&str, &str)> = sources.chain([("ARCHITECTURE.md", reason)]).collect();
        places_in(check, &files)
    };
    assert_eq!(planted(&numbered(12), ""), [""; 0]);
    assert_eq!(planted(&numbered(13), ""), ["crates/core/src/law"]);
    let reason = "| `crates/core/src/law/` | one file per law |";
    assert_eq!(planted(&numbered(13), reason), [""; 0]);
}

#[test]
fn machine_paths_are_caught() {
    let check = files::no_text_names_a_machine;
    for text in ["see /work/x", "\"/tmp/x\"", "/root/.cargo", "cd /home/me", "`/work`"] {
        caught(check, "docs/guide/x.md", text, 1);
        caught(check, ".ci/run", &format!("\n{text}"), 2);
    }
    for text in ["frame/work/", "/workspace", "https://x.org/work/", "target/tmp/x", "./tmp/"] {
        passes(check, "docs/guide/x.md", text);
    }
}

#[test]
fn other_registries_are_caught() {
    let check = files::locked_dependencies_come_from_the_default_registry;
    let ours = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
    passes(check, "Cargo.lock", ours);
    caught(check, "Cargo.lock", &format!("{ours}source = \"git+https://x.org/y\"\n"), 2);
    caught(check, "bench/Cargo.lock", "source = \"registry+https://x.org\"\n", 1);
}

#[test]
fn manifests_without_lints_are_caught() {
    let check = files::manifests_inherit_the_lints;
    let root = ("Cargo.toml", "[workspace.lints.rust]\nunsafe_code = \"forbid\"\n");
    let good = ("crates/x/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n");
    assert_eq!(places_in(check, &[root, good]), [""; 0]);
    assert_eq!(places_in(check, &[root, ("crates/x/Cargo.toml", "")]), ["crates/x/Cargo.toml:1"]);
    assert_eq!(places_in(check, &[("Cargo.toml", ""), good]), ["Cargo.toml:1"]);
}

#[test]
fn vague_identifiers_are_caught() {
    let check = code::identifiers_are_words_of_the_domain;
    for item in [
        "pub struct KeyManager;",
        "struct MapHelper {",
        "enum UtilKind {",
        "pub trait BaseStore {",
        "pub(crate) struct StoreImpl<'a> {",
        "type MyLimit = u8;",
        "fn format_helper() {}",
        "mod utils;",
        "    pub fn get_limit(&self) -> u64 {",
        "pub const fn get_x() {}",
    ] {
        caught(check, SOURCE, &format!("\n{item}"), 2);
    }
    for item in ["struct Database;", "trait Implied {}", "pub fn get(&self) {", "fn get_x() {}"] {
        passes(check, SOURCE, item);
    }
    passes(check, SOURCE, "// a struct MyBase would be vague\nlet x = \"struct MyBase\";");
}

#[test]
fn silent_allowances_are_caught() {
    let check = code::allowances_give_a_reason;
    caught(check, SOURCE, "#![allow(dead_code)]", 1);
    caught(check, SOURCE, "\n#[allow(\n    dead_code\n)]\nfn x() {} // reason", 2);
    caught(check, SOURCE, "#[expect(unused)]", 1);
    caught(check, SOURCE, "#![deny(warnings)]", 1);
    passes(check, SOURCE, "#![allow(dead_code, reason = \"x\")]");
    passes(check, SOURCE, "#[expect(\n    dead_code,\n    reason = \"x\"\n)]");
}

#[test]
fn loose_ends_are_caught() {
    let check = code::loose_ends_name_an_issue;
    caught(check, SOURCE, "// TODO: later", 1);
    caught(check, SOURCE, "\n/// FIXME later", 2);
    caught(check, ".ci/run", "# XXX", 1);
    passes(check, SOURCE, "// TODO(#12): later");
    passes(check, SOURCE, "// TODOS are fine");
}

#[test]
fn unwritten_code_is_caught() {
    let check = code::no_code_is_left_unwritten;
    caught(check, SOURCE, "fn x() { todo!() }", 1);
    caught(check, SOURCE, "\nunimplemented!(\"x\")", 2);
    passes(check, SOURCE, "// no todo!() here\nlet x = \"todo!\";");
}

#[test]
fn commented_out_code_is_caught() {
    let check = code::no_code_is_commented_out;
    for text in [
        "// let x = 1;",
        "x(); // y();",
        "//self.state.lock(now)?",
        "// if x(y) {",
        "// }",
        "// use std::fs;",
        "// #[test]",
        "// x += 1;",
    ] {
        caught(check, SOURCE, &format!("\n{text}"), 2);
    }
    for text in [
        "// The lock is held here;",
        "// because `x = 1` would be wrong.",
        "/// let x = 1;",
        "// See bucket (and window).",
        "let url = \"http://x.org/y();\";",
    ] {
        passes(check, SOURCE, text);
    }
}

#[test]
fn sleeping_tests_are_caught() {
    let check = code::tests_do_not_sleep;
    caught(check, "tests/tests/x.rs", "thread::sleep(D);", 1);
    caught(check, "crates/core/src/x_tests.rs", "\nsleep(D).await;", 2);
    let foot = "fn x() { sleep(D) }\n#[cfg(test)]\nmod tests {\n    fn y() { sleep(D) }\n}\n";
    caught(check, SOURCE, foot, 4);
    passes(check, "tests/tests/x.rs", "fn does_not_sleep() {} // sleep(D)");
}

#[test]
fn readers_of_time_are_caught() {
    let check = code::only_the_clock_reads_time;
    caught(check, SOURCE, "let now = Instant::now();", 1);
    caught(check, "crates/sim/src/x.rs", "std::time::SystemTime::now()", 1);
    caught(check, "crates/tidegate/src/store/memory.rs", "\nquanta::Clock::new()", 2);
    caught(check, SOURCE, "start.elapsed()", 1);
    passes(check, "crates/tidegate/src/clock.rs", "Instant::now()");
    passes(check, SOURCE, "/// Unlike Instant::now()");
}

#[test]
fn floats_are_caught() {
    let check = code::the_core_has_no_floats;
    for text in ["fn x() -> f64 {", "let x = 1.5;", "x * 2f32", "let x = y as f32;", "(0.25)"] {
        caught(check, CORE, &format!("\n{text}"), 2);
    }
    for text in ["self.0.1", "0..5", "1..=2", "x.0", "// 1.5", "\"1.5\"", "buf64()", "x1.0"] {
        passes(check, CORE, text);
    }
    passes(check, SOURCE, "let x = 1.5;");
}

#[test]
fn undocumented_algorithms_are_caught() {
    let check = docs::algorithms_are_documented_alike;
    let path = "crates/core/src/algorithm/x.rs";
    let headings = "//! # Idea\n//! # Promise\n//! # State\n//! # When to use, when not\n";
    let good = format!("//! X.\n{headings}//! # Reference\nimpl Algorithm for X {{}}\n");
    passes(check, path, &good);
    passes(check, path, "//! No algorithm.\n");
    caught(check, path, &format!("{headings}impl Algorithm for X {{}}\n"), 1);
    caught(check, path, &good.replace("# Promise", "# Promises"), 1);
}

#[test]
fn families_without_a_script_are_caught() {
    let check = docs::every_family_has_a_script;
    let (twin, script) =
        ("crates/core/src/algorithm/x.rs", "crates/tidegate/src/store/redis/lua/x.lua");
    let algorithm = (twin, "impl Algorithm for X {}\n");
    let at = |files: &[(&str, &str)]| places_in(check, files);
    let mirrors = "-- Mirrors X in crates/core/src/algorithm/x.rs.\n";
    assert_eq!(at(&[algorithm, (script, mirrors)]), [""; 0]);
    assert_eq!(at(&[(twin, "struct Windows;\n")]), [""; 0]);
    assert_eq!(at(&[algorithm]), [format!("{twin}:1")]);
    assert_eq!(at(&[algorithm, (script, "-- Mirrors Y.\n")]), [format!("{twin}:1")]);
}

#[test]
fn dead_links_are_caught() {
    let check = docs::links_lead_somewhere;
    let at = |text: &str| {
        let files =
            [("docs/guide/a.md", text), ("README.md", "# The `x` thing\n"), ("src/x.rs", "")];
        places_in(check, &files)
    };
    for dead in ["[x](b.md)", "[x](../../docs/b.md)", "[x]: nowhere.md", "[x](../../../up.md)"] {
        assert_eq!(at(&format!("\n{dead}")), ["docs/guide/a.md:2"], "{dead}");
    }
    assert_eq!(at("[x](../../README.md#other)"), ["docs/guide/a.md:1"]);
    assert_eq!(at("# Here\n[x](#there)"), ["docs/guide/a.md:2"]);
    for good in [
        "[x](a.md) and [y](../../README.md#the-x-thing)",
        "[x](../../src) [y](../../src/x.rs)",
        "# Here\n[x](#here)",
        "[x](https://x.org/y.md)",
        "`[x](y.md)`",
        "```\n[x](y.md)\n```",
    ] {
        assert_eq!(at(good), [""; 0], "{good}");
    }
}

#[test]
fn sprawling_decision_records_are_caught() {
    let check = docs::decision_records_are_one_page;
    let path = "docs/adr/0001-x.md";
    let good = "# X\n\n## Context\n\n## Decision\n\n## Consequences\n";
    passes(check, path, good);
    caught(check, path, &good.replace("## Decision\n", ""), 1);
    caught(check, path, &format!("{good}{}", "x\n".repeat(60)), 61);
    caught(check, path, &format!("{good}{}", "x ".repeat(600)), 9);
    caught(check, "docs/adr/x.md", good, 1);
    let twice = [(path, good), ("docs/adr/0001-y.md", good)];
    assert_eq!(places_in(check, &twice), ["docs/adr/0001-y.md:1"]);
}

#[test]
fn untagged_changes_are_caught() {
    let check = docs::the_changelog_is_tagged;
    let manifest = ("crates/core/Cargo.toml", "name = \"tidegate-core\"\n");
    let at = |text: &str| places_in(check, &[manifest, ("CHANGELOG.md", text)]);
    let head = "## [Unreleased]\n";
    assert_eq!(at(&format!("{head}- **added** (tidegate-core): x\n  and y\n")), [""; 0]);
    assert_eq!(at(&format!("{head}- **fixed** (workspace): x\n")), [""; 0]);
    for bad in ["- x\n", "- **new** (tidegate-core): x\n", "- **added** (tidegate-x): x\n"] {
        assert_eq!(at(&format!("{head}{bad}")), ["CHANGELOG.md:2"], "{bad}");
    }
    assert_eq!(at("# Changelog\n"), ["CHANGELOG.md:1"]);
    assert_eq!(places(check, "README.md", ""), ["CHANGELOG.md"]);
}

#[test]
fn vague_words_are_caught() {
    let check = words::prose_names_its_subjects;
    let code = "crates/cli/src/x.rs";
    for (path, allowed) in
        [(code, words::ALLOWED_IN_CODE), ("docs/x.md", words::ALLOWED_IN_DOCUMENTS)]
    {
        let name = "fn a_switch_spares_nobody_else() {\n";
        for text in ["// Whoever asks.\n", "for nobody else\n", "how it was come by\n", name] {
            let count = |lines: usize| places(check, path, &text.repeat(lines)).len();
            assert_eq!(count(allowed + 1), allowed + 1, "{path}: {text}");
            assert_eq!(count(allowed), 0, "{path}: {text}");
        }
        passes(check, path, &"outcome bytes of nobodyelse\n".repeat(allowed + 1));
    }
    passes(check, "tests/tests/tidy/x.rs", "// Whoever asks.");
}

#[test]
fn dangling_citations_are_caught() {
    let check = words::citations_resolve;
    let at = |text: &str| {
        let rows = ("tests/src/chaos/case.rs", "case(\"F2b\", x)");
        let laws = ("ARCHITECTURE.md", "| L7 | time |");
        places_in(check, &[rows, laws, ("docs/adr/0007-x.md", ""), (SOURCE, text)])
    };
    for dead in [
        "// XY-12",
        "/// As decision 9 has it.",
        "//! Requirements 3",
        "// ADR 8",
        "x(); // F3",
        "// L8",
    ] {
        assert_eq!(at(&format!("\n{dead}")), [format!("{SOURCE}:2")], "{dead}");
    }
    for good in
        ["// ADR 7, F2b, L7, UTF-16: each decision 4.6 ns", "let x = \"F3\";", "XY_12 // XY-123"]
    {
        assert_eq!(at(good), [""; 0], "{good}");
    }
}

fn package(name: &str, dependencies: &[(&str, Kind)]) -> Crate {
    let dependencies = dependencies.iter().map(|(name, kind)| Dependency {
        name: (*name).into(),
        kind: *kind,
        is_optional: false,
    });
    Crate {
        name: name.into(),
        manifest: "Cargo.toml".into(),
        is_published: true,
        dependencies: dependencies.collect(),
    }
}

#[test]
fn dependencies_that_point_back_are_caught() {
    let count = |name: &str, on: &str| {
        let others =
            ["tidegate-core", "tidegate", "tidegate-sim", "tidegate-server", "tidegate-cli"];
        let mut crates: Vec<Crate> = others.iter().map(|other| package(other, &[])).collect();
        crates.push(package(name, &[(on, Kind::Normal)]));
        layers::dependencies_point_one_way(&crates).len()
    };
    for (name, on) in [
        ("tidegate-core", "tidegate"),
        ("tidegate", "tidegate-sim"),
        ("tidegate-sim", "tidegate-server"),
        ("tidegate-server", "tidegate-cli"),
        ("tidegate-unheard-of", "tidegate"),
    ] {
        assert_eq!(count(name, on), 1, "{name} -> {on}");
    }
    for (name, on) in [
        ("tidegate", "tidegate-core"),
        ("tidegate-sim", "tidegate-core"),
        ("tidegate-cli", "tidegate-sim"),
        ("tidegate-cli", "serde_json"),
    ] {
        assert_eq!(count(name, on), 0, "{name} -> {on}");
    }
}

#[test]
fn a_core_with_dependencies_is_caught() {
    let with =
        |kind| layers::the_core_depends_on_nothing(&[package("tidegate-core", &[("x", kind)])]);
    assert_eq!(with(Kind::Normal).len(), 1);
    assert_eq!(with(Kind::Build).len(), 1);
    assert_eq!(with(Kind::Test).len(), 0);
}

#[test]
fn a_library_with_other_dependencies_is_caught() {
    let real = layers::workspace();
    let library = real.iter().find(|package| package.name == "tidegate");
    let mut names: Vec<(&str, Kind)> = library
        .into_iter()
        .flat_map(|library| &library.dependencies)
        .filter(|dependency| !dependency.is_optional && dependency.kind == Kind::Normal)
        .map(|dependency| (dependency.name.as_str(), Kind::Normal))
        .collect();
    let count = |names: &[(&str, Kind)]| {
        layers::the_library_depends_on_what_is_listed(&[package("tidegate", names)]).len()
    };
    let before = count(&names);
    names.push(("left-pad", Kind::Normal));
    assert_eq!(count(&names), before + 1);
    names.pop();
    names.pop();
    assert_eq!(count(&names), before + 1);
}

#[test]
fn a_library_with_many_documented_items_is_caught() {
    let check: Check = crate::public::the_library_documents_few_items;
    let items = |visible: usize, hidden: usize| {
        let hidden = "#[doc(hidden)]\npub fn h() {}\n".repeat(hidden);
        "pub fn f() {}\n".repeat(visible) + &hidden + "pub(crate) fn g() {}\n"
    };
    caught(check, SOURCE, &items(201, 0), 1);
    passes(check, SOURCE, &items(200, 50));
    passes(check, CORE, &items(201, 0));
    let method = "impl Held {\n".to_owned() + &"    pub fn m() {}\n".repeat(201) + "}\n";
    caught(check, SOURCE, &method, 1);
    passes(check, SOURCE, &format!("#[doc(hidden)]\npub struct Held;\n{method}"));
    passes(
        check,
        SOURCE,
        &format!("#[doc(hidden)]\npub use self::held::{{Held, Other}};\n{method}"),
    );
    passes(check, SOURCE, &format!("#[doc(hidden)]\n{method}"));
}
