//! `MULTI`, `EXEC` and `DISCARD`: commands that are queued and answered together.
//!
//! Client libraries wrap pipelines in a transaction by default (redis-py's `pipeline()`). As in
//! Redis, every queued command is executed once, in order, and a denied one does not undo the
//! others; `TG.THROTTLE` charges several limits all or nothing. Commands of other connections may
//! be executed in between.
//!
//! # Bounds
//! A transaction has at most [`MAX_QUEUED`] commands of [`MAX_BYTES`] bytes together. A command
//! beyond these bounds, or one that cannot be queued, is refused, and `EXEC` then fails.

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tidegate::Timestamp;

use super::command::{Session, Step, named, wrong_count};
use super::decision::{RemoteCommand, StoreCommand};
use super::frame::{self, WordRanges, Words};
use super::reply::Replies;

/// The most commands of a transaction.
const MAX_QUEUED: usize = 512;

/// The most bytes of a transaction's commands.
const MAX_BYTES: usize = 64 << 10;

/// The commands since `MULTI`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Transaction {
    commands: Vec<Box<[u8]>>,
    bytes: usize,
    /// Whether a command was refused, so that `EXEC` executes none.
    is_refused: bool,
}

/// `MULTI`
pub(crate) fn begin(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) {
    if words.len() != 1 {
        wrong_count("multi", replies);
    } else if session.transaction.is_some() {
        replies.error("ERR MULTI calls can not be nested");
    } else {
        session.transaction = Some(Transaction::default());
        replies.ok();
    }
}

/// `DISCARD`
pub(crate) fn discard(session: &mut Session, words: &Words<'_>, replies: &mut Replies<'_>) {
    if words.len() != 1 {
        wrong_count("discard", replies);
    } else if session.transaction.take().is_none() {
        replies.error("ERR DISCARD without MULTI");
    } else {
        replies.ok();
    }
}

impl Transaction {
    /// Whether a command is allowed in a transaction.
    pub(crate) fn takes(name: &[u8]) -> bool {
        StoreCommand::named(name).is_some() || matches!(name, b"PING" | b"ECHO")
    }

    /// Queues a command.
    pub(crate) fn queue(&mut self, words: &Words<'_>, replies: &mut Replies<'_>) {
        let command = encoded(words);
        let bytes = self.bytes + command.len();
        if self.commands.len() == MAX_QUEUED || bytes > MAX_BYTES {
            return self.refuse(
                format!(
                    "ERR a transaction has at most {MAX_QUEUED} commands of {MAX_BYTES} bytes together"
                ),
                replies,
            );
        }
        self.bytes = bytes;
        self.commands.push(command);
        replies.simple("QUEUED");
    }

    /// Refuses a command that is not allowed in a transaction.
    pub(crate) fn refuse(&mut self, why: impl AsRef<[u8]>, replies: &mut Replies<'_>) {
        self.is_refused = true;
        replies.error(why);
    }

    /// Records that a command was answered with an error.
    pub(crate) const fn fail(&mut self) {
        self.is_refused = true;
    }

    /// Executes all commands on a remote store.
    pub(crate) async fn run(self, context: RemoteCommand, is_open: bool) -> Vec<u8> {
        let protocol = context.protocol;
        let mut bytes = Vec::new();
        Replies { bytes: &mut bytes, protocol }.array(self.commands.len());
        let mut answers = FuturesOrdered::new();
        for command in self.commands {
            let mut places = WordRanges::default();
            // Encoded here, so it is complete.
            frame::read(&command, &mut places);
            let words = Words::new(&command, &places);
            let mut own = Vec::new();
            let mut replies = Replies { bytes: &mut own, protocol };
            let store_command = named(&words, is_open, &mut replies);
            answers.push_back(match store_command {
                Some(store_command) => {
                    let service = context.service.clone();
                    let now = context.now;
                    RemoteCommand { service, now, store_command, protocol, frame: command }
                        .run()
                        .boxed()
                }
                None => std::future::ready(own).boxed(),
            });
        }
        while let Some(answer) = answers.next().await {
            bytes.extend_from_slice(&answer);
        }
        bytes
    }
}

impl Session {
    /// `EXEC`
    pub(crate) fn exec(
        &mut self,
        now: Timestamp,
        words: &Words<'_>,
        replies: &mut Replies<'_>,
    ) -> Option<Step> {
        if words.len() != 1 {
            wrong_count("exec", replies);
            return None;
        }
        let Some(transaction) = self.transaction.take() else {
            replies.error("ERR EXEC without MULTI");
            return None;
        };
        if transaction.is_refused {
            replies.error("EXECABORT Transaction discarded because of previous errors.");
            return None;
        }
        if !self.service.is_local() {
            return Some(Step::Exec(transaction));
        }
        replies.array(transaction.commands.len());
        let mut places = WordRanges::default();
        for command in &transaction.commands {
            frame::read(command, &mut places);
            self.dispatch(now, &Words::new(command, &places), replies);
        }
        None
    }
}

/// The words encoded as a client sends them.
fn encoded(words: &Words<'_>) -> Box<[u8]> {
    let mut bytes = Vec::new();
    let mut replies = Replies { bytes: &mut bytes, protocol: Default::default() };
    replies.array(words.len());
    for word in words.from(0) {
        replies.bulk(word);
    }
    bytes.into()
}
