//! What happened to one key, in the order it happened at the store.

use std::collections::VecDeque;

use tidegate::store::lease::LEASE;
use tidegate_core::{LeaseId, Timestamp};

use super::lease_watch::{InWindow, Spent, Term};
use super::meter::Meter;
use super::numbers::{Judges, Numbers, Tables};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Open,
    /// Let in on what this call has charged.
    Charged(usize),
    /// Let in on units that were taken before.
    Spent,
    /// Denied, failed, let in on another word, or gone with its node.
    Out,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// A charge of the store, which counts if its request is let in by it.
    Taken {
        request: usize,
        call: usize,
        units: u64,
        at: Timestamp,
        by: Judges,
        place: Option<LeaseId>,
    },
    /// Units that were taken before are spent, which counts if their request is let in.
    Spent { request: usize, spent: Spent, at: Timestamp, by: Judges },
    /// The store has forgotten units; what of it is not spent yet may be until then.
    Lost { place: Option<LeaseId>, units: u64, at: Timestamp, revision: usize, until: u64 },
    /// Units were given back, as above.
    Returned { units: u64, at: Timestamp, revision: usize, until: u64 },
    /// A place was given back.
    Released { place: LeaseId },
    /// The store cut a debt by so much time, down to what these numbers allow.
    Repaired { at: Timestamp, revision: usize, time: u128 },
    /// The store's clock was set, or its memory: it goes on in this window, if it has windows, and there
    /// afresh if that is further back than it knows. So much that was granted may still be spent, in the time
    /// that it takes to be refilled.
    Set { before: Timestamp, after: Timestamp, window: Option<u64>, is_afresh: bool, held: u128 },
}

/// How far behind a server that takes over may be, in microseconds.
const MAX_LAG: u64 = 1_000_000;

/// The books of one key.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What was let in.
    admitted: Meter,
    /// What the store has charged, be it that nobody learned of it.
    pub(crate) booked: Meter,
    /// The same as it was before each of the last commands, and when that was.
    earlier: VecDeque<(u64, Meter)>,
    /// For each revision, until when what was granted by it may be spent.
    granted: Vec<Option<Term>>,
    /// What a bucket has granted in the last lease time, in the time that it takes to be refilled.
    recent: VecDeque<(Term, u128)>,
    /// How often it was another window all of a sudden, how often the store was not what it was any more,
    /// and how often its clock was set back.
    steps: u64,
    sets: u64,
    backs: u64,
    /// When something freed units last, in microseconds after the world began.
    pub(crate) freed_at: Option<u64>,
    /// What cannot be judged yet, because the fate of some request before it is open.
    pending: VecDeque<Entry>,
}

impl Ledger {
    pub(crate) fn new(numbers: &[Numbers]) -> Self {
        Self {
            admitted: Meter::new(&numbers[0]),
            booked: Meter::new(&numbers[0]),
            earlier: VecDeque::new(),
            granted: vec![None; numbers.len()],
            recent: VecDeque::new(),
            steps: 0,
            sets: 0,
            backs: 0,
            freed_at: None,
            pending: VecDeque::new(),
        }
    }

    pub(crate) fn note(&mut self, entry: Entry) {
        self.pending.push_back(entry);
    }

    /// The store is about to change what it has.
    pub(crate) fn remember(&mut self, now: u64) {
        while self.earlier.front().is_some_and(|(at, _)| at + MAX_LAG < now) {
            self.earlier.pop_front();
        }
        self.earlier.push_back((now, self.booked.clone()));
    }

    /// The store has what it had then.
    pub(crate) fn go_back(&mut self, by: &Numbers, since: u64, at: Timestamp) {
        let window = self.booked.counting(by, at);
        while self.earlier.back().is_some_and(|(at, _)| *at > since)
            && let Some((_, booked)) = self.earlier.pop_back()
        {
            self.booked = booked;
        }
        self.changed(by, window, (at, at));
    }

    /// The store is not what it was when it was in this window.
    fn changed(
        &mut self,
        by: &Numbers,
        window: Option<u64>,
        (before, after): (Timestamp, Timestamp),
    ) {
        let present = self.booked.counting(by, after);
        let is_afresh = after < before && self.booked.is_far_ahead(by, after);
        self.sets += 1;
        self.steps += u64::from(present != window);
        self.backs += u64::from(after < before);
        self.booked.owe_again(by, after);
        let held = self.recent.iter().map(|(_, time)| time).sum();
        self.note(Entry::Set { before, after, window: present, is_afresh, held });
    }

