//! The document, written as it goes: it stands on the path of every request over HTTP.

use tidegate_core::{Decision, Span};

use super::{LimitReport, Report, Standing};
use crate::digits;

impl Report<'_> {
    /// The document in JSON.
    pub fn json(&self) -> String {
        let mut text = String::with_capacity(160 + 240 * self.limits.len());
        self.write_json(&mut text);
        text
    }

    /// Adds the document to a text.
    pub fn write_json(&self, text: &mut String) {
        let decision = self.speaker().and_then(|limit| limit.decision.as_ref());
        text.push_str("{\"allowed\":");
        text.push_str(if self.is_allowed { "true" } else { "false" });
        numbers(text, decision);
        wait(text, self.retry_after, self.is_never());
        span(text, ",\"reset_after_ms\":", decision.map(|decision| decision.reset_after));
        span(text, ",\"delay_ms\":", Some(self.delay));
        text.push_str(",\"limits\":[");
        for (number, limit) in self.limits.iter().enumerate() {
            if number > 0 {
                text.push(',');
            }
            limit.write_json(text, self.binding == Some(number));
        }
        text.push_str("]}");
    }
}

impl Report<'_> {
    /// A denial in the form of RFC 9457, with the members that IETF's draft gives it before those of
    /// the document.
    pub fn problem_json(&self) -> String {
        let mut text = String::with_capacity(400 + 240 * self.limits.len());
        text.push_str(match self.is_unavailable {
            false => {
                "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
                 \"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
                 \"status\":429,\"violated-policies\":["
            }
            true => {
                "{\"type\":\"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity\",\
                 \"title\":\"Request cannot be satisfied due to temporary server capacity constraints\",\
                 \"status\":503,\"violated-policies\":["
            }
        });
        let denies = |limit: &&LimitReport<'_>| {
            let counts = matches!(limit.standing, Standing::Live | Standing::Quota);
            counts && limit.decision.is_some_and(|decision| !decision.is_allowed())
        };
        for (number, limit) in self.limits.iter().filter(denies).enumerate() {
            if number > 0 {
                text.push(',');
            }
            string(&mut text, limit.name);
        }
        text.push_str("],");
        let members = text.len();
        self.write_json(&mut text);
        // The document's own brace.
        text.remove(members);
        text
    }
}

impl LimitReport<'_> {
    fn write_json(&self, text: &mut String, binds: bool) {
        let decision = self.decision.as_ref();
        text.push_str("{\"name\":");
        string(text, self.name);
        text.push_str(",\"algorithm\":\"");
        text.push_str(self.algorithm.as_str());
        text.push_str("\",\"descriptor\":");
        digits::push(text, self.descriptor as u64);
        text.push_str(",\"standing\":\"");
        text.push_str(self.standing.as_str());
        text.push_str("\",\"binds\":");
        text.push_str(if binds { "true" } else { "false" });
        text.push_str(",\"allowed\":");
        text.push_str(if decision.is_none_or(Decision::is_allowed) { "true" } else { "false" });
        numbers(text, decision);
        let is_never = decision.is_some_and(Decision::is_never);
        wait(text, decision.and_then(Decision::retry_after), is_never);
        span(text, ",\"reset_after_ms\":", decision.map(|decision| decision.reset_after));
        span(text, ",\"delay_ms\":", decision.map(Decision::delay));
        for (key, told) in [(",\"why\":", &self.why), (",\"state\":", &self.state)] {
            if let Some(told) = told {
                text.push_str(key);
                string(text, told);
            }
        }
        text.push('}');
    }
}

fn numbers(text: &mut String, decision: Option<&Decision>) {
    let pairs = decision.map(|decision| (decision.limit, decision.remaining));
    for (key, number) in
        [(",\"limit\":", pairs.map(|it| it.0)), (",\"remaining\":", pairs.map(|it| it.1))]
    {
        text.push_str(key);
        match number {
            Some(number) => digits::push(text, number),
            None => text.push_str("null"),
        }
    }
}

/// That no wait helps is told only where it is so.
fn wait(text: &mut String, retry_after: Option<Span>, is_never: bool) {
    span(text, ",\"retry_after_ms\":", retry_after);
    if is_never {
        text.push_str(",\"never\":true");
    }
}

/// Milliseconds, rounded up: whoever waits so long has waited long enough.
fn span(text: &mut String, key: &str, span: Option<Span>) {
    text.push_str(key);
    match span {
        Some(span) => digits::push(text, span.as_micros().div_ceil(1_000)),
        None => text.push_str("null"),
    }
}

fn string(text: &mut String, value: &str) {
    text.push('"');
    if digits::is_plain(value) {
        text.push_str(value);
        text.push('"');
        return;
    }
    for letter in value.chars() {
        match letter {
            '"' | '\\' => text.extend(['\\', letter]),
            '\0'..=' ' if letter != ' ' => {
                const HEX: &[u8; 16] = b"0123456789abcdef";
                let code = letter as usize;
                text.push_str("\\u00");
                text.push(char::from(HEX[code >> 4]));
                text.push(char::from(HEX[code & 15]));
            }
            _ => text.push(letter),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped_where_they_must_be() {
        let mut text = String::new();
        string(&mut text, "a \"b\" \\ \u{1f}\n\u{7f}é");
        assert_eq!(text, "\"a \\\"b\\\" \\\\ \\u001f\\u000a\u{7f}é\"");
    }
}
