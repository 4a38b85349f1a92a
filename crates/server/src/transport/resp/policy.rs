//! `TG.CHECK`: requests that are decided by the policy.

use std::str;

use tidegate::policy::{Answer, Descriptor, Entry, Request};

use super::command::wrong_count;
use super::frame::{MAX_WORDS, Words};
use super::reply::Replies;
use super::throttle::{cost, count, milliseconds};
use crate::gate::Gate;

/// The most entries that a command has room for.
const MAX_ENTRIES: usize = (MAX_WORDS - 2) / 2;

/// `TG.CHECK domain key value [key value …] [COST n]`: whether limited, the limit, what remains,
/// milliseconds until a retry helps (-1 if it need not, or never will) and until all is back, and what
/// the limit is called that speaks for all. Where no limit counts, limit and remaining are -1.
pub(crate) async fn check(gate: &Gate, words: &Words<'_>, replies: &mut Replies<'_>) {
    if words.len() < 4 || !words.len().is_multiple_of(2) {
        return wrong_count("tg.check", replies);
    }
    match ask(gate, words).await {
        Ok(answer) => tell(&answer, replies),
        Err(text) => replies.error(text),
    }
}

async fn ask(gate: &Gate, words: &Words<'_>) -> Result<Answer, String> {
    let text = |at: usize| str::from_utf8(words.at(at)).map_err(|_| "ERR words must be UTF-8");
    // A descriptor has at least one entry, so the first is never a cost.
    let costs = words.len() > 4 && words.at(words.len() - 2).eq_ignore_ascii_case(b"COST");
    let hits = costs.then(|| cost(words.at(words.len() - 1))).transpose()?;
    let end = if costs { words.len() - 2 } else { words.len() };
    let mut entries = [Entry { key: "", value: "" }; MAX_ENTRIES];
    let mut length = 0;
    for (entry, at) in entries.iter_mut().zip((2..end).step_by(2)) {
        *entry = Entry { key: text(at)?, value: text(at + 1)? };
        length += 1;
    }
    let descriptors = [Descriptor::new(&entries[..length])];
    let request = Request { domain: text(1)?, descriptors: &descriptors, hits };
    gate.check(&request).await.map_err(|error| format!("ERR {error}"))
}

fn tell(answer: &Answer, replies: &mut Replies<'_>) {
    let binding = answer.binding();
    let decision = binding.and_then(|part| part.decision);
    let name = binding.and_then(|part| {
        let (rule, limit) = answer.limit(part)?;
        Some(limit.name().unwrap_or_else(|| rule.path()))
    });
    replies.array(6);
    replies.integer(i64::from(!answer.is_allowed()));
    replies.integer(decision.map_or(-1, |decision| count(decision.limit)));
    replies.integer(decision.map_or(-1, |decision| count(decision.remaining)));
    replies.integer(answer.retry_after().map_or(-1, milliseconds));
    replies.integer(decision.map_or(0, |decision| milliseconds(decision.reset_after)));
    replies.bulk(name.unwrap_or_default().as_bytes());
}