    /// How long units may be spent that are charged now.
    pub(crate) fn term(&self, by: &Numbers, now: u64, at: Timestamp) -> Term {
        let window = self.booked.counting(by, at);
        let until = match (*by, window) {
            (Numbers::Window { length, .. }, Some(number)) => {
                now + ((number + 1) * length).saturating_sub(at.as_micros())
            }
            _ => now + LEASE.as_micros(),
        };
        let window = window.map(|number| InWindow { number, steps: self.steps });
        Term { from: now, until, window, sets: self.sets, backs: self.backs }
    }

    /// The store's clock was set.
    pub(crate) fn set_clock(
        &mut self,
        by: &Numbers,
        now: u64,
        (before, after): (Timestamp, Timestamp),
    ) {
        self.forget(self.term(by, now, before));
        let window = self.booked.counting(by, before);
        self.changed(by, window, (before, after));
    }

    /// Units were granted by the numbers of this revision, to be spent within this term.
    pub(crate) fn grant(&mut self, revision: usize, by: &Numbers, units: u64, term: Term) {
        self.granted[revision] = Some(term);
        if let Numbers::Bucket { unit, .. } = by {
            self.recent.push_back((term, u128::from(units) * unit));
        }
        self.forget(term);
    }

    /// What was granted so long ago cannot be spent any more.
    fn forget(&mut self, present: Term) {
        while self.recent.front().is_some_and(|(term, _)| !term.lasts(present)) {
            self.recent.pop_front();
        }
    }

    /// Who judges what is let in now by these numbers.
    pub(crate) fn judges(&self, tables: &Tables, own: usize, present: Term) -> Judges {
        let is_there = |it: &usize| self.granted[*it].is_some_and(|term| term.counts(present));
        let there = (0..self.granted.len()).filter(is_there);
        let largest = there.max_by_key(|it| tables.policy[*it].size()).unwrap_or(own);
        let is_larger = tables.policy[largest].size() > tables.policy[own].size();
        Judges { own, largest: if is_larger { largest } else { own } }
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
                Entry::Taken { request, .. } | Entry::Spent { request, .. }
                    if fate(request) == Fate::Open =>
                {
                    break;
                }
                Entry::Taken { request, call, .. } if fate(request) != Fate::Charged(call) => {}
                Entry::Spent { request, .. } if fate(request) != Fate::Spent => {}
                Entry::Taken { request, units, at, by, place, .. } => {
                    let by = tables.judged(by);
                    let fits = it.fits(&by, at, units);
                    excess = excess.or((!fits).then_some((request, units)));
                    it.add(&by, at, units, place);
                }
                Entry::Spent { request, spent: Spent { counted, judged }, at, by } => {
                    let by = tables.judged(by);
                    let fits = judged == 0 || it.fits(&by, at, judged);
                    excess = excess.or((!fits).then_some((request, judged)));
                    it.add(&by, at, counted, None);
                }
                Entry::Lost { place, units, at, revision, until } => {
                    it.forgive(&tables.policy[revision], at, units, until);
                    place.into_iter().for_each(|place| it.release(place));
                }
                Entry::Returned { units, at, revision, until } => {
                    it.forgive(&tables.policy[revision], at, units, until);
                }
                Entry::Released { place } => it.release(place),
                // Of what was taken ahead some is not spent yet: it is forgiven as well.
                Entry::Repaired { at, revision, time } if tables.is_leased => {
                    let until = at.as_micros() + LEASE.as_micros();
                    it.forgive_time(&tables.policy[revision], at, time, until);
                }
                Entry::Repaired { at, revision, .. } => {
                    it.repair(&tables.policy[revision], at);
                }
                Entry::Set { before, after, window, is_afresh, held } => {
                    it.set_clock(&tables.policy[0], before, after);
                    if tables.is_leased {
                        it.carry_over(&tables.policy[0], (before, after), held);
                    }
                    window.into_iter().for_each(|window| it.go_on_in(window, is_afresh));
                }
            }
            self.pending.pop_front();
        }
        excess
    }
}
