//! What clients can ask for.

use std::sync::Arc;

use tidegate::{Limit, Rate, Span, Timestamp};

use super::frame::{Words, integer};
use super::reply::{Protocol, Replies};
use super::{connection, policy, throttle};
use crate::gate::Gate;

/// The longest name of a command; longer ones are unknown.
const LONGEST_NAME: usize = 16;

/// What is remembered of a client from one command to the next.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) gate: Gate,
    pub(crate) password: Option<Arc<str>>,
    pub(crate) is_known: bool,
    pub(crate) protocol: Protocol,
    /// A number that no other client of the process has.
    pub(crate) id: i64,
    /// What the client calls itself.
    pub(crate) name: Vec<u8>,
    pub(crate) silence: Silence,
    /// The last limit that came with a command: most clients send the same numbers each time.
    recent: Option<(Numbers, Limit)>,
}

/// Which answers a client does not want to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// None.
    Off,
    /// That of the command which asks for it, and of the one after it.
    Starts,
    /// That of the present command.
    Once,
    /// All.
    On,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// The next command.
    Stay,
    /// Nothing more.
    Leave,
}

/// The numbers of a bucket, as they come with a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    pub(crate) capacity: u64,
    pub(crate) count: u64,
    /// In seconds.
    pub(crate) period: u64,
}

impl Session {
    pub(crate) const fn new(gate: Gate, password: Option<Arc<str>>, id: i64) -> Self {
        Self {
            gate,
            is_known: password.is_none(),
            password,
            protocol: Protocol::Resp2,
            id,
            name: Vec::new(),
            silence: Silence::Off,
            recent: None,
        }
    }

    /// Carries out one command and appends its answer.
    pub(crate) fn execute(
        &mut self,
        now: Timestamp,
        words: &Words<'_>,
        bytes: &mut Vec<u8>,
    ) -> After {
        if words.len() == 0 {
            return After::Stay;
        }
        let start = bytes.len();
        let mut replies = Replies { bytes, protocol: self.protocol };
        let after = self.dispatch(now, words, &mut replies);
        // A command that changes the silence is under the new one already, as in Redis.
        if self.silence != Silence::Off {
            bytes.truncate(start);
        }
        self.silence = match self.silence {
            Silence::Starts => Silence::Once,
            Silence::Once => Silence::Off,
            lasting => lasting,
        };
        after
    }

    fn dispatch(&mut self, now: Timestamp, words: &Words<'_>, replies: &mut Replies<'_>) -> After {
        let mut name = [0; LONGEST_NAME];
        let name = upper(words.at(0), &mut name);
        if !self.is_known && !matches!(name, b"AUTH" | b"HELLO" | b"QUIT") {
            // A web page that makes a browser send requests here is not worth a second try.
            let is_browser = matches!(name, b"POST" | b"HOST:");
            replies.error("NOAUTH Authentication required.");
            return if is_browser { After::Leave } else { After::Stay };
        }
        match name {
            b"CL.THROTTLE" => throttle::cell(self, now, words, replies),
            b"THROTTLE" => throttle::crab(self, now, words, replies),
            b"TG.CHECK" => policy::check(&self.gate, words, replies),
            b"DEL" | b"UNLINK" => throttle::forget(&self.gate, now, words, replies),
            b"PING" => connection::ping(words, replies),
            b"ECHO" => connection::echo(words, replies),
            b"AUTH" => connection::auth(self, words, replies),
            b"HELLO" => connection::hello(self, words, replies),
            b"CLIENT" => connection::client(self, words, replies),
            b"COMMAND" => connection::command(words, replies),
            b"CONFIG" => connection::config(words, replies),
            b"INFO" => connection::info(replies),
            b"SELECT" => connection::select(words, replies),
            b"QUIT" => {
                replies.ok();
                return After::Leave;
            }
            b"POST" | b"HOST:" => {
                replies.error("ERR this is the Redis protocol, not HTTP");
                return After::Leave;
            }
            _ => unknown(words, replies),
        }
        After::Stay
    }

    /// The limit of these numbers, or what is wrong with them.
    pub(crate) fn limit(&mut self, numbers: Numbers) -> Result<Limit, String> {
        if let Some((recent, limit)) = &self.recent
            && *recent == numbers
        {
            return Ok(*limit);
        }
        let period = numbers.period.checked_mul(1_000_000).map(Span::from_micros);
        let period = period.ok_or("period must be between 1us and 10 years")?;
        let bucket = Limit::token_bucket(Rate::new(numbers.count, period)).burst(numbers.capacity);
        let limit = bucket.build().map_err(|wrong| wrong.to_string())?;
        self.recent = Some((numbers, limit));
        Ok(limit)
    }
}

/// The name in capitals; empty if it is too long to be one.
fn upper<'a>(name: &[u8], capitals: &'a mut [u8; LONGEST_NAME]) -> &'a [u8] {
    let Some(capitals) = capitals.get_mut(..name.len()) else { return &[] };
    capitals.copy_from_slice(name);
    capitals.make_ascii_uppercase();
    capitals
}

/// The word as a number that is not negative.
pub(crate) fn natural(word: &[u8]) -> Option<u64> {
    u64::try_from(integer(word)?).ok()
}

/// Redis' own words for a command that has too few words or too many.
pub(crate) fn wrong_count(name: &str, replies: &mut Replies<'_>) {
    replies.error(format!("ERR wrong number of arguments for '{name}' command"));
}

/// Redis' own words, and as much of the command as Redis quotes.
fn unknown(words: &Words<'_>, replies: &mut Replies<'_>) {
    const QUOTED: usize = 128;
    let name = words.at(0);
    let mut text = b"ERR unknown command '".to_vec();
    text.extend_from_slice(&name[..name.len().min(QUOTED)]);
    text.extend_from_slice(b"', with args beginning with: ");
    let start = text.len();
    for word in words.from(1) {
        let Some(room) = QUOTED.checked_sub(text.len() - start).filter(|room| *room > 0) else {
            break;
        };
        text.push(b'\'');
        text.extend_from_slice(&word[..word.len().min(room)]);
        text.extend_from_slice(b"' ");
    }
    replies.error(text);
}
