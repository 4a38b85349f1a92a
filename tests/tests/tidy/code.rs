//! Rules about Rust code, line by line.

use crate::lexer::{self, Line, words};
use crate::tree::{Source, Tree, Violation};

pub(crate) fn identifiers_are_words_of_the_domain(tree: &Tree) -> Vec<Violation> {
    each_line(tree, |_, line| {
        let words: Vec<&str> = words(&line.code).collect();
        for pair in words.windows(2) {
            let banned = match pair[0] {
                "struct" | "enum" | "trait" | "type" | "union" => is_vague_type(pair[1]),
                "mod" | "fn" => is_vague_name(pair[1]),
                _ => false,
            };
            if banned {
                return Some(format!("`{}` names no thing: use a word of the glossary", pair[1]));
            }
        }
        let is_public = words.first() == Some(&"pub");
        let function = words.windows(2).find(|pair| pair[0] == "fn").map(|pair| pair[1]);
        let getter = function.filter(|name| is_public && name.starts_with("get_"))?;
        Some(format!("`{getter}`: name it by what it returns, without get_"))
    })
}

/// Judges a `CamelCase` name.
fn is_vague_type(name: &str) -> bool {
    let mut parts: Vec<String> = Vec::new();
    for c in name.chars() {
        match parts.last_mut() {
            Some(part) if !c.is_uppercase() => part.push(c),
            _ => parts.push(c.into()),
        }
    }
    let is_vague = |part: &String| {
        matches!(part.as_str(), "Manager" | "Helper" | "Helpers" | "Util" | "Utils" | "Base")
    };
    parts.iter().any(is_vague)
        || parts.last().is_some_and(|last| last == "Impl")
        || parts.first().is_some_and(|first| first == "My")
}

/// Judges a `snake_case` name.
fn is_vague_name(name: &str) -> bool {
    let is_vague =
        |part| matches!(part, "manager" | "helper" | "helpers" | "util" | "utils" | "impl" | "my");
    name.split('_').any(is_vague)
}

pub(crate) fn allowances_give_a_reason(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.rust().filter(|source| !source.is_tidy()) {
        let lines = lexer::lines(&source.text);
        for (number, line) in lines.iter().enumerate() {
            let code = line.code.replace(' ', "");
            if code.contains("deny(warnings)") {
                found
                    .push(source.at(number, "a new compiler must not break users: only CI denies"));
            }
            if !["[allow(", "[expect("].iter().any(|start| code.contains(start)) {
                continue;
            }
            let attribute = lines[number..].iter().map(|line| line.code.as_str());
            let end = attribute.clone().position(|code| code.contains(")]")).unwrap_or(0);
            if !attribute.take(end + 1).any(|code| code.contains("reason")) {
                found.push(source.at(number, "say why, with reason = \"…\""));
            }
        }
    }
    found
}

pub(crate) fn loose_ends_name_an_issue(tree: &Tree) -> Vec<Violation> {
    let is_code = |source: &&Source| {
        let prose = [".md", ".lock"].iter().any(|end| source.path.ends_with(end));
        !prose && !source.path.starts_with("LICENSE") && !source.is_tidy()
    };
    let mut found = Vec::new();
    for source in tree.sources.iter().filter(is_code) {
        for (number, line) in source.text.lines().enumerate() {
            let is_loose =
                words(line).any(|word| matches!(word, "TODO" | "FIXME" | "XXX" | "HACK"));
            if is_loose && !names_an_issue(line) {
                found.push(source.at(number, "name the issue, as in (#12), or do it now"));
            }
        }
    }
    found
}

fn names_an_issue(line: &str) -> bool {
    line.split('#').skip(1).any(|after| after.starts_with(|c: char| c.is_ascii_digit()))
}

pub(crate) fn no_code_is_left_unwritten(tree: &Tree) -> Vec<Violation> {
    each_line(tree, |_, line| {
        let unwritten = ["todo!", "unimplemented!"];
        let call = unwritten.into_iter().find(|call| line.code.contains(call))?;
        Some(format!("{call} panics: write it, or leave the item out"))
    })
}

pub(crate) fn no_code_is_commented_out(tree: &Tree) -> Vec<Violation> {
    each_line(tree, |_, line| {
        is_code(&line.comment).then(|| "delete it, git remembers; or say why in a sentence".into())
    })
}

