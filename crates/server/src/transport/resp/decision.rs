//! Commands that the store decides, wherever it is.

use tidegate::Timestamp;

use super::frame::{self, Places, Words};
use super::policy::{self, Wish};
use super::reply::{Protocol, Replies};
use super::throttle;
use crate::service::RateLimitService;

/// What the store is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// `CL.THROTTLE`
    Cell,
    /// `THROTTLE`
    Crab,
    /// `TG.THROTTLE`
    Several,
    /// `TG.CHECK`, `TG.PEEK`, `TG.REFUND`, `TG.RESET`
    Policy(Wish),
    /// `DEL`, `UNLINK`
    Forget,
}

impl Asking {
    /// By the name of the command, in capitals.
    pub(crate) const fn named(name: &[u8]) -> Option<Self> {
        match name {
            b"CL.THROTTLE" => Some(Self::Cell),
            b"THROTTLE" => Some(Self::Crab),
            b"TG.THROTTLE" => Some(Self::Several),
            b"TG.CHECK" => Some(Self::Policy(Wish::Check)),
            b"TG.PEEK" => Some(Self::Policy(Wish::Peek)),
            b"TG.REFUND" => Some(Self::Policy(Wish::Refund)),
            b"TG.RESET" => Some(Self::Policy(Wish::Reset)),
            b"DEL" | b"UNLINK" => Some(Self::Forget),
            _ => None,
        }
    }

    /// Whether the command may return units or reset a key.
    pub(crate) fn returns_units(self, words: &Words<'_>) -> bool {
        match self {
            Self::Policy(Wish::Refund | Wish::Reset) | Self::Forget => true,
            // `CL.THROTTLE key max_burst count period quantity`.
            Self::Cell => words.at(5).starts_with(b"-"),
            Self::Crab | Self::Several | Self::Policy(Wish::Check | Wish::Peek) => false,
        }
    }

    /// Asks, and writes the answer.
    pub(crate) async fn answer(
        self,
        asker: &mut Asker<'_>,
        words: &Words<'_>,
        replies: &mut Replies<'_>,
    ) {
        match self {
            Self::Cell => throttle::cell(asker, words, replies).await,
            Self::Crab => throttle::crab(asker, words, replies).await,
            Self::Several => throttle::several(asker, words, replies).await,
            Self::Policy(wish) => policy::ask(asker.service, wish, words, replies).await,
            Self::Forget => throttle::forget(asker, words, replies).await,
        }
    }
}

/// Who asks, and when.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) service: &'a RateLimitService,
    pub(crate) now: Timestamp,
    pub(crate) recent: &'a mut throttle::Recent,
}

/// A command on its way to a store that keeps others waiting.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) service: RateLimitService,
    pub(crate) now: Timestamp,
    pub(crate) asking: Asking,
    pub(crate) protocol: Protocol,
    /// The command, for the buffer that it came in is soon another's.
    pub(crate) frame: Box<[u8]>,
}

impl Errand {
    /// Runs it, and brings back the answer.
    pub(crate) async fn run(self) -> Vec<u8> {
        let mut places = Places::default();
        // It is whole: it was found so before.
        frame::read(&self.frame, &mut places);
        let words = Words::new(&self.frame, &places);
        let mut bytes = Vec::new();
        let mut replies = Replies { bytes: &mut bytes, protocol: self.protocol };
        let mut recent = throttle::Recent::default();
        let mut asker = Asker { service: &self.service, now: self.now, recent: &mut recent };
        self.asking.answer(&mut asker, &words, &mut replies).await;
        bytes
    }
}
