//! `tidegate explain`: the limits of a request, and their state.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::Value;
use tidegate::Timestamp;
use tidegate::policy::length_in_words;
use tidegate::verdict::{Part, Standing};
use tidegate_core::{Detail, Explanation};
use tidegate_server::printable;

use crate::args::Explain;
use crate::check::{indented, line};
use crate::daemon;
use crate::decision_args::{Findings, Wish};
use crate::terminal::Terminal;

/// Prints every limit that matches, the reason, its state, and which one binds.
pub(crate) fn explain(args: &Explain, terminal: Terminal) -> ExitCode {
    let explained = match &args.question.url {
        Some(url) => daemon::ask(url, "/v1/explain", &args.question).map(|answered| {
            match args.question.json {
                true => format!("{answered:#}\n"),
                false => answered_text(&answered, terminal),
            }
        }),
        None => args.question.ask(Wish::Explain).and_then(|findings| match args.question.json {
            true => Ok(indented(&findings.verdict)? + "\n"),
            false => Ok(text(&findings, terminal)),
        }),
    };
    match explained {
        Ok(text) => {
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(problem) => {
            let _ = writeln!(io::stderr(), "error: {problem}");
            ExitCode::from(2)
        }
    }
}

fn text(findings: &Findings, terminal: Terminal) -> String {
    let verdict = &findings.verdict;
    let mut text = format!("{}\n", terminal.bold(&printable(&line(verdict))));
    if let Some(route) = &findings.route {
        text.push_str(&terminal.wrap("  ", &printable(route)));
    }
    for (number, entries) in findings.descriptors.iter().enumerate() {
        let written: Vec<String> =
            entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let _ = writeln!(text, "\n{}", terminal.bold(&printable(&written.join(", "))));
        let parts = verdict.parts().enumerate();
        let parts: Vec<(usize, Part<'_>)> =
            parts.filter(|(_, part)| part.descriptor == number).collect();
        if parts.is_empty() {
            let why = unmatched(entries, findings.depths[number]);
            text.push_str(&terminal.wrap("  ", &printable(&why)));
        }
        for (place, part) in parts {
            let binds = if verdict.binding() == Some(place) { " <- binds" } else { "" };
            let name = terminal.bold(&printable(part.name));
            let _ = writeln!(text, "  {name}{}", terminal.warning(binds));
            let mut push =
                |sentence: &str| text.push_str(&terminal.wrap("    ", &printable(sentence)));
            push(part.reason.unwrap_or_default());
            push(role(part.standing));
            if let Some(explanation) = part.state {
                push(&state(verdict.at(), explanation));
            }
            if let Some(state) = part.state
                && state.remaining < state.limit
                && matches!(state.detail, Detail::Bucket { .. })
            {
                push(&if_changed(state.limit - state.remaining, state.limit));
            }
        }
    }
    text
}

/// Why no limit applies.
fn unmatched(entries: &[(String, String)], depth: usize) -> String {
    match entries.get(depth) {
        Some((key, value)) => {
            format!("no limit: no rule at this level has the key {key} and the value {value}")
        }
        None => "no limit: the matching rule has none of its own".into(),
    }
}

/// The state of a key at the time of the verdict.
fn state(now: Timestamp, state: &Explanation) -> String {
    let when = match state.next_allowed_at.map(|at| at.since(now)) {
        None => "one more is never allowed".to_owned(),
        Some(wait) if wait.is_zero() => "one more is allowed now".into(),
        Some(wait) => format!("one more is allowed in {}", length_in_words(wait)),
    };
    let back = match state.idle_at.since(now) {
        rest if rest.is_zero() => "no debt".to_owned(),
        rest => format!("full again in {}", length_in_words(rest)),
    };
    let (remaining, limit) = (state.remaining, state.limit);
    format!("{remaining} of {limit} left; {when}; {back}")
}

/// The effect of a changed limit on a partly used bucket.
fn if_changed(used: u64, limit: u64) -> String {
    let (twice_used, twice) = (used.saturating_mul(2), limit.saturating_mul(2));
    format!(
        "a changed limit keeps the share used: {used} of {limit} used becomes {twice_used} of {twice} \
         if the limit is doubled"
    )
}

/// A daemon's explanation.
fn answered_text(answered: &Value, terminal: Terminal) -> String {
    let mut text = format!("{}\n", terminal.bold(&printable(&daemon::line(answered))));
    let limits = answered["limits"].as_array().map(Vec::as_slice).unwrap_or_default();
    if limits.is_empty() {
        text.push_str("  no limit: no rule of the domain has these keys and values\n");
    }
    for limit in limits {
        let binds = if limit["binds"] == true { " <- binds" } else { "" };
        let name = terminal.bold(&printable(limit["name"].as_str().unwrap_or_default()));
        let _ = writeln!(text, "\n  {name}{}", terminal.warning(binds));
        let standing = limit["standing"].as_str().and_then(Standing::named).map(role);
        for line in [limit["why"].as_str(), standing, limit["state"].as_str()].into_iter().flatten()
        {
            text.push_str(&terminal.wrap("    ", &printable(line)));
        }
    }
    text
}

const fn role(standing: Standing) -> &'static str {
    match standing {
        Standing::Live => "enforced",
        Standing::Quota => "enforced only if all quotas of the request are exhausted",
        Standing::Shadow => "shadow: counted, denies nothing",
        Standing::Beside => "shadow of the limit above, with its own state",
        Standing::Unlimited => "allows everything",
        Standing::Replaced => "replaced by another limit of this request",
        Standing::Skipped => "skipped: this call cannot release what it takes",
        Standing::Off => "switched off",
        _ => "",
    }
}
