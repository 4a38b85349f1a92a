//! Requests to a running daemon (`--url`).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate::Span;
use tidegate::policy::length_in_words;

use crate::args::DecisionArgs;
use crate::decision_args::descriptor;

/// The timeout of a request to a running daemon.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest response that is read.
const MAX_ANSWER: u64 = 1 << 20;

/// Sends the request to `path` of the daemon at `url`, and returns its response.
pub(crate) fn ask(url: &str, path: &str, question: &DecisionArgs) -> Result<Value, String> {
    let wrong = || format!("expected a daemon such as http://127.0.0.1:8080, found {url:?}");
    let host = url.strip_prefix("http://").ok_or_else(wrong)?.trim_end_matches('/');
    let domain = question
        .domain
        .as_deref()
        .ok_or("--domain is required with --url, because a daemon may have several")?;
    let sides: Result<Vec<_>, String> =
        question.descriptor.iter().map(|text| descriptor(text)).collect();
    let mut body = json!({ "domain": domain, "descriptors": sides? });
    if let Some(hits) = question.hits {
        body["cost"] = hits.into();
    }
    let unreachable = |error: std::io::Error| format!("cannot reach {url}: {error}");
    let answer = post(host, path, &body.to_string()).map_err(unreachable)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let answered: Value = serde_json::from_str(body).map_err(|_| {
        let status = head.lines().next().unwrap_or_default();
        format!("{url} answered {status:?}, which is not a verdict")
    })?;
    match answered.get("error").and_then(Value::as_str) {
        Some(error) => Err(format!("{url} says: {error}")),
        None => Ok(answered),
    }
}

/// Sends one request on a new connection, and returns the whole response.
fn post(host: &str, path: &str, body: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
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
        true => format!("{verdict}: no limit applies"),
        false => format!("{verdict}: {remaining} of {limit} left"),
    };
    if let Some(wait) = answered["retry_after_ms"].as_u64() {
        line += &format!("; try again after {}", length_in_words(Span::from_millis(wait)));
    }
    line
}
