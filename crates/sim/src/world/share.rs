//! What a node lets in of one key by its share of the limit, judged in the order in which that was decided.
//!
//! A request of two keys may take of a share and then wait for the store for the other key. Whether it did is
//! known when it is answered; nothing that came after it is judged before.

use std::collections::VecDeque;

use tidegate_core::{Span, Timestamp};

use super::meter::{Meter, Missed};
use super::numbers::Numbers;

/// The share of one key, on one node, in one of its lives.
#[derive(Debug)]
pub(crate) struct Share {
    used: Meter,
    pending: VecDeque<Entry>,
    /// Until then somebody may have begun a window who took nothing in the end.
    begun: Timestamp,
    /// Requests that may hold something now and give it back later.
    holders: u32,
    /// By whose numbers they took it; and whether others have decided meanwhile by other numbers.
    revision: usize,
    is_mixed: bool,
    /// What was given back meanwhile, and may have gone for what they hold.
    missed: Missed,
}

/// What happened to it, by the store's clock as the node knows it.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// A request of two keys came that is not answered yet.
    Open { request: usize, at: Timestamp, revision: usize },
    /// A request was decided, and let in for so many units.
    Decided { request: usize, at: Timestamp, revision: usize, admitted: Option<u64> },
    /// A request of two keys came that may have taken units, and given them back at once or later.
    Touched { at: Timestamp, revision: usize, is_holder: bool },
    /// That was now, when the clock had seemed to go back by so much.
    GaveBack { at: Timestamp, revision: usize, units: u64, back: Span },
    /// Units were given back that had been let in.
    Returned { at: Timestamp, revision: usize, units: u64 },
    /// The clock was found to be another.
    Set { before: Timestamp, after: Timestamp },
}

impl Share {
    pub(crate) fn new(by: &Numbers) -> Self {
        let (pending, begun, missed) = (VecDeque::new(), Timestamp::EPOCH, Missed::NOTHING);
        let used = Meter::new(by);
        Self { used, pending, begun, holders: 0, revision: 0, is_mixed: false, missed }
    }

    /// A request of two keys comes.
    pub(crate) fn opened(&mut self, request: usize, at: Timestamp, revision: usize) {
        self.pending.push_back(Entry::Open { request, at, revision });
    }

    /// It has taken units when it came, and keeps them.
    pub(crate) fn took_first(&mut self, request: usize, units: u64) {
        self.close(request, |at, revision| {
            let admitted = Some(units);
            Entry::Decided { request, at, revision, admitted }
        });
    }

    /// What it may have taken when it came, it gave back by now.
    pub(crate) fn let_go(&mut self, request: usize, units: u64, at: Timestamp, back: Span) {
        let is_holder = |then| then != at || !back.is_zero();
        let touched = |at, revision| Entry::Touched { at, revision, is_holder: is_holder(at) };
        let opened = self.close(request, touched).filter(|(then, _)| is_holder(*then));
        if let Some((_, revision)) = opened {
            self.pending.push_back(Entry::GaveBack { at, revision, units, back });
        }
    }

    /// The store has answered it, and the share was not asked.
    pub(crate) fn passed_by(&mut self, asked: usize) {
        let is_it = |it: &Entry| matches!(it, Entry::Open { request, .. } if *request == asked);
        self.pending.retain(|it| !is_it(it));
    }

    /// It is answered, or gone. Says when it came, and by which numbers.
    fn close(
        &mut self,
        asked: usize,
        with: impl FnOnce(Timestamp, usize) -> Entry,
    ) -> Option<(Timestamp, usize)> {
        self.pending
            .iter_mut()
            .find_map(|entry| match *entry {
                Entry::Open { request, at, revision } if request == asked => {
                    Some((entry, at, revision))
                }
                _ => None,
            })
            .map(|(entry, at, revision)| {
                *entry = with(at, revision);
                (at, revision)
            })
    }

