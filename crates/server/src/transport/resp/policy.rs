//! `TG.CHECK`, `TG.ACQUIRE`, `TG.PEEK`, `TG.REFUND` and `TG.RESET`: requests that the policy decides.

use std::str;

use tidegate::Verdict;
use tidegate::policy::{
    Descriptor, Entry, Granted, Leases, MAX_DESCRIPTORS, Request, Reservations,
};
use tidegate::verdict::whole_millis;

use super::command::wrong_count;
use super::frame::{MAX_WORDS, Words};
use super::reply::Replies;
use super::throttle::{cost, count};
use crate::service::RateLimitService;

/// The most entries of a command.
const MAX_ENTRIES: usize = (MAX_WORDS - 2) / 2;

/// The action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolicyAction {
    /// Decide and charge.
    Check,
    /// Decide without charging.
    Peek,
    /// Return the units that were charged.
    Refund,
    /// Reset the keys of the request.
    Reset,
    /// Decide and charge, in-flight limits included.
    Acquire,
}

impl PolicyAction {
    const fn command(self) -> &'static str {
        match self {
            Self::Check => "tg.check",
            Self::Peek => "tg.peek",
            Self::Refund => "tg.refund",
            Self::Reset => "tg.reset",
            Self::Acquire => "tg.acquire",
        }
    }
}

/// `TG.CHECK domain key value [key value …] [AND key value …] [COST n]`: returns whether limited,
/// the limit, the remaining units, milliseconds until a retry can succeed (-1 if allowed, or if it
/// never will) and until the full reset, and the name of the binding limit. Without limits, limit
/// and remaining are -1. `AND` begins another descriptor of the same request. `TG.ACQUIRE` returns
/// the lease as well, for `TG.RELEASE` and `TG.RENEW`; it is empty if the request holds no place. If a limit
/// is settled after the response, the last element is the reservation, for `TG.SETTLE`.
pub(crate) async fn ask(
    service: &RateLimitService,
    action: PolicyAction,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    let Some(question) = PolicyCommand::read(words) else {
        return wrong_count(action.command(), replies);
    };
    match question.ask(service, action).await {
        Ok(granted) => write_reply(&granted, action, replies),
        Err(text) => replies.error(text),
    }
}

/// A parsed command.
struct PolicyCommand<'a> {
    domain: &'a [u8],
    entries: [(&'a [u8], &'a [u8]); MAX_ENTRIES],
    /// Number of entries of each descriptor.
    lengths: [usize; MAX_DESCRIPTORS],
    descriptors: usize,
    cost: Option<&'a [u8]>,
}

impl<'a> PolicyCommand<'a> {
    /// `None` if a word is missing or superfluous.
    fn read(words: &Words<'a>) -> Option<Self> {
        // A descriptor has at least one entry, so the first words are never a cost.
        let costs = words.len() > 4 && words.at(words.len() - 2).eq_ignore_ascii_case(b"COST");
        let end = if costs { words.len() - 2 } else { words.len() };
        let mut question = Self {
            domain: words.at(1),
            entries: [(&[], &[]); MAX_ENTRIES],
            lengths: [0; MAX_DESCRIPTORS],
            descriptors: 0,
            cost: costs.then(|| words.at(words.len() - 1)),
        };
        let (mut at, mut entries) = (2, question.entries.iter_mut());
        while at < end {
            let length = question.lengths.get_mut(question.descriptors)?;
            if *length > 0 && words.at(at).eq_ignore_ascii_case(b"AND") {
                question.descriptors += 1;
                at += 1;
                continue;
            }
            *length += 1;
            *entries.next()? = (words.at(at), words.at(at + 1));
            at += 2;
        }
        question.descriptors += 1;
        let is_whole = at == end && question.lengths.get(question.descriptors - 1)? > &0;
        is_whole.then_some(question)
    }

    async fn ask(
        &self,
        service: &RateLimitService,
        action: PolicyAction,
    ) -> Result<Granted, String> {
        let text = |word: &'a [u8]| str::from_utf8(word).map_err(|_| "ERR words must be UTF-8");
        let hits = self.cost.map(cost).transpose()?;
        let mut entries = [Entry { key: "", value: "" }; MAX_ENTRIES];
        for (entry, (key, value)) in entries.iter_mut().zip(self.entries) {
            *entry = Entry { key: text(key)?, value: text(value)? };
        }
        let mut descriptors = [Descriptor::default(); MAX_DESCRIPTORS];
        let mut rest = &entries[..];
        for (descriptor, length) in descriptors.iter_mut().zip(self.lengths) {
            let (own, others) = rest.split_at_checked(length).unwrap_or_default();
            *descriptor = Descriptor::new(own);
            rest = others;
        }
        let descriptors = &descriptors[..self.descriptors];
        let request = Request { domain: text(self.domain)?, descriptors, hits };
        let answer = match action {
            PolicyAction::Check => service.reserve(&request).await,
            PolicyAction::Peek => service.peek(&request).await.map(reserving_nothing),
            PolicyAction::Refund => service.refund(&request).await.map(reserving_nothing),
            PolicyAction::Reset => service.reset(&request).await.map(reserving_nothing),
            PolicyAction::Acquire => {
                return service.acquire(&request).await.map_err(|error| format!("ERR {error}"));
            }
        };
        let (verdict, reservations) = answer.map_err(|error| format!("ERR {error}"))?;
        Ok(Granted { verdict, leases: Leases::default(), reservations })
    }
}

/// A request without reservations.
fn reserving_nothing(verdict: Verdict) -> (Verdict, Reservations) {
    (verdict, Reservations::default())
}

fn write_reply(granted: &Granted, action: PolicyAction, replies: &mut Replies<'_>) {
    let Granted { verdict, leases, reservations } = granted;
    let strictest = verdict.strictest();
    let units = |units| if strictest.is_some() { count(units) } else { -1 };
    let leases = (action == PolicyAction::Acquire).then_some(leases);
    let more = usize::from(leases.is_some()) + usize::from(!reservations.is_empty());
    replies.array(6 + more);
    replies.integer(i64::from(verdict.is_denied()));
    replies.integer(units(verdict.limit()));
    replies.integer(units(verdict.remaining()));
    replies.integer(verdict.retry_after().map_or(-1, |wait| count(whole_millis(wait))));
    replies.integer(count(whole_millis(verdict.reset_after())));
    // A limit that came with a descriptor has no name.
    let name = strictest.filter(|part| part.rule.is_some()).map(|part| part.name);
    replies.bulk(name.unwrap_or_default().as_bytes());
    if let Some(leases) = leases {
        let text = if leases.is_empty() { String::new() } else { leases.to_string() };
        replies.bulk(text.as_bytes());
    }
    if !reservations.is_empty() {
        replies.bulk(reservations.to_string().as_bytes());
    }
}
