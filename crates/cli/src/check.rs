//! `tidegate check`: decides one request.

use std::io::{self, Write};
use std::process::ExitCode;

use tidegate::Span;
use tidegate::policy::{Report, length_in_words};
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
    let findings = args.question.ask(Wish::Check)?;
    let report = Report::of(&findings.explained.answer);
    let text = if json { indented(&report)? } else { printable(&line(&report)) };
    Ok((report.is_allowed, text))
}

/// The JSON document, indented.
pub(crate) fn indented(report: &Report<'_>) -> Result<String, String> {
    let document: serde_json::Value =
        serde_json::from_str(&report.json()).map_err(|error| error.to_string())?;
    Ok(format!("{document:#}"))
}

/// The verdict in one line.
pub(crate) fn line(report: &Report<'_>) -> String {
    let verdict = if report.is_allowed { "allowed" } else { "denied" };
    let Some((name, decision)) = report.speaker().and_then(|it| Some((it.name, it.decision?)))
    else {
        return format!("{verdict}: no limit applies");
    };
    let (remaining, limit) = (decision.remaining, decision.limit);
    let mut line = format!("{verdict}: {remaining} of {limit} left under {name}");
    if report.delay > Span::ZERO {
        line += &format!("; wait {} before starting", length_in_words(report.delay));
    }
    if report.is_never() {
        line += "; no wait helps: the cost is above the limit's capacity";
    } else if let Some(wait) = report.retry_after {
        line += &format!("; try again after {}", length_in_words(wait));
    }
    line
}
