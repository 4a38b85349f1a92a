//! Rules about words: prose has named subjects, and citations name something in the repository.

use crate::tree::{Source, Tree, Violation};

/// Number of lines with [`VAGUE`] words that the crates and the documents may have, all together.
pub(crate) const ALLOWED_IN_CODE: usize = 0;
pub(crate) const ALLOWED_IN_DOCUMENTS: usize = 0;

/// Words without a named subject, and phrases that no reader searches for.
const VAGUE: [&str; 10] = [
    "whoever",
    "whomever",
    "whosever",
    "whom",
    "somebody",
    "nobody",
    "everybody",
    "anybody",
    "come by",
    "so-manieth",
];

/// Folders whose Rust files are held to the rule.
const CODE: [&str; 6] = ["bench/", "crates/", "examples/", "fuzz/", "tests/", "xtask/"];

/// Documents that quote the words, or that are printed from code outside of [`CODE`].
const EXEMPT: [&str; 2] = ["CONTRIBUTING.md", "docs/reference/policy.md"];

/// Prefixes of names such as `UTF-16` that are no requirement codes.
const STANDARDS: [&str; 9] = ["CRC", "FNV", "HTTP", "RFC", "RESP", "SHA", "TLS", "UTF", "ISO"];

pub(crate) fn prose_names_its_subjects(tree: &Tree) -> Vec<Violation> {
    let code = tree
        .rust()
        .filter(|source| !source.is_tidy() && CODE.iter().any(|it| source.path.starts_with(it)));
    let documents = tree.markdown().filter(|source| {
        let is_document = source.path.starts_with("docs/") || !source.path.contains('/');
        is_document && !EXEMPT.contains(&source.path.as_str())
    });
    let mut found = beyond(ALLOWED_IN_CODE, code);
    found.extend(beyond(ALLOWED_IN_DOCUMENTS, documents));
    found
}

/// The lines with vague words, if there are more than allowed.
fn beyond<'a>(allowed: usize, sources: impl Iterator<Item = &'a Source>) -> Vec<Violation> {
    let mut found = Vec::new();
    for source in sources {
        for (number, line) in source.text.lines().enumerate() {
            // Names of tests are prose, too.
            let line = line.to_lowercase().replace('_', " ");
            if let Some(word) = VAGUE.into_iter().find(|word| has_word(&line, word)) {
                found.push(source.at(number, format!("`{word}`: name the subject")));
            }
        }
    }
    if found.len() > allowed { found } else { Vec::new() }
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let is_letter = char::is_alphanumeric;
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    })
}

/// `ADR 7` has a file, `F2` a row of the failure table, `L7` a line in the list of laws; numbered decisions
/// and requirement codes are in no document.
pub(crate) fn citations_resolve(tree: &Tree) -> Vec<Violation> {
    let is_prose = |source: &&Source| {
        let name = source.path.as_str();
        [".rs", ".md", ".lua", ".yaml"].iter().any(|end| name.ends_with(end)) && !source.is_tidy()
    };
    let mut found = Vec::new();
    for source in tree.sources.iter().filter(is_prose) {
        for (number, line) in source.text.lines().enumerate() {
            let comments = if source.path.ends_with(".rs") { comment(line) } else { line };
            if let Some(citation) = dangling(tree, comments) {
                let advice = format!("`{citation}` is in no document: state the requirement");
                found.push(source.at(number, advice));
            }
        }
    }
    found
}

/// The comment of a line of Rust; empty if it has none.
fn comment(line: &str) -> &str {
    line.find("//").map_or("", |at| &line[at..])
}

/// The first citation that leads nowhere.
fn dangling(tree: &Tree, text: &str) -> Option<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut numbered = words.windows(2).filter_map(|pair| {
        let noun = pair[0].trim_start_matches(|c: char| !c.is_alphanumeric());
        leading_number(pair[1]).map(|number| (noun, number))
    });
    let is_dangling = |(noun, number): &(&str, &str)| match noun.to_lowercase().as_str() {
        "decision" | "decisions" | "requirement" | "requirements" => true,
        "adr" => !has_record(tree, number),
        _ => false,
    };
    let by_number = numbered.find(is_dangling);
    by_number.map(|(noun, number)| format!("{noun} {number}")).or_else(|| {
        let mut codes = text.split(|c: char| !c.is_alphanumeric() && c != '-');
        codes.find(|code| is_dangling_code(tree, code)).map(ToOwned::to_owned)
    })
}

/// The whole number that a word starts with; not that of `4.6` or `2nd`.
fn leading_number(word: &str) -> Option<&str> {
    let end = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, rest) = word.split_at(end);
    let mut after = rest.chars();
    let goes_on = match after.next() {
        Some('.') => after.next().is_some_and(char::is_alphanumeric),
        next => next.is_some_and(char::is_alphanumeric),
    };
    (!number.is_empty() && !goes_on).then_some(number)
}

fn has_record(tree: &Tree, number: &str) -> bool {
    tree.paths().any(|path| path.starts_with(&format!("docs/adr/{number:0>4}-")))
}

fn is_dangling_code(tree: &Tree, word: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((prefix, number)) = word.split_once('-') {
        let is_code = prefix.len() >= 2 && prefix.bytes().all(|b| b.is_ascii_uppercase());
        return is_code && number.len() == 2 && is_digits(number) && !STANDARDS.contains(&prefix);
    }
    let cites =
        |path: &str, text: String| tree.find(path).is_some_and(|it| it.text.contains(&text));
    match word.split_at_checked(1) {
        Some(("F", id)) if is_digits(id.trim_end_matches(|c: char| c.is_ascii_lowercase())) => {
            !cites("tests/src/chaos/case.rs", format!("\"{word}\""))
        }
        Some(("L", number)) if is_digits(number) => {
            !cites("ARCHITECTURE.md", format!("| {word} |"))
        }
        _ => false,
    }
}
