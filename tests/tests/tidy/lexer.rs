//! Just enough of Rust's syntax to tell code from comments and strings.

/// One line of a source file, taken apart.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Line {
    /// The code, with the contents of strings and characters left out.
    pub(crate) code: String,
    /// The text of a `//` comment that is not documentation.
    pub(crate) comment: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Inside {
    Code,
    /// A block comment, nested this deep.
    Block(usize),
    Text,
    /// A raw string that ends with a quote and this many hashes.
    RawText(usize),
}

/// Takes a source file apart.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let mut inside = Inside::Code;
    text.lines().map(|line| take_apart(line, &mut inside)).collect()
}

/// The identifiers and numbers of a line of code.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn take_apart(line: &str, inside: &mut Inside) -> Line {
    let mut out = Line::default();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let mut taken = first.len_utf8();
        match *inside {
            Inside::Block(depth) if rest.starts_with("*/") => {
                taken = 2;
                *inside = if depth == 1 { Inside::Code } else { Inside::Block(depth - 1) };
            }
            Inside::Block(depth) if rest.starts_with("/*") => {
                taken = 2;
                *inside = Inside::Block(depth + 1);
            }
            Inside::Text if first == '\\' => {
                taken += rest[1..].chars().next().map_or(0, char::len_utf8);
            }
            Inside::Text if first == '"' => {
                out.code.push('"');
                *inside = Inside::Code;
            }
            Inside::RawText(hashes) if rest.starts_with(&raw_end(hashes)) => {
                out.code.push('"');
                taken = 1 + hashes;
                *inside = Inside::Code;
            }
            Inside::Block(_) | Inside::Text | Inside::RawText(_) => {}
            Inside::Code if rest.starts_with("//") => {
                let is_doc = rest.starts_with("///") || rest.starts_with("//!");
                out.comment = if is_doc { String::new() } else { rest[2..].trim().into() };
                return out;
            }
            Inside::Code if rest.starts_with("/*") => {
                taken = 2;
                *inside = Inside::Block(1);
            }
            Inside::Code => taken = take_code(rest, inside, &mut out.code),
        }
        rest = &rest[taken..];
    }
    out
}

/// Takes one character, one literal's opening, or one character literal; says how many bytes.
fn take_code(rest: &str, inside: &mut Inside, code: &mut String) -> usize {
    if let Some(hashes) = raw_start(rest).filter(|_| !ends_in_word(code)) {
        code.push('"');
        *inside = Inside::RawText(hashes);
        return rest.find('"').map_or(1, |quote| quote + 1);
    }
    if let Some(length) = character_literal(rest) {
        code.push_str("''");
        return length;
    }
    let first = rest.chars().next().unwrap_or(' ');
    if first == '"' {
        *inside = Inside::Text;
    }
    code.push(first);
    first.len_utf8()
}

fn ends_in_word(code: &str) -> bool {
    code.ends_with(|last: char| last.is_alphanumeric() || last == '_')
}

/// The number of hashes if a raw string starts here.
fn raw_start(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

fn raw_end(hashes: usize) -> String {
    format!("\"{}", "#".repeat(hashes))
}

/// The length of a character literal; a lifetime is none.
fn character_literal(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix('\'')?;
    if let Some(escape) = body.strip_prefix('\\') {
        // The escaped character may itself be a quote.
        let skip = escape.chars().next()?.len_utf8();
        return escape[skip..].find('\'').map(|end| 2 + skip + end + 1);
    }
    let length = body.chars().next()?.len_utf8();
    body[length..].starts_with('\'').then_some(length + 2)
}

#[test]
fn code_comments_and_strings_are_told_apart() {
    let code = |text: &str| lines(text).pop().map(|line| line.code).unwrap_or_default();
    assert_eq!(code(r#"let a = "x // \" y"; b"#), r#"let a = ""; b"#);
    assert_eq!(code("let a = r#\"f64 \" f32\"#; b"), "let a = \"\"; b");
    assert_eq!(code("f('\\'', 'x', &'a str)"), "f('', '', &'a str)");
    assert_eq!(code("a /* b /* c */ d */ e"), "a  e");
    assert_eq!(code("/* a\nb */ c"), " c");
    assert_eq!(code("\"a\nb\" c"), "\" c");
    let comment = |text: &str| lines(text).pop().map(|line| line.comment).unwrap_or_default();
    assert_eq!(comment("a; // why"), "why");
    assert_eq!(comment("/// what"), "");
    assert_eq!(comment("//! what"), "");
}