    /// A request is decided, and perhaps let in.
    pub(crate) fn decided(
        &mut self,
        request: usize,
        at: Timestamp,
        revision: usize,
        admitted: Option<u64>,
    ) {
        self.pending.push_back(Entry::Decided { request, at, revision, admitted });
    }

    /// Somebody gives units back.
    pub(crate) fn returned(&mut self, at: Timestamp, revision: usize, units: u64) {
        self.pending.push_back(Entry::Returned { at, revision, units });
    }

    /// The clock is another than it seemed to be.
    pub(crate) fn set_clock(&mut self, before: Timestamp, after: Timestamp) {
        self.pending.push_back(Entry::Set { before, after });
    }

    /// Judges what can be judged by now: the first request that was let in by more than there was, and its units.
    pub(crate) fn settle(&mut self, shares: &[Numbers]) -> Option<(usize, u64)> {
        let mut excess = None;
        while let Some(entry) = self.pending.front() {
            let it = &mut self.used;
            match *entry {
                Entry::Open { .. } => break,
                Entry::Decided { request, at, revision, admitted } => {
                    let by = &shares[revision];
                    self.is_mixed |= revision != self.revision;
                    it.forget_blank();
                    touch(it, by, at);
                    if let Some(units) = admitted {
                        let is_window = matches!(by, Numbers::Window { .. });
                        let has_begun = is_window && !it.fits(by, at, units);
                        let at = if has_begun { at.max(self.begun) } else { at };
                        excess = excess.or((!it.fits(by, at, units)).then_some((request, units)));
                        it.add(by, at, units, None);
                    }
                }
                Entry::Touched { at, revision, is_holder } => {
                    self.begun = self.begun.max(at);
                    if self.holders == 0 {
                        (self.revision, self.is_mixed) = (revision, false);
                    }
                    self.is_mixed |= revision != self.revision;
                    self.holders += u32::from(is_holder);
                    touch(it, &shares[revision], at);
                }
                Entry::GaveBack { at, revision, units, back } => {
                    let by = &shares[revision];
                    it.give_instead(by, at, units, &mut self.missed);
                    // It gives back what is owed for it still. That is more than would be owed without it only
                    // where others may have cut in between what was kept against the key, or where the clock
                    // seemed to have gone on, so that more was refilled than there seems now to have been.
                    if let Numbers::Bucket { unit, scale, .. } = *by {
                        let time = u128::from(units) * unit;
                        let refilled = scale * u128::from(back.as_micros());
                        let more = if self.is_mixed { time } else { time.min(refilled) };
                        it.forgive_time(by, at, more, 0);
                    }
                    self.holders -= 1;
                    if self.holders == 0 {
                        self.missed = Missed::NOTHING;
                    }
                }
                Entry::Returned { at, revision, units } => {
                    let by = &shares[revision];
                    self.is_mixed |= revision != self.revision;
                    touch(it, by, at);
                    let missed = it.give_back(by, at, units);
                    if self.holders > 0 {
                        self.missed.add(missed);
                    }
                }
                // What has been refilled by then does not come back: nobody need keep it.
                Entry::Set { before, after } => {
                    it.set_clock(&shares[0], before, after);
                    // A clock that is set back by less goes on in the window that was begun.
                    if !is_next(&shares[0], after, self.begun) {
                        self.begun = self.begun.min(after);
                    }
                }
            }
            self.pending.pop_front();
        }
        excess
    }
}

/// Whether a time is in the same window as another, or the one after it.
const fn is_next(by: &Numbers, now: Timestamp, later: Timestamp) -> bool {
    match *by {
        Numbers::Window { length, .. } => {
            later.as_micros() / length <= now.as_micros() / length + 1
        }
        _ => false,
    }
}

/// A decision leaves nothing that cannot be by its numbers, nor what had left the log by then.
fn touch(used: &mut Meter, by: &Numbers, at: Timestamp) {
    used.repair(by, at);
    if matches!(by, Numbers::Log { .. }) {
        used.add(by, at, 0, None);
    }
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;
