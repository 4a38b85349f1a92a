//! `tidegate explain`: which limits does this request meet, and how do they stand?

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};
use tidegate::policy::{Answer, Part, Standing, in_words};

use crate::args::Explain;
use crate::check::{document, line, name, standing};
use crate::question::{Findings, Wish};
use crate::terminal::Terminal;

/// Tells every limit that matched, why, its state, which one binds and when it frees.
pub(crate) fn explain(args: &Explain, terminal: Terminal) -> ExitCode {
    match args.question.ask(Wish::Explain) {
        Ok(findings) => {
            let text = match args.question.json {
                true => format!("{:#}\n", json_of(&findings)),
                false => text(&findings, terminal),
            };
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
    let answer = &findings.explained.answer;
    let mut text = format!("{}\n", terminal.bold(&line(answer)));
    for (number, entries) in findings.descriptors.iter().enumerate() {
        let written: Vec<String> =
            entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let _ = writeln!(text, "\n{}", terminal.bold(&written.join(", ")));
        let parts: Vec<(usize, &Part)> = answer
            .parts()
            .iter()
            .enumerate()
            .filter(|(_, part)| part.descriptor == number)
            .collect();
        if parts.is_empty() {
            text.push_str(&terminal.wrap("  ", &unmatched(entries, findings.depths[number])));
        }
        for (place, part) in parts {
            section(&mut text, findings, (place, part), terminal);
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
        None => "no limit: the rule it leads to has none, or only deeper ones".into(),
    }
}

fn section(text: &mut String, findings: &Findings, (place, part): (usize, &Part), on: Terminal) {
    let explained = &findings.explained;
    let answer = &explained.answer;
    let is_binding = answer.binding().is_some_and(|binding| std::ptr::eq(binding, part));
    let binds = if is_binding { " <- binds" } else { "" };
    let _ = writeln!(text, "  {}{}", on.bold(&name(answer, part)), on.warning(binds));
    let mut tell = |sentence: String| text.push_str(&on.wrap("    ", &sentence));
    tell(why(answer, part));
    tell(role(part.standing).into());
    if let Some(state) = &explained.states[place] {
        let wait = state.next_allowed_at.map(|at| at.since(explained.now));
        let when = match wait {
            None => "one more is never allowed".to_owned(),
            Some(wait) if wait.is_zero() => "one more is allowed now".into(),
            Some(wait) => format!("one more is allowed in {wait}"),
        };
        let back = match state.idle_at.since(explained.now) {
            rest if rest.is_zero() => "nothing is owed".to_owned(),
            rest => format!("all is back in {rest}"),
        };
        let (remaining, limit) = (state.remaining, state.limit);
        tell(format!("{remaining} of {limit} left; {when}; {back}"));
    }
}

/// Which rule, and why it is that one.
fn why(answer: &Answer, part: &Part) -> String {
    let Some((rule, limit)) = answer.limit(part) else {
        return "it came with the request and goes before the policy's".into();
    };
    let (path, wants) = (rule.path(), rule.wants());
    let numbers = part.numbers.map_or_else(|| "unlimited".into(), |it| in_words(&it).to_string());
    match part.standing {
        Standing::Beside => format!("rule {path}, its shadow: {numbers}"),
        _ => format!("rule {path}, for {wants}: {}, {numbers}", limit.algorithm()),
    }
}

const fn role(standing: Standing) -> &'static str {
    match standing {
        Standing::Live => "enforced",
        Standing::Quota => "enforced only if all quotas of the request are used up",
        Standing::Shadow => "a shadow: counted, holds nobody back",
        Standing::Beside => "tried beside the limit above, on its own state",
        Standing::Unlimited => "allows everything",
        Standing::Replaced => "replaced by another limit of this request",
        Standing::Off => "switched off",
    }
}

fn json_of(findings: &Findings) -> Value {
    let explained = &findings.explained;
    let answer = &explained.answer;
    let mut value = document(answer);
    let limits: Vec<Value> = answer
        .parts()
        .iter()
        .zip(&explained.states)
        .map(|(part, state)| {
            json!({
                "name": name(answer, part),
                "descriptor": part.descriptor,
                "standing": standing(part.standing),
                "why": why(answer, part),
                "denies": part.denies(),
                "state": state.as_ref().map(ToString::to_string),
                "remaining": state.as_ref().map(|state| state.remaining),
                "binds": answer.binding().is_some_and(|it| std::ptr::eq(it, part)),
            })
        })
        .collect();
    value["domain"] = findings.domain.clone().into();
    value["limits"] = limits.into();
    value
}
