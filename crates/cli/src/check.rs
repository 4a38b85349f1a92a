//! `tidegate check`: may this request go ahead?

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate::policy::{Answer, Part, Standing};
use tidegate::{Decision, Span};

use crate::args::Check;
use crate::daemon;
use crate::question::Wish;

/// Says what was decided, and by its exit status whether the request is allowed.
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

/// The verdict, and how it is told.
fn decided(args: &Check) -> Result<(bool, String), String> {
    let json = args.question.json;
    if let Some(url) = &args.url {
        let answered = daemon::check(url, &args.question)?;
        let text = if json { format!("{answered:#}") } else { daemon::line(&answered) };
        return Ok((answered["allowed"] == true, text));
    }
    let findings = args.question.ask(Wish::Check)?;
    let answer = &findings.explained.answer;
    let text = if json { format!("{:#}", document(answer)) } else { line(answer) };
    Ok((answer.is_allowed(), text))
}

/// The verdict in one line.
pub(crate) fn line(answer: &Answer) -> String {
    let verdict = if answer.is_allowed() { "allowed" } else { "denied" };
    let Some((part, decision)) = answer.binding().and_then(|part| Some((part, part.decision?)))
    else {
        return format!("{verdict}: no limit counts");
    };
    let name = name(answer, part);
    let Decision { limit, remaining, .. } = decision;
    let mut line = format!("{verdict}: {remaining} of {limit} left under {name}");
    if answer.delay() > Span::ZERO {
        line += &format!("; wait {} before starting", answer.delay());
    }
    if answer.is_never() {
        line += "; no wait helps, for it costs more than there ever is";
    } else if let Some(wait) = answer.retry_after() {
        line += &format!("; try again after {wait}");
    }
    line
}

/// The same for machines.
pub(crate) fn document(answer: &Answer) -> Value {
    let binding = answer.binding().and_then(|part| part.decision);
    let limits: Vec<Value> = answer.parts().iter().map(|part| limit(answer, part)).collect();
    json!({
        "allowed": answer.is_allowed(),
        "limit": binding.map(|decision| decision.limit),
        "remaining": binding.map(|decision| decision.remaining),
        "retry_after_ms": answer.retry_after().map(milliseconds),
        "never": answer.is_never(),
        "reset_after_ms": binding.map(|decision| milliseconds(decision.reset_after)),
        "delay_ms": milliseconds(answer.delay()),
        "limits": limits,
    })
}

fn limit(answer: &Answer, part: &Part) -> Value {
    let decision = part.decision.as_ref();
    json!({
        "name": name(answer, part),
        "descriptor": part.descriptor,
        "algorithm": answer.limit(part).map_or("fixed_window", |(_, it)| it.algorithm().as_str()),
        "standing": standing(part.standing),
        "allowed": decision.is_none_or(Decision::is_allowed),
        "limit": decision.map(|decision| decision.limit),
        "remaining": decision.map(|decision| decision.remaining),
        "retry_after_ms": decision.and_then(Decision::retry_after).map(milliseconds),
        "reset_after_ms": decision.map(|decision| milliseconds(decision.reset_after)),
    })
}

/// What people call a limit: its name, or else where it stands.
pub(crate) fn name(answer: &Answer, part: &Part) -> String {
    match answer.limit(part) {
        Some((rule, limit)) => limit.name().unwrap_or_else(|| rule.path()).to_owned(),
        None => "the limit that came with the request".into(),
    }
}

/// What the word of a limit counts for.
pub(crate) const fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Live => "live",
        Standing::Quota => "quota",
        Standing::Shadow => "shadow",
        Standing::Beside => "beside",
        Standing::Unlimited => "unlimited",
        Standing::Replaced => "replaced",
        Standing::Off => "off",
    }
}

/// Rounded up: whoever waits so long has waited long enough.
fn milliseconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}