/// Code ends like code and has something that prose has not.
fn is_code(comment: &str) -> bool {
    let starts = ["let ", "use ", "pub ", "fn ", "return ", "impl ", "struct ", "#[", "mod "];
    let ends = [";", "{", "}", "},", ")?", "),"].iter().any(|end| comment.ends_with(end));
    let has_syntax =
        ["(", " = ", "::", "!(", "=>", "+= "].iter().any(|part| comment.contains(part));
    let starts_so = starts.iter().any(|start| comment.starts_with(start));
    (ends && (has_syntax || starts_so)) || comment.starts_with("#[") || comment == "}"
}

pub(crate) fn tests_do_not_sleep(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    // Programs that tests start may pace themselves.
    let programs = ["tests/src/bin/", "tests/outside/"];
    let is_program =
        |source: &&Source| programs.iter().any(|folder| source.path.starts_with(folder));
    let sources = tree.rust().filter(|source| !source.is_tidy() && !is_program(source));
    for source in sources.filter(|source| !has_paused_time(source)) {
        let lines = lexer::lines(&source.text);
        for (number, line) in lines.iter().enumerate().skip(source.tests_begin()) {
            let calls = line.code.match_indices("sleep(").any(|(at, _)| {
                let before = &line.code[..at];
                // A method of that name is a definition, not a call.
                !before.ends_with("fn ")
                    && !before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
            });
            if calls {
                found.push(source.at(number, "own the time (ManualClock), or wait on a condition"));
            }
        }
    }
    found
}

/// Whether a file tests in paused time: a sleep moves it and takes none, and an instant is that of the test.
fn has_paused_time(source: &Source) -> bool {
    source.text.contains("start_paused = true")
}

pub(crate) fn only_the_clock_reads_time(tree: &Tree) -> Vec<Violation> {
    each_line(tree, |source, line| {
        let is_library = source.path.starts_with("crates/") && source.path.contains("/src/");
        // The clock decides by time; the others only measure how long a server or a node is silent.
        let readers = [
            "crates/tidegate/src/clock.rs",
            "crates/tidegate/src/store/redis/registry.rs",
            "crates/tidegate/src/store/redis/settling.rs",
            "crates/tidegate/src/store/redis/wire/deadline.rs",
        ];
        let is_simulated = source.path.ends_with("_tests.rs") && has_paused_time(source);
        if !is_library || is_simulated || readers.contains(&&*source.path) {
            return None;
        }
        let reads = ["Instant::now", "SystemTime::now", "quanta::", ".elapsed()"];
        let call = reads.into_iter().find(|call| line.code.contains(call))?;
        Some(format!("`{call}` reads time: take `now`, only clock.rs reads it"))
    })
}

pub(crate) fn the_core_has_no_floats(tree: &Tree) -> Vec<Violation> {
    each_line(tree, |source, line| {
        let is_float = source.path.starts_with("crates/core/") && has_float(&line.code);
        is_float.then(|| "a float rounds: use whole microseconds and fractions".into())
    })
}

fn has_float(code: &str) -> bool {
    let names_type = words(code).any(|word| {
        word.ends_with("f64") && word.trim_end_matches("f64").chars().all(|c| c.is_ascii_digit())
            || word.ends_with("f32")
                && word.trim_end_matches("f32").chars().all(|c| c.is_ascii_digit())
    });
    let has_literal = code.match_indices('.').any(|(at, _)| {
        let digits_before = code[..at].trim_end_matches(|c: char| c.is_ascii_digit() || c == '_');
        let is_number = digits_before.len() < at
            // Not a field of a tuple, nor part of a name.
            && !digits_before.ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '.');
        is_number && code[at + 1..].starts_with(|c: char| c.is_ascii_digit())
    });
    names_type || has_literal
}

/// Judges every line of Rust but those of the tidy test itself.
fn each_line(tree: &Tree, judge: impl Fn(&Source, &Line) -> Option<String>) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in tree.rust().filter(|source| !source.is_tidy()) {
        for (number, line) in lexer::lines(&source.text).iter().enumerate() {
            if let Some(advice) = judge(source, line) {
                found.push(source.at(number, advice));
            }
        }
    }
    found
}
