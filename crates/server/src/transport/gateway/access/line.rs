//! Lines of the access log, as text (`name=value`) or JSON.

use std::fmt::Write;
use std::sync::PoisonError;

use tidegate::Span;
use tidegate::concurrency::Class;
use tidegate::policy::Domain;

use super::{Answered, Entry};
use crate::observability::log::printable;
use crate::observability::utc::Utc;
use crate::settings::AccessFormat;

/// The most bytes of a method, a path and a user agent.
pub(super) const MAX_METHOD: usize = 32;
pub(super) const MAX_PATH: usize = 2_048;
const MAX_AGENT: usize = 256;

/// The status of a request whose client has gone before there was a response, as nginx writes it.
const CLIENT_GONE: u16 = 499;

/// A line under construction.
struct Line {
    text: String,
    is_json: bool,
}

/// The line of a request, with its end.
pub(super) fn write(entry: &Entry) -> String {
    let Entry { access, head, notes, answered, bytes, is_cut } = entry;
    let notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
    let duration = access.service.now().since(head.began);
    let status = answered.map_or(CLIENT_GONE, |it| it.status);
    let class = notes.class.map(|class| class_name(entry, class));
    let mut line = Line::new(access.format == AccessFormat::Json);
    line.text("time", &Utc(head.began).to_string());
    if let Some(client) = access.client {
        line.text("client", &client.to_string());
    }
    line.text("method", &head.method);
    line.text("path", &head.path);
    line.number("status", u64::from(status));
    line.number("bytes", *bytes);
    line.seconds("duration", duration);
    if let Some(Answered { after, .. }) = answered {
        line.seconds("head", *after);
    }
    let id = notes.request_id.as_ref().map(|id| String::from_utf8_lossy(id.as_bytes()));
    let agent = head.agent.as_ref().map(|agent| String::from_utf8_lossy(agent.as_bytes()));
    let agent = agent.as_deref().map(|agent| bounded(agent, MAX_AGENT));
    let reason = notes.reason.or(is_cut.then_some("cut"));
    for (name, value) in [
        ("upstream", notes.upstream.as_deref()),
        ("request_id", id.as_deref()),
        ("user_agent", agent),
        ("limit", notes.limit.as_deref()),
        ("class", class.as_deref()),
        ("reason", reason),
    ] {
        if let Some(value) = value {
            line.text(name, value);
        }
    }
    line.end()
}

/// The name of a class in the policy, or its rank.
fn class_name(entry: &Entry, class: Class) -> String {
    let policy = entry.access.service.policy();
    let is_meant = |domain: &&Domain| match &entry.access.domain {
        Some(name) => domain.name() == &**name,
        None => !domain.requests().is_empty(),
    };
    let name = policy.domains().find(is_meant).and_then(|domain| domain.classes().name(class));
    name.map_or_else(|| class.rank().to_string(), ToOwned::to_owned)
}

/// The first `most` bytes of a text, cut between characters.
pub(super) fn bounded(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl Line {
    fn new(is_json: bool) -> Self {
        let mut text = String::with_capacity(384);
        if is_json {
            text.push('{');
        }
        Self { text, is_json }
    }

    fn name(&mut self, name: &str) {
        let is_first = self.text.len() <= 1;
        if self.is_json {
            self.text.push_str(if is_first { "\"" } else { ",\"" });
            self.text.push_str(name);
            self.text.push_str("\":");
        } else {
            self.text.push_str(if is_first { "" } else { " " });
            self.text.push_str(name);
            self.text.push('=');
        }
    }

    /// A text. It is quoted in JSON, and if it contains characters that end a value.
    fn text(&mut self, name: &str, value: &str) {
        self.name(name);
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\=".contains(&byte);
        if !value.is_empty() && value.bytes().all(is_plain) {
            let quote = if self.is_json { "\"" } else { "" };
            self.text.push_str(quote);
            self.text.push_str(value);
            self.text.push_str(quote);
            return;
        }
        // Control characters are escaped first. Their backslashes are escaped again here, so that a
        // reader of the line gets the escapes.
        self.text.push('"');
        for c in printable(value).chars() {
            if matches!(c, '"' | '\\') {
                self.text.push('\\');
            }
            self.text.push(c);
        }
        self.text.push('"');
    }

    fn number(&mut self, name: &str, value: u64) {
        self.name(name);
        // Writing to a string does not fail.
        let _ = write!(self.text, "{value}");
    }

    fn seconds(&mut self, name: &str, span: Span) {
        self.name(name);
        let micros = span.as_micros();
        let _ = write!(self.text, "{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    }

    fn end(mut self) -> String {
        self.text.push_str(if self.is_json { "}\n" } else { "\n" });
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(is_json: bool, value: &str) -> String {
        let mut line = Line::new(is_json);
        line.text("path", value);
        line.number("status", 200);
        line.seconds("duration", Span::from_micros(1_000_020));
        line.end()
    }

    #[test]
    fn values_cannot_end_a_line_or_pose_as_others() {
        assert_eq!(line(false, "/a?"), "path=/a? status=200 duration=1.000020\n");
        let odd = "a\" status=500\r\n\u{1b}[31m\\\u{202e}é";
        let text = "path=\"a\\\" status=500\\\\r\\\\n\\\\u{1b}[31m\\\\\\\\u{202e}é\" status=200 ";
        assert_eq!(line(false, odd), format!("{text}duration=1.000020\n"));
        let json: serde_json::Value = serde_json::from_str(&line(true, odd)).unwrap();
        assert_eq!(json["path"], "a\" status=500\\r\\n\\u{1b}[31m\\\\u{202e}é");
        assert_eq!((&json["status"], &json["duration"]), (&200.into(), &1.000_02.into()));
        assert_eq!(line(false, ""), "path=\"\" status=200 duration=1.000020\n");
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(bounded("ééé", 3), "é");
        assert_eq!(bounded("abc", 9), "abc");
    }
}
