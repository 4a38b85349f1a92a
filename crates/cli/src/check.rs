//! `tidegate check`: decides one request.

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate::Verdict;
use tidegate::policy::length_in_words;
use tidegate_server::printable;

use crate::args::Check;
use crate::daemon;
use crate::decision_args::Wish;

/// Prints the decision. The exit status tells whether the request is allowed.
pub(crate) fn check(args: &Check) -> ExitCode {
    match decided(args) {
        Ok((is_allowed, text)) => {
            let _ = writeln!(io::stdout(), "{text}");
            if is_allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(problem) => {
            let _ = writeln!(io::stderr(), "error: {problem}");
            ExitCode::from(2)
        }
    }
}

/// The verdict and its text.
fn decided(args: &Check) -> Result<(bool, String), String> {
    let json = args.question.json;
    if let Some(url) = &args.question.url {
        let answered = daemon::ask(url, "/v1/check", &args.question)?;
        let text = if json { format!("{answered:#}") } else { printable(&daemon::line(&answered)) };
        return Ok((answered["allowed"] == true, text));
    }
    let verdict = args.question.ask(Wish::Check)?.verdict;
    let text = if json { indented(&verdict)? } else { printable(&line(&verdict)) };
    Ok((verdict.is_allowed(), text))
}

/// The JSON document, indented.
pub(crate) fn indented(verdict: &Verdict) -> Result<String, String> {
    let document: serde_json::Value =
        serde_json::from_str(&verdict.json()).map_err(|error| error.to_string())?;
    Ok(format!("{document:#}"))
}

/// The verdict in one line.
pub(crate) fn line(verdict: &Verdict) -> String {
    let outcome = if verdict.is_allowed() { "allowed" } else { "denied" };
    let Some(strictest) = verdict.strictest() else {
        return format!("{outcome}: no limit applies");
    };
    let (remaining, limit) = (verdict.remaining(), verdict.limit());
    let mut line = format!("{outcome}: {remaining} of {limit} left under {}", strictest.name);
    if !verdict.delay().is_zero() {
        line += &format!("; wait {} before starting", length_in_words(verdict.delay().into()));
    }
    if verdict.is_never() {
        line += "; no wait helps: the cost is above the limit's capacity";
    } else if let Some(wait) = verdict.retry_after() {
        line += &format!("; try again after {}", length_in_words(wait.into()));
    }
    line
}
