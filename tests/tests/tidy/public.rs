//! How many public items the library documents.
//!
//! Items that only the other crates of this repository need are `#[doc(hidden)]`, or re-exported so
//! ([ADR 34](../../../docs/adr/0034-public-and-hidden-items.md)).

use std::collections::BTreeSet;

use crate::tree::{Source, Tree, Violation};

/// The most items that a user of the library has to read about.
const MAX_ITEMS: usize = 200;

const LIBRARY: &str = "crates/tidegate/src/";

pub(crate) fn the_library_documents_few_items(tree: &Tree) -> Vec<Violation> {
    let sources: Vec<&Source> =
        tree.rust().filter(|source| source.path.starts_with(LIBRARY)).collect();
    let mut hidden = Hidden::default();
    sources.iter().for_each(|source| hidden.collect(source));
    let documented: usize = sources.iter().map(|source| hidden.documented(source)).sum();
    let Some(first) = sources.first().filter(|_| documented > MAX_ITEMS) else { return Vec::new() };
    let advice =
        format!("{documented} documented public items, at most {MAX_ITEMS}: hide or drop some");
    vec![first.at(0, &advice)]
}

/// What is hidden from the documentation.
#[derive(Default)]
struct Hidden {
    names: BTreeSet<String>,
    /// Paths of modules, without `.rs`.
    modules: Vec<String>,
}

impl Hidden {
    fn collect(&mut self, source: &Source) {
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, line) in lines.iter().enumerate() {
            let Some((kind, name)) = item(line).filter(|_| is_hidden(&lines, number)) else {
                continue;
            };
            match kind {
                "use" => {
                    let statement: String = lines[number..].join(" ");
                    let statement = statement.split(';').next().unwrap_or_default();
                    let last = statement.rsplit("::").next().unwrap_or_default();
                    let words = last.split(|c: char| !c.is_alphanumeric() && c != '_');
                    self.names.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
                }
                "mod" => {
                    let folder = source.path.trim_end_matches(".rs").trim_end_matches("/lib");
                    self.modules.push(format!("{folder}/{name}"));
                }
                "struct" | "enum" | "trait" | "type" => drop(self.names.insert(name.to_owned())),
                _ => {}
            }
        }
    }

    fn documented(&self, source: &Source) -> usize {
        let path = source.path.trim_end_matches(".rs");
        let is_within = |module: &String| {
            path.strip_prefix(module.as_str())
                .is_some_and(|it| it.is_empty() || it.starts_with('/'))
        };
        if self.modules.iter().any(is_within) {
            return 0;
        }
        let lines: Vec<&str> = source.text.lines().collect();
        let (mut count, mut is_hidden_block) = (0, false);
        for (number, line) in lines.iter().enumerate() {
            if *line == "}" {
                is_hidden_block = false;
            } else if line.starts_with("impl") {
                let is_of_hidden = implementor(line).is_some_and(|it| self.names.contains(it));
                is_hidden_block = is_of_hidden || is_hidden(&lines, number);
            }
            let Some((kind, name)) = item(line) else { continue };
            let is_hidden_type =
                kind != "use" && !line.starts_with(' ') && self.names.contains(name);
            if !(is_hidden_block || is_hidden_type || is_hidden(&lines, number)) {
                count += 1;
            }
        }
        count
    }
}

/// Kind and name of a public item.
fn item(line: &str) -> Option<(&str, &str)> {
    let mut words =
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|it| !it.is_empty());
    if !line.trim_start().starts_with("pub ") {
        return None;
    }
    let (kind, name) = (words.nth(1)?, words.next().unwrap_or_default());
    match kind {
        "async" => Some(("fn", words.next()?)),
        "const" if name == "fn" => Some(("fn", words.next()?)),
        "fn" | "struct" | "enum" | "trait" | "const" | "mod" | "use" | "type" => Some((kind, name)),
        _ => None,
    }
}

/// Whether an attribute above hides the item.
fn is_hidden(lines: &[&str], number: usize) -> bool {
    let above = lines[..number].iter().rev().map(|line| line.trim_start());
    let mut above = above.take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    above.any(|line| line.contains("doc(hidden)"))
}

/// The type that an `impl` is of.
fn implementor(line: &str) -> Option<&str> {
    let mut depth = 0_usize;
    let rest = line.strip_prefix("impl")?;
    let end = rest.char_indices().find(|(_, c)| {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ => {}
        }
        *c == ' ' && depth == 0
    });
    let rest = &rest[end.map_or(0, |(at, _)| at)..];
    let rest = rest.rsplit(" for ").next()?;
    let path = rest.trim().split(['<', ' ']).next()?;
    path.rsplit("::").next()
}
