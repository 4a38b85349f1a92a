//! The parser's words for what is not YAML, in words for whoever wrote the file.

/// What is wrong, and where known what to do.
pub(super) fn sentence(info: &str) -> String {
    let known = KNOWN.iter().find(|(part, _)| info.contains(part));
    known.map_or_else(|| format!("not valid YAML: {info}"), |(_, words)| (*words).to_owned())
}

/// A part of what the parser says; the first that fits counts.
const KNOWN: [(&str, &str); 30] = [
    ("unexpected end of stream", "the quote that opens here is never closed"),
    ("unexpected document indicator", "the quote that opens here is not closed before --- or ..."),
    (
        "unknown escape character",
        "a \\ in \"…\" must be followed by a known escape: write \\\\ for one \\, or use '…'",
    ),
    ("expected hexadecimal number", "\\x, \\u and \\U need 2, 4 and 8 hexadecimal digits"),
    ("invalid Unicode character", "the escape in this text stands for no character"),
    (
        "trailing content after double-quoted",
        "a quoted text must be followed by the end of the line, a comma, a bracket or a colon",
    ),
    (
        "indentation in quoted scalar",
        "the quote that opens here is not closed, or the lines of its text are not indented",
    ),
    ("expected ',' or ']'", "the list in [ ] lacks a comma or its ] here"),
    ("expected ',' or '}'", "the map in { } lacks a comma or its } here"),
    ("misplaced bracket", "a bracket is closed here that was not opened"),
    (
        "indentation in flow construct",
        "what is in brackets must be indented further than the line that opens them",
    ),
    ("recursion limit exceeded", "more than 64 lists and maps inside one another"),
    (
        "did not find expected key",
        "a key is expected here: is the line indented as the others are?",
    ),
    (
        "did not find expected '-'",
        "an item that begins with - is expected here: is the line indented as the others are?",
    ),
    (
        "mapping values are not allowed",
        "a : cannot stand here: put quotes around a text that holds one, or fix the indentation",
    ),
    ("mapping keys are not allowed", "a key cannot stand here: fix the indentation"),
    (
        "block sequence entries are not allowed",
        "a list item cannot begin here: put it on a line of its own",
    ),
    (
        "simple key expect",
        "the line before this one is neither a key with a : nor part of a text: is a : missing?",
    ),
    ("invalid indentation", "the line is indented less than what it belongs to"),
    ("wrongly indented line", "the line is indented less than the first line of its text"),
    ("tab cannot", "a tab cannot indent: use spaces"),
    ("tabs disallowed", "a tab cannot indent: use spaces"),
    ("found a tab", "a tab cannot indent: use spaces"),
    ("start with a tab", "a tab cannot indent: use spaces"),
    ("unknown anchor", "the alias refers to an anchor that is not set before it"),
    (
        "anchor or alias, did not find",
        "& and * need a name; put quotes around a text that begins with one",
    ),
    ("unexpected character", "a text cannot begin with this character: put quotes around it"),
    ("unprintable character", "a character that no YAML may hold"),
    ("comment intercepting", "a text over several lines cannot have a comment between them"),
    ("expected node content", "a text, a list or a map is expected here"),
];
