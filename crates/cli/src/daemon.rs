//! Asking a daemon instead of deciding here.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Span;
use tidegate::policy::length_in_words;

use crate::args::DecisionArgs;
use crate::decision_args::descriptor;

/// Longer than a daemon that is there ever takes.
const PATIENCE: Duration = Duration::from_secs(5);
/// No answer of a daemon is longer.
const MAX_ANSWER: u64 = 1 << 20;

/// What the daemon at `url` answers to the question, which is sent to `path`.
pub(crate) fn ask(url: &str, path: &str, question: &DecisionArgs) -> Result<Value, String> {
    let wrong = || format!("expected a daemon such as http://127.0.0.1:8080, found {url:?}");
    let host = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let domain = question.domain.as_deref().ok_or("say --domain: the daemon may have several")?;
    let sides: Result<Vec<_>, String> =
        question.descriptor.iter().map(|text| descriptor(text)).collect();
    let mut body = json!({ "domain": domain, "descriptors": sides? });
    if let Some(hits) = question.hits {
        body["cost"] = hits.into();
    }
    let away = |error: std::io::Error| format!("cannot ask {url}: {error}");
    let answer = post(host, path, &body.to_string()).map_err(away)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let answered: Value = serde_json::from_str(body).map_err(|_| {
        let status = head.lines().next().unwrap_or_default();
        format!("{url} answers with {status:?}, which is no verdict")
    })?;
    match answered.get("error").and_then(Value::as_str) {
        Some(error) => Err(format!("{url} says: {error}")),
        None => Ok(answered),
    }
}

/// One request on a connection of its own, and all that comes back.
fn post(host: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER).read_to_string(&mut answer)?;
    Ok(answer)
}

/// A daemon's verdict in one line.
pub(crate) fn line(answered: &Value) -> String {
    let verdict = if answered["allowed"] == true { "allowed" } else { "denied" };
    let (remaining, limit) = (&answered["remaining"], &answered["limit"]);
    let mut line = match limit.is_null() {
        true => format!("{verdict}: no limit counts"),
        false => format!("{verdict}: {remaining} of {limit} left"),
    };
    if let Some(wait) = answered["retry_after_ms"].as_u64() {
        line += &format!("; try again after {}", length_in_words(Span::from_millis(wait)));
    }
    line
}
