//! Decisions as status, headers and JSON.

use std::fmt::Write;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::{Value, json};
use tidegate::policy::{Answer, Part};
use tidegate::{AlgorithmName, Decision, Limit, Span};

use super::{Reply, plain};

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What one limit said, and which.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) name: &'a str,
    pub(crate) algorithm: AlgorithmName,
    pub(crate) limit: Limit,
    pub(crate) decision: Decision,
}

/// The answer of a limit that came with the request.
pub(crate) fn given(told: &Told<'_>) -> Reply {
    let decision = &told.decision;
    let document = document(&Verdict {
        is_allowed: decision.is_allowed(),
        retry_after: decision.retry_after(),
        delay: decision.delay(),
        binding: Some(told),
        limits: vec![limit(told)],
    });
    let mut reply = super::json(status(decision.is_allowed()), &document);
    headers(&mut reply, told);
    reply
}

/// The answer of a policy, with what every limit said.
pub(crate) fn of_policy(answer: &Answer) -> Reply {
    let parts = answer.parts().iter().filter_map(|part| told(answer, part));
    let binding = answer.binding().and_then(|part| told(answer, part));
    let document = document(&Verdict {
        is_allowed: answer.is_allowed(),
        retry_after: answer.retry_after(),
        delay: answer.delay(),
        binding: binding.as_ref(),
        limits: parts.map(|told| limit(&told)).collect(),
    });
    let mut reply = super::json(status(answer.is_allowed()), &document);
    if let Some(binding) = &binding {
        headers(&mut reply, binding);
    }
    reply
}

/// The answer of a policy without a body, for proxies.
pub(crate) fn for_proxy(answer: &Answer) -> Reply {
    let mut reply = plain(status(answer.is_allowed()), "");
    if let Some(binding) = answer.binding().and_then(|part| told(answer, part)) {
        headers(&mut reply, &binding);
    }
    reply
}

const fn status(is_allowed: bool) -> StatusCode {
    if is_allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}

fn told<'a>(answer: &'a Answer, part: &Part) -> Option<Told<'a>> {
    let (limit, decision) = (part.numbers?, part.decision?);
    let (name, algorithm) = match answer.limit(part) {
        Some((rule, limit)) => (limit.name().unwrap_or_else(|| rule.path()), limit.algorithm()),
        None => ("given", AlgorithmName::FixedWindow),
    };
    Some(Told { name, algorithm, limit, decision })
}

/// What a whole request is told.
struct Verdict<'a> {
    is_allowed: bool,
    retry_after: Option<Span>,
    delay: Span,
    binding: Option<&'a Told<'a>>,
    limits: Vec<Value>,
}

fn document(verdict: &Verdict<'_>) -> Value {
    let decision = verdict.binding.map(|told| told.decision);
    let mut document = json!({
        "allowed": verdict.is_allowed,
        "limit": decision.map(|decision| decision.limit),
        "remaining": decision.map(|decision| decision.remaining),
        "retry_after_ms": verdict.retry_after.map(milliseconds),
        "reset_after_ms": decision.map(|decision| milliseconds(decision.reset_after)),
        "delay_ms": milliseconds(verdict.delay),
        "limits": verdict.limits,
    });
    if !verdict.is_allowed && verdict.retry_after.is_none() {
        document["never"] = true.into();
    }
    document
}

fn limit(told: &Told<'_>) -> Value {
    let decision = &told.decision;
    json!({
        "name": told.name,
        "algorithm": told.algorithm.as_str(),
        "allowed": decision.is_allowed(),
        "limit": decision.limit,
        "remaining": decision.remaining,
        "retry_after_ms": decision.retry_after().map(milliseconds),
        "reset_after_ms": milliseconds(decision.reset_after),
    })
}

/// `Retry-After`, and the fields of the IETF draft.
fn headers(reply: &mut Reply, told: &Told<'_>) {
    let Decision { limit, remaining, .. } = told.decision;
    let name = quoted(told.name);
    let mut policy = format!("{name};q={limit}");
    if let Some(window) = window(&told.limit) {
        // Nobody fails to write into a text.
        let _ = write!(policy, ";w={}", seconds(window).max(1));
    }
    let mut state = format!("{name};r={remaining}");
    if let Some(wait) = until_more(told) {
        let least = u64::from(remaining == 0);
        let _ = write!(state, ";t={}", seconds(wait).max(least));
    }
    let headers = reply.headers_mut();
    for (name, text) in [(RATE_LIMIT_POLICY, policy), (RATE_LIMIT, state)] {
        // What is quoted and what are numbers can stand in a header.
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
    if let Some(wait) = told.decision.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds(wait).max(1)));
    }
}

/// The time that the limit refers to: for buckets, that of a full refill.
fn window(limit: &Limit) -> Option<Span> {
    match limit {
        Limit::Bucket(bucket) => {
            let fill = bucket.fill_time();
            Some(Span::from_micros(fill.ticks + u64::from(fill.part > 0)))
        }
        Limit::FixedWindow(window) => Some(window.length()),
        Limit::SlidingWindow(window) => Some(window.length()),
        Limit::SlidingLog(log) => Some(log.length()),
        _ => None,
    }
}

/// Until a retry helps, or else until there is more: one unit, or a new window. `None` if there is all
/// there can be, or no wait helps.
fn until_more(told: &Told<'_>) -> Option<Span> {
    let decision = &told.decision;
    if !decision.is_allowed() {
        return decision.retry_after();
    }
    if decision.remaining >= decision.limit {
        return None;
    }
    let Limit::Bucket(bucket) = &told.limit else { return Some(decision.reset_after) };
    // All but one of the missing units come after the next one.
    let missing = bucket.capacity().saturating_sub(decision.remaining);
    let later = bucket.time_of(missing.saturating_sub(1))?;
    let wait = decision.reset_after.as_micros().saturating_sub(later.ticks);
    Some(Span::from_micros(wait))
}

/// A string of structured fields; what cannot stand in one becomes a line below.
fn quoted(name: &str) -> String {
    let plain = |letter: char| match letter {
        ' ' | '!' | '#'..='[' | ']'..='~' => letter,
        _ => '_',
    };
    format!("\"{}\"", name.chars().map(plain).collect::<String>())
}

/// Rounded up: whoever waits so long has waited long enough.
fn seconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000_000)
}

/// As [`seconds`].
fn milliseconds(span: Span) -> u64 {
    span.as_micros().div_ceil(1_000)
}
