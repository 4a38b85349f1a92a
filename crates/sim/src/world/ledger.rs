//! What happened to one key, in the order it happened at the store.

use std::collections::VecDeque;

use tidegate_core::Timestamp;

use super::meter::Meter;
use super::numbers::{Numbers, Tables};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    /// Let in on the store's word.
    Admitted,
    /// Denied, failed, let in on another word, or gone with its node.
    Out,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// A charge of the store, which counts if its request is let in by it.
    Taken { request: usize, units: u64, at: Timestamp, revision: usize },
    /// Let in on units that were taken before.
    Spent { request: usize, units: u64, at: Timestamp, revision: usize },
    /// The store has forgotten units; what of it is not spent yet may be until then.
    Lost { units: u64, at: Timestamp, revision: usize, until: u64 },
    /// Units were given back, as above.
    Returned { units: u64, at: Timestamp, revision: usize, until: u64 },
    /// A place was given back.
    Released { request: usize },
    /// A debt that new numbers do not allow was cut down to what they do.
    Repaired { at: Timestamp, revision: usize },
    /// The store's clock was set.
    Set { before: Timestamp, after: Timestamp },
}

/// The books of one key.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What was let in.
    pub(crate) admitted: Meter,
    /// What was charged, be it that nobody learned of it; none if that cannot be told any more.
    pub(crate) booked: Option<Meter>,
    /// The store has forgotten something, and what was charged may be less than that by now.
    pub(crate) is_beyond: bool,
    /// A debt has been cut down to what new numbers allow.
    pub(crate) was_cut: bool,
    /// When something freed units last, in microseconds after the world began.
    pub(crate) freed_at: Option<u64>,
    /// What cannot be judged yet, because the fate of some request before it is open.
    pending: VecDeque<Entry>,
}

impl Ledger {
    pub(crate) fn new(numbers: &Numbers) -> Self {
        Self {
            admitted: Meter::new(numbers),
            booked: Some(Meter::new(numbers)),
            is_beyond: false,
            was_cut: false,
            freed_at: None,
            pending: VecDeque::new(),
        }
    }

    pub(crate) fn note(&mut self, entry: Entry) {
        self.pending.push_back(entry);
    }

    /// Units were booked by force, as far as there was room.
    pub(crate) fn force(&mut self, by: &Numbers, at: Timestamp, units: u64) {
        match &mut self.booked {
            // There may be more room at the store than in this book.
            Some(booked) if self.is_beyond => booked.add(by, at, units, 0),
            Some(booked) => booked.force(by, at, units),
            None => {}
        }
    }

    /// Whether the store has to let so many in.
    pub(crate) fn must_admit(&self, by: &Numbers, at: Timestamp, cost: u64) -> bool {
        self.booked.as_ref().is_some_and(|booked| booked.fits_surely(by, at, cost))
    }

    /// Judges what can be judged by now: the first request that took more than there was, and how much.
    pub(crate) fn settle(
        &mut self,
        tables: &Tables,
        fate: impl Fn(usize) -> Fate,
    ) -> Option<(usize, u64)> {
        let mut excess = None;
        while let Some(entry) = self.pending.front() {
            let it = &mut self.admitted;
            match *entry {
                Entry::Taken { request, .. } if fate(request) == Fate::Open => break,
                Entry::Taken { request, .. } if fate(request) == Fate::Out => {}
                Entry::Taken { request, units, at, revision }
                | Entry::Spent { request, units, at, revision } => {
                    let by = &tables.policy[revision];
                    let fits = it.fits(by, at, units);
                    excess = excess.or((!fits).then_some((request, units)));
                    it.add(by, at, units, request);
                }
                Entry::Lost { units, at, revision, until }
                | Entry::Returned { units, at, revision, until } => {
                    it.forgive(&tables.policy[revision], at, units, until);
                }
                Entry::Released { request } => it.release(request),
                Entry::Repaired { at, revision } => {
                    it.repair(&tables.cut[revision], at);
                }
                Entry::Set { before, after } => it.set_clock(&tables.policy[0], before, after),
            }
            self.pending.pop_front();
        }
        excess
    }
}
