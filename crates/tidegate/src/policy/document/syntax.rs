//! Translates the parser's syntax errors into messages for the author of the file.

/// The error, and how to fix it where known.
pub(super) fn sentence(info: &str) -> String {
    let known = KNOWN.iter().find(|(part, _)| info.contains(part));
    known.map_or_else(|| format!("not valid YAML: {info}"), |(_, words)| (*words).to_owned())
}

/// A part of the parser's message, and its translation; the first match applies.
const KNOWN: [(&str, &str); 30] = [
    ("unexpected end of stream", "the quote that opens here is never closed"),
    ("unexpected document indicator", "the quote that opens here is not closed before --- or ..."),
    (
        "unknown escape character",
        "a \\ in \"…\" must be followed by a known escape: write \\\\ for one \\, or use '…'",
    ),
    ("expected hexadecimal number", "\\x, \\u and \\U need 2, 4 and 8 hexadecimal digits"),
    ("invalid Unicode character", "the escape in this text is not a valid character"),
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
    ("misplaced bracket", "the bracket that closes here was not opened"),
    (
        "indentation in flow construct",
        "the content of brackets must be indented further than the line that opens them",
    ),
    ("recursion limit exceeded", "lists and maps are nested deeper than 64 levels"),
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
        "a : is not allowed here: quote a text that contains one, or fix the indentation",
    ),
    ("mapping keys are not allowed", "a key is not allowed here: fix the indentation"),
    (
        "block sequence entries are not allowed",
        "a list item is not allowed here: put it on a separate line",
    ),
    (
        "simple key expect",
        "the line before this one is neither a key with a : nor part of a text: is a : missing?",
    ),
    ("invalid indentation", "the line is indented less than the block that it belongs to"),
    ("wrongly indented line", "the line is indented less than the first line of its text"),
    ("tab cannot", "a tab cannot indent: use spaces"),
    ("tabs disallowed", "a tab cannot indent: use spaces"),
    ("found a tab", "a tab cannot indent: use spaces"),
    ("start with a tab", "a tab cannot indent: use spaces"),
    ("unknown anchor", "the alias refers to an anchor that is not defined before it"),
    (
        "anchor or alias, did not find",
        "& and * need a name; put quotes around a text that begins with one",
    ),
    ("unexpected character", "a text cannot begin with this character: put quotes around it"),
    ("unprintable character", "a character that YAML does not allow"),
    ("comment intercepting", "a text over several lines cannot contain a comment"),
    ("expected node content", "a text, a list or a map is expected here"),
];
