//! The commands of clients.

use std::sync::Arc;

use tidegate::Timestamp;

use super::connection;
use super::decision::{CommandContext, StoreCommand};
use super::frame::{Words, integer};
use super::reply::{Protocol, Replies};
use super::throttle::Recent;
use super::transaction::{self, Transaction};
use crate::service::{RateLimitService, at_once};
use crate::settings::Settings;

/// The longest name of a command; longer ones are unknown.
const LONGEST_NAME: usize = 16;

/// The error for a command that returns units where no password is set.
const NO_PASSWORD: &str = "NOPERM commands that return units or reset keys need a password on this \
                           address: set listen.resp.password_file";

/// The state of a client between commands.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) service: RateLimitService,
    pub(crate) settings: Arc<Settings>,
    pub(crate) is_known: bool,
    /// Whether clients of other machines connect without credentials.
    pub(super) is_open: bool,
    /// The commands since `MULTI`.
    pub(super) transaction: Option<Transaction>,
    pub(crate) protocol: Protocol,
    /// The client's id, unique in the process.
    pub(crate) id: i64,
    /// The name that the client has set.
    pub(crate) name: Vec<u8>,
    pub(crate) silence: Silence,
    recent: Recent,
}

/// Which replies a client has disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// None.
    Off,
    /// That of the command that disables it, and of the next one.
    Starts,
    /// That of the current command.
    Once,
    /// All.
    On,
}

/// Whether the connection stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It stays open.
    Stay,
    /// It is closed.
    Leave,
}

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The command is answered.
    Done(After),
    /// The store has to be asked.
    Ask(StoreCommand),
    /// The store has to be asked for every command of a transaction.
    Exec(Transaction),
}

impl Session {
    pub(crate) fn new(service: RateLimitService, settings: Arc<Settings>, id: i64) -> Self {
        Self {
            service,
            is_known: settings.password.is_none(),
            is_open: settings.is_resp_open(),
            transaction: None,
            settings,
            protocol: Protocol::Resp2,
            id,
            name: Vec::new(),
            silence: Silence::Off,
            recent: Recent::default(),
        }
    }

    /// Executes one command and appends its answer, unless the store has to be asked.
    pub(crate) fn execute(
        &mut self,
        now: Timestamp,
        words: &Words<'_>,
        bytes: &mut Vec<u8>,
    ) -> Step {
        if words.len() == 0 {
            return Step::Done(After::Stay);
        }
        let start = bytes.len();
        let mut replies = Replies { bytes, protocol: self.protocol };
        let step = self.dispatch(now, words, &mut replies);
        // A command that changes the reply mode already follows the new one, as in Redis.
        if self.silence != Silence::Off {
            bytes.truncate(start);
        }
        step
    }

    /// Whether the reply of the current command is disabled. Called once after each command.
    pub(crate) fn is_silent(&mut self) -> bool {
        let is_silent = self.silence != Silence::Off;
        self.silence = match self.silence {
            Silence::Starts => Silence::Once,
            Silence::Once => Silence::Off,
            lasting => lasting,
        };
        is_silent
    }

    pub(super) fn dispatch(
        &mut self,
        now: Timestamp,
        words: &Words<'_>,
        replies: &mut Replies<'_>,
    ) -> Step {
        let mut name = [0; LONGEST_NAME];
        let name = upper(words.at(0), &mut name);
        if !self.is_known && !matches!(name, b"AUTH" | b"HELLO" | b"QUIT") {
            // A web page made a browser send a request here: close the connection.
            let is_browser = matches!(name, b"POST" | b"HOST:");
            replies.error("NOAUTH Authentication required.");
            return Step::Done(if is_browser { After::Leave } else { After::Stay });
        }
        match name {
            b"MULTI" => transaction::begin(self, words, replies),
            b"DISCARD" => transaction::discard(self, words, replies),
            b"EXEC" => {
                let step = self.exec(now, words, replies);
                return step.unwrap_or(Step::Done(After::Stay));
            }
            _ if self.transaction.is_some() => return self.queue(name, words, replies),
            _ => return self.carry_out(now, name, words, replies),
        }
        Step::Done(After::Stay)
    }

    /// Adds a command to the transaction, or refuses it.
    fn queue(&mut self, name: &[u8], words: &Words<'_>, replies: &mut Replies<'_>) -> Step {
        let Some(transaction) = &mut self.transaction else { return Step::Done(After::Stay) };
        match name {
            b"QUIT" => {
                replies.ok();
                return Step::Done(After::Leave);
            }
            name if Transaction::takes(name) => transaction.queue(words, replies),
            b"AUTH" | b"HELLO" | b"CLIENT" | b"COMMAND" | b"CONFIG" | b"INFO" | b"SELECT" => {
                let name = String::from_utf8_lossy(name);
                let why =
                    format!("ERR {name} is not allowed in a transaction: send it before MULTI");
                transaction.refuse(why, replies);
            }
            _ => {
                transaction.fail();
                unknown(words, replies);
            }
        }
        Step::Done(After::Stay)
    }

    fn carry_out(
        &mut self,
        now: Timestamp,
        name: &[u8],
        words: &Words<'_>,
        replies: &mut Replies<'_>,
    ) -> Step {
        if let Some(store_command) = StoreCommand::named(name) {
            if self.is_open && store_command.returns_units(words) {
                replies.error(NO_PASSWORD);
                return Step::Done(After::Stay);
            }
            if !self.service.is_local() {
                return Step::Ask(store_command);
            }
            let mut context =
                CommandContext { service: &self.service, now, recent: &mut self.recent };
            if at_once(store_command.answer(&mut context, words, replies)).is_none() {
                replies.error("ERR the store did not answer at once");
            }
            return Step::Done(After::Stay);
        }
        match name {
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
                return Step::Done(After::Leave);
            }
            b"POST" | b"HOST:" => {
                replies.error("ERR this is the Redis protocol, not HTTP");
                return Step::Done(After::Leave);
            }
            _ => unknown(words, replies),
        }
        Step::Done(After::Stay)
    }
}

/// The question to the store for a command of a transaction; `None` if the command is answered.
pub(super) fn named(
    words: &Words<'_>,
    is_open: bool,
    replies: &mut Replies<'_>,
) -> Option<StoreCommand> {
    let mut name = [0; LONGEST_NAME];
    let name = upper(words.at(0), &mut name);
    let store_command = StoreCommand::named(name);
    match (store_command, name) {
        (Some(store_command), _) if is_open && store_command.returns_units(words) => {
            replies.error(NO_PASSWORD)
        }
        (Some(store_command), _) => return Some(store_command),
        (None, b"ECHO") => connection::echo(words, replies),
        (None, _) => connection::ping(words, replies),
    }
    None
}

/// The name in capitals; empty if it is too long.
fn upper<'a>(name: &[u8], capitals: &'a mut [u8; LONGEST_NAME]) -> &'a [u8] {
    let Some(capitals) = capitals.get_mut(..name.len()) else { return &[] };
    capitals.copy_from_slice(name);
    capitals.make_ascii_uppercase();
    capitals
}

/// Parses a non-negative number.
pub(crate) fn natural(word: &[u8]) -> Option<u64> {
    u64::try_from(integer(word)?).ok()
}

/// Redis' error for a command with the wrong number of arguments.
pub(crate) fn wrong_count(name: &str, replies: &mut Replies<'_>) {
    replies.error(format!("ERR wrong number of arguments for '{name}' command"));
}

/// Redis' error for an unknown command, with as many arguments as Redis quotes.
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
