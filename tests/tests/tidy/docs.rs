//! Rules about documents: headings, links, decision records, the changelog.

use std::collections::BTreeSet;

use crate::lexer;
use crate::tree::{Source, Tree, Violation};

const ALGORITHM_HEADINGS: [&str; 5] =
    ["# Idea", "# Promise", "# State", "# When to use, when not", "# Reference"];
const RECORD_HEADINGS: [&str; 3] = ["## Context", "## Decision", "## Consequences"];
const PAGE_LINES: usize = 60;
const PAGE_WORDS: usize = 600;
const TAGS: [&str; 7] =
    ["breaking", "added", "changed", "deprecated", "removed", "fixed", "security"];

pub(crate) fn algorithms_are_documented_alike(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.rust().filter(|s| s.path.starts_with("crates/core/src/algorithm/")) {
        let implements = |line: &lexer::Line| line.code.starts_with("impl Algorithm for ");
        if !lexer::lines(&source.text).iter().any(implements) {
            continue;
        }
        let headings: Vec<&str> = source
            .text
            .lines()
            .filter_map(|line| line.strip_prefix("//! "))
            .filter(|line| line.starts_with("# "))
            .collect();
        if headings != ALGORITHM_HEADINGS {
            let advice = format!("the module's headings must be {ALGORITHM_HEADINGS:?}");
            found.push(source.at(0, advice));
        }
    }
    found
}

/// Every family has a script, and its first line names the Rust file that it mirrors.
pub(crate) fn every_family_has_a_script(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.rust() {
        let family = source.path.strip_prefix("crates/core/src/algorithm/");
        let Some(family) = family.and_then(|file| file.strip_suffix(".rs")) else { continue };
        let implements = |line: &lexer::Line| line.code.starts_with("impl Algorithm for ");
        if !lexer::lines(&source.text).iter().any(implements) {
            continue;
        }
        let path = format!("crates/tidegate/src/store/redis/lua/{family}.lua");
        let mirrors = format!(" in {}.", source.path);
        let first = tree.find(&path).and_then(|script| script.text.lines().next());
        if !first.is_some_and(|line| line.starts_with("-- Mirrors ") && line.ends_with(&mirrors)) {
            let advice = format!("{path} must begin with `-- Mirrors …{mirrors}`");
            found.push(source.at(0, advice));
        }
    }
    found
}

pub(crate) fn links_lead_somewhere(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.markdown() {
        for (number, line) in prose(source) {
            for target in link_targets(&line) {
                if !leads_somewhere(tree, source, target) {
                    found.push(source.at(number, format!("nothing is at `{target}`")));
                }
            }
        }
    }
    found
}

fn leads_somewhere(tree: &Tree, source: &Source, target: &str) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if path.is_empty() { Some(source.path.clone()) } else { resolve(source, path) };
    let Some(path) = path.filter(|path| tree.has(path)) else { return false };
    match tree.find(&path) {
        Some(page) if !anchor.is_empty() && path.ends_with(".md") => {
            prose(page).any(|(_, line)| slug(&line).as_deref() == Some(anchor))
        }
        _ => true,
    }
}

/// The path of a relative link, from the root; `None` if it leaves the repository.
fn resolve(source: &Source, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = source.path.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// Lines outside fences, without inline code.
fn prose(source: &Source) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    source.text.lines().enumerate().filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        let is_prose = !fenced && !is_fence;
        // A heading keeps its code, because its anchor does.
        let is_heading = line.starts_with('#');
        let text = || if is_heading { line.into() } else { without_code(line) };
        is_prose.then(|| (number, text()))
    })
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|after| after.split([')', ' ']).next());
    let reference = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .and_then(|(_, target)| target.split_whitespace().next());
    inline.chain(reference)
}

/// The anchor that a heading gets.
fn slug(line: &str) -> Option<String> {
    let heading =
        line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect())
}

