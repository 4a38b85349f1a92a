//! Errors for invalid JSON bodies: what is wrong, where, and what to send.

use serde_json::error::{Category, Error};
use tidegate::policy::nearest;

/// The error of a body, with line and column.
pub(crate) fn unreadable(error: &Error, body: &[u8], example: &str) -> String {
    if body.iter().all(u8::is_ascii_whitespace) {
        return format!("the body is empty; send JSON such as {example}");
    }
    let place = format!("line {}, column {} of the body", error.line(), error.column().max(1));
    match error.classify() {
        Category::Eof => format!("{place}: the JSON ends too early; send JSON such as {example}"),
        Category::Syntax | Category::Io => {
            format!("{place}: this is not JSON; send JSON such as {example}")
        }
        Category::Data => format!("{place}: {}", in_words(&without_position(error))),
    }
}

/// The parser's message without its position.
fn without_position(error: &Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// The parser's message as "expected …, found …", with a suggestion for an unknown field.
fn in_words(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field `")
        && let Some((name, known)) = rest.split_once("`, expected ")
    {
        let fields: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let advice = match nearest(name, &fields) {
            Some(meant) => format!("did you mean {meant:?}?"),
            None => format!("expected one of {}", fields.join(", ")),
        };
        return format!("unknown field {name:?}; {advice}");
    }
    for begin in ["invalid type: ", "invalid value: "] {
        if let Some(rest) = message.strip_prefix(begin)
            && let Some((found, expected)) = rest.split_once(", expected ")
        {
            return format!("expected {expected}, found {found}");
        }
    }
    message.to_owned()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Limit {
        #[serde(rename = "key")]
        _key: String,
        #[serde(rename = "cost", default)]
        _cost: u64,
    }

    #[test]
    fn an_invalid_body_is_reported_with_position_and_example() {
        for (body, expected) in [
            ("", "the body is empty; send JSON such as {}"),
            (
                "{\"key\": \"a\"",
                "line 1, column 11 of the body: the JSON ends too early; send JSON such as {}",
            ),
            ("{key: 1}", "line 1, column 2 of the body: this is not JSON; send JSON such as {}"),
            ("key=a", "line 1, column 1 of the body: this is not JSON; send JSON such as {}"),
            (
                "{\n \"kee\": 1}",
                "line 2, column 6 of the body: unknown field \"kee\"; did you mean \"key\"?",
            ),
            (
                "{\"colour\": 1}",
                "line 1, column 9 of the body: unknown field \"colour\"; expected one of key, cost",
            ),
            ("{\"key\": 7}", "line 1, column 9 of the body: expected a string, found integer `7`"),
            ("{\"cost\": 7}", "line 1, column 11 of the body: missing field `key`"),
        ] {
            let error = serde_json::from_str::<Limit>(body).unwrap_err();
            assert_eq!(unreadable(&error, body.as_bytes(), "{}"), expected);
        }
    }
}
