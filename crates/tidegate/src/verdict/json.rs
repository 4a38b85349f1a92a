//! A verdict in JSON, written without a tree of values: every request over HTTP gets one.

use tidegate_core::{Decision, Span};

use super::{Part, Verdict, digits, whole_millis};

impl Verdict {
    /// The verdict and its parts in JSON.
    ///
    /// ```
    /// # use tidegate::{Limit, Limiter, Rate};
    /// let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(100)).build()?);
    /// assert!(limiter.report("user:17", 1).json().starts_with("{\"allowed\":true,\"limit\":100,"));
    /// # Ok::<(), tidegate::InvalidLimit>(())
    /// ```
    pub fn json(&self) -> String {
        let mut text = String::with_capacity(160 + 240 * self.parts().len());
        self.write_json(&mut text);
        text
    }

    fn write_json(&self, text: &mut String) {
        let decision = self.binding().map(|_| self.decision());
        text.push_str("{\"allowed\":");
        text.push_str(if self.is_allowed() { "true" } else { "false" });
        numbers(text, decision);
        wait(text, self.decision().retry_after(), self.is_never());
        span(text, ",\"reset_after_ms\":", decision.map(|decision| decision.reset_after));
        span(text, ",\"delay_ms\":", Some(self.decision().delay()));
        text.push_str(",\"limits\":[");
        for (number, part) in self.parts().enumerate() {
            if number > 0 {
                text.push(',');
            }
            part.write_json(text, self.binding() == Some(number));
        }
        text.push_str("]}");
    }

    /// A denial as problem details (RFC 9457), with the members of the IETF draft and those of
    /// [`Verdict::json`].
    pub fn problem_json(&self) -> String {
        let mut text = String::with_capacity(400 + 240 * self.parts().len());
        let problem = match self.is_unavailable() {
            false => Problem::QuotaExceeded,
            true => Problem::ReducedCapacity,
        };
        problem.open(&mut text);
        text.push_str(",\"violated-policies\":[");
        let denying = self.parts().filter(|part| part.counts() && part.denies());
        for (number, part) in denying.enumerate() {
            if number > 0 {
                text.push(',');
            }
            string(&mut text, part.name);
        }
        text.push_str("],");
        let members = text.len();
        self.write_json(&mut text);
        // The brace that opens the members of `json`.
        text.remove(members);
        text
    }
}

/// The reason that a request was not served, as a problem type of the IETF draft or of RFC 9457.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub enum Problem {
    /// A limit is exhausted (429).
    QuotaExceeded,
    /// The server sheds load, or its store is unavailable (503).
    ReducedCapacity,
    /// The request is ambiguous (400).
    BadRequest,
    /// The limits of this server are misconfigured (500).
    Misconfigured,
}

impl Problem {
    /// The status of the response.
    pub const fn status(self) -> u16 {
        match self {
            Self::QuotaExceeded => 429,
            Self::ReducedCapacity => 503,
            Self::BadRequest => 400,
            Self::Misconfigured => 500,
        }
    }

    /// The problem in words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::QuotaExceeded => {
                "Request cannot be satisfied as assigned quota has been exceeded"
            }
            Self::ReducedCapacity => {
                "Request cannot be satisfied due to temporary server capacity constraints"
            }
            Self::BadRequest => "Bad Request",
            Self::Misconfigured => "Internal Server Error",
        }
    }

    const fn kind(self) -> &'static str {
        match self {
            Self::QuotaExceeded => "https://iana.org/assignments/http-problem-types#quota-exceeded",
            Self::ReducedCapacity => {
                "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
            }
            Self::BadRequest | Self::Misconfigured => "about:blank",
        }
    }

    /// Problem details (RFC 9457) without a verdict.
    ///
    /// ```
    /// use tidegate::verdict::Problem;
    ///
    /// let text = Problem::BadRequest.json("two values of x-user");
    /// assert!(text.ends_with(r#""status":400,"detail":"two values of x-user"}"#));
    /// ```
    pub fn json(self, detail: &str) -> String {
        let mut text = String::with_capacity(240 + detail.len());
        self.open(&mut text);
        text.push_str(",\"detail\":");
        string(&mut text, detail);
        text.push('}');
        text
    }

    /// Writes the members that every problem has, and leaves the object open.
    fn open(self, text: &mut String) {
        text.push_str("{\"type\":\"");
        text.push_str(self.kind());
        text.push_str("\",\"title\":\"");
        text.push_str(self.title());
        text.push_str("\",\"status\":");
        digits::push(text, self.status().into());
    }
}

impl Part<'_> {
    fn write_json(&self, text: &mut String, binds: bool) {
        let decision = self.decision;
        text.push_str("{\"name\":");
        string(text, self.name);
        text.push_str(",\"algorithm\":\"");
        text.push_str(self.algorithm);
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
        if let Some(reason) = self.reason {
            text.push_str(",\"why\":");
            string(text, reason);
        }
        if let Some(state) = self.state {
            text.push_str(",\"state\":");
            string(text, &state.to_string());
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

/// Writes the wait, and `never` if no wait helps.
fn wait(text: &mut String, retry_after: Option<Span>, is_never: bool) {
    span(text, ",\"retry_after_ms\":", retry_after);
    if is_never {
        text.push_str(",\"never\":true");
    }
}

/// Whole milliseconds, or `null`.
fn span(text: &mut String, key: &str, span: Option<Span>) {
    text.push_str(key);
    match span {
        Some(span) => digits::push(text, whole_millis(span)),
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