pub(crate) fn decision_records_are_one_page(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut numbers = BTreeSet::new();
    for record in tree.markdown().filter(|source| source.path.starts_with("docs/adr/")) {
        let name = record.path.trim_start_matches("docs/adr/");
        let number = name.split('-').next().unwrap_or_default();
        let is_numbered = number.len() == 4 && number.chars().all(|c| c.is_ascii_digit());
        if !is_numbered || !numbers.insert(number) {
            found.push(record.at(0, "name it NNNN-title.md, with a number of its own"));
        }
        let headings: Vec<&str> =
            record.text.lines().filter(|line| line.starts_with("## ")).collect();
        if headings != RECORD_HEADINGS {
            found.push(record.at(0, format!("the headings must be {RECORD_HEADINGS:?}")));
        }
        let (lines, words) = (record.text.lines().count(), record.text.split_whitespace().count());
        if lines > PAGE_LINES || words > PAGE_WORDS {
            let advice = format!(
                "{lines} lines, {words} words: one page is {PAGE_LINES} lines, {PAGE_WORDS} words"
            );
            found.push(record.at(PAGE_LINES.min(lines), advice));
        }
    }
    found
}

pub(crate) fn the_changelog_is_tagged(tree: &Tree) -> Vec<Violation> {
    let Some(changelog) = tree.find("CHANGELOG.md") else {
        return vec![Violation::new("CHANGELOG.md", "missing")];
    };
    let mut found = Vec::new();
    if !changelog.text.lines().any(|line| line == "## [Unreleased]") {
        found.push(changelog.at(0, "add a section `## [Unreleased]`"));
    }
    for (number, line) in changelog.text.lines().enumerate() {
        if let Some(entry) = line.strip_prefix("- ").filter(|entry| !is_tagged(tree, entry)) {
            let start: String = entry.chars().take(20).collect();
            let advice = format!("`{start}…`: start with `**tag** (crate):`, tag one of {TAGS:?}");
            found.push(changelog.at(number, advice));
        }
    }
    found
}

fn is_tagged(tree: &Tree, entry: &str) -> bool {
    let Some((tag, rest)) = entry.strip_prefix("**").and_then(|rest| rest.split_once("** ("))
    else {
        return false;
    };
    let Some((part, _)) = rest.split_once("): ") else { return false };
    let declares = |source: &Source| {
        source.path.ends_with("Cargo.toml")
            && source.text.lines().any(|line| line == format!("name = \"{part}\""))
    };
    TAGS.contains(&tag) && (part == "workspace" || tree.sources.iter().any(declares))
}

/// Most lines of a module's documentation before its first example.
const BEFORE_EXAMPLE: usize = 12;

/// The page of the library, and of each of its documented modules, begins with an example.
pub(crate) fn public_modules_begin_with_an_example(tree: &Tree) -> Vec<Violation> {
    let library = |path: &str| path.strip_prefix("crates/tidegate/src/").map(str::to_owned);
    let mut pages = vec!["crates/tidegate/src/lib.rs".to_owned()];
    for source in tree.rust() {
        let Some(file) = library(&source.path) else { continue };
        let lines: Vec<&str> = source.text.lines().collect();
        let folder = file.trim_end_matches(".rs").trim_end_matches("lib").trim_end_matches('/');
        for (number, line) in lines.iter().enumerate() {
            let Some(name) = line.strip_prefix("pub mod ") else { continue };
            let above = lines[..number].iter().rev().take_while(|line| line.starts_with("#["));
            if above.into_iter().any(|line| line.contains("doc(hidden)")) {
                continue;
            }
            let name = name.trim_end_matches([';', ' ', '{']);
            let path = [folder, name].into_iter().filter(|part| !part.is_empty());
            let path = path.collect::<Vec<_>>().join("/");
            pages.push(format!("crates/tidegate/src/{path}.rs"));
        }
    }
    let pages = pages.iter().filter_map(|page| tree.find(page));
    let without = pages.filter(|page| {
        let mut start = page.text.lines().take(BEFORE_EXAMPLE);
        !start.any(|line| line.starts_with("//! ```"))
    });
    without.map(|page| page.at(0, "the page of a public module begins with an example")).collect()
}
