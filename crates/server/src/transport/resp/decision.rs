//! Commands that the store decides.

use tidegate::Timestamp;

use super::frame::{self, WordRanges, Words};
use super::lease::{self, LeaseAction};
use super::policy::{self, PolicyAction};
use super::reply::{Protocol, Replies};
use super::settle;
use super::throttle;
use crate::service::RateLimitService;

/// The kind of a command for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreCommand {
    /// `CL.THROTTLE`
    Cell,
    /// `THROTTLE`
    Crab,
    /// `TG.THROTTLE`
    Several,
    /// `TG.CHECK`, `TG.PEEK`, `TG.REFUND`, `TG.RESET`, `TG.ACQUIRE`
    Policy(PolicyAction),
    /// `TG.RELEASE`, `TG.RENEW`
    Lease(LeaseAction),
    /// `TG.SETTLE`
    Settle,
    /// `DEL`, `UNLINK`
    Forget,
}

impl StoreCommand {
    /// By the name of the command, in capitals.
    pub(crate) const fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"CL.THROTTLE" => Some(Self::Cell),
            b"THROTTLE" => Some(Self::Crab),
            b"TG.THROTTLE" => Some(Self::Several),
            b"TG.CHECK" => Some(Self::Policy(PolicyAction::Check)),
            b"TG.PEEK" => Some(Self::Policy(PolicyAction::Peek)),
            b"TG.REFUND" => Some(Self::Policy(PolicyAction::Refund)),
            b"TG.RESET" => Some(Self::Policy(PolicyAction::Reset)),
            b"TG.ACQUIRE" => Some(Self::Policy(PolicyAction::Acquire)),
            b"TG.RELEASE" => Some(Self::Lease(LeaseAction::Release)),
            b"TG.RENEW" => Some(Self::Lease(LeaseAction::Renew)),
            b"TG.SETTLE" => Some(Self::Settle),
            b"DEL" | b"UNLINK" => Some(Self::Forget),
            _ => None,
        }
    }

    /// Whether the command may return units, hold places or reset a key.
    pub(crate) fn returns_units(self, words: &Words<'_>) -> bool {
        match self {
            Self::Policy(PolicyAction::Refund | PolicyAction::Reset | PolicyAction::Acquire)
            | Self::Lease(_)
            | Self::Settle
            | Self::Forget => true,
            // `CL.THROTTLE key max_burst count period quantity`.
            Self::Cell => words.at(5).starts_with(b"-"),
            Self::Crab | Self::Several | Self::Policy(PolicyAction::Check | PolicyAction::Peek) => {
                false
            }
        }
    }

    /// Executes the command and writes the answer.
    pub(crate) async fn answer(
        self,
        context: &mut CommandContext<'_>,
        words: &Words<'_>,
        replies: &mut Replies<'_>,
    ) {
        match self {
            Self::Cell => throttle::cell(context, words, replies).await,
            Self::Crab => throttle::crab(context, words, replies).await,
            Self::Several => throttle::several(context, words, replies).await,
            Self::Policy(action) => policy::ask(context.service, action, words, replies).await,
            Self::Lease(action) => lease::ask(context.service, action, words, replies).await,
            Self::Settle => settle::ask(context.service, words, replies).await,
            Self::Forget => throttle::forget(context, words, replies).await,
        }
    }
}

/// The context of a command.
#[derive(Debug)]
pub(crate) struct CommandContext<'a> {
    pub(crate) service: &'a RateLimitService,
    pub(crate) now: Timestamp,
    pub(crate) recent: &'a mut throttle::Recent,
}

/// A command for a remote store.
#[derive(Debug)]
pub(crate) struct RemoteCommand {
    pub(crate) service: RateLimitService,
    pub(crate) now: Timestamp,
    pub(crate) store_command: StoreCommand,
    pub(crate) protocol: Protocol,
    /// A copy of the command, because the buffer it arrived in is reused.
    pub(crate) frame: Box<[u8]>,
}

impl RemoteCommand {
    /// Executes the command and returns the answer.
    pub(crate) async fn run(self) -> Vec<u8> {
        let mut places = WordRanges::default();
        // The frame was found to be complete before.
        frame::read(&self.frame, &mut places);
        let words = Words::new(&self.frame, &places);
        let mut bytes = Vec::new();
        let mut replies = Replies { bytes: &mut bytes, protocol: self.protocol };
        let mut recent = throttle::Recent::default();
        let mut context =
            CommandContext { service: &self.service, now: self.now, recent: &mut recent };
        self.store_command.answer(&mut context, &words, &mut replies).await;
        bytes
    }
}
