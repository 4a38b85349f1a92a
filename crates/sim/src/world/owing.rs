//! What a node lets in while the store is away: no more than its share, and all of it is booked.
//!
//! A node goes by the store's clock as far as it knows it. If that turns out to be earlier than it thought
//! (it was set back; or the node started with a wrong clock of its own, and has heard of the store only
//! now), what is owed seems to be owed for longer, or to be from another window. Whether something is left to
//! book is not judged then; that no more is booked than was let in always is.

use tidegate_core::{Span, Timestamp};

use super::meter::Meter;
use super::numbers::Tables;
use super::share::Share;

/// The books of one node in one of its lives, by its own clock as it thinks the store's to be.
#[derive(Debug)]
pub(crate) struct Owing {
    keys: Vec<Account>,
    latest: Timestamp,
    was_ahead: bool,
}

/// The clock may seem to go back by the time that messages take.
const JITTER: Span = Span::from_millis(10);

#[derive(Debug)]
struct Account {
    /// What was let in by the share.
    share: Share,
    /// What was let in at all and is neither booked nor refilled.
    owed: Meter,
    /// Units let in, and units booked.
    admitted: u64,
    booked: u64,
}

impl Owing {
    pub(crate) fn new(tables: &Tables, keys: usize) -> Self {
        let account = |_| Account {
            share: Share::new(&tables.share[0]),
            owed: Meter::new(&tables.owed[0]),
            admitted: 0,
            booked: 0,
        };
        let keys = (0..keys).map(account).collect();
        Self { keys, latest: Timestamp::EPOCH, was_ahead: false }
    }

    /// What the node thinks the store's clock to say.
    pub(crate) fn supposes(&mut self, at: Timestamp) {
        if self.latest.since(at) > JITTER {
            self.was_ahead = true;
            self.keys.iter_mut().for_each(|it| it.share.set_clock(self.latest, at));
            self.latest = at;
        }
        self.latest = self.latest.max(at);
    }

    /// A request of two keys comes, and may take of a share before it waits for the store.
    pub(crate) fn opened(
        &mut self,
        (key, revision): (usize, usize),
        request: usize,
        at: Timestamp,
    ) {
        self.keys.get_mut(key).into_iter().for_each(|it| it.share.opened(request, at, revision));
    }

    /// It did, and is let in.
    pub(crate) fn took_first(&mut self, key: usize, request: usize, units: u64) {
        self.keys.get_mut(key).into_iter().for_each(|it| it.share.took_first(request, units));
    }

    /// If it did, it has given that back by now.
    pub(crate) fn let_go(&mut self, key: usize, request: usize, units: u64, now: Timestamp) {
        let (at, back) = (self.latest.max(now), self.latest.since(now));
        let it = self.keys.get_mut(key).into_iter();
        it.for_each(|it| it.share.let_go(request, units, at, back));
    }

    /// It was answered, and did not.
    pub(crate) fn passed_by(&mut self, key: usize, request: usize) {
        self.keys.get_mut(key).into_iter().for_each(|it| it.share.passed_by(request));
    }

    /// A share has decided.
    pub(crate) fn shared(
        &mut self,
        (key, revision): (usize, usize),
        request: usize,
        at: Timestamp,
        admitted: Option<u64>,
    ) {
        let it = self.keys.get_mut(key).into_iter();
        it.for_each(|it| it.share.decided(request, at, revision, admitted));
    }

    /// The first request that was let in by more than the share of a key, as far as can be told by now.
    pub(crate) fn settle(&mut self, tables: &Tables, key: usize) -> Option<(usize, u64)> {
        self.keys.get_mut(key).and_then(|it| it.share.settle(&tables.share))
    }

    /// Units were let in without the store.
    pub(crate) fn let_in(
        &mut self,
        tables: &Tables,
        (key, revision): (usize, usize),
        at: Timestamp,
        units: u64,
    ) {
        let Some(it) = self.keys.get_mut(key) else { return };
        it.owed.repair(&tables.owed[revision], at);
        it.owed.force(&tables.owed[revision], at, units);
        it.admitted += units;
    }

    /// Units were given back without the store.
    pub(crate) fn returned(
        &mut self,
        tables: &Tables,
        (key, revision): (usize, usize),
        at: Timestamp,
        units: u64,
    ) {
        let Some(it) = self.keys.get_mut(key) else { return };
        it.share.returned(at, revision, units);
        if !it.owed.is_blank(&tables.owed[revision], at) {
            it.owed.repair(&tables.owed[revision], at);
            it.owed.forgive(&tables.owed[revision], at, units, 0);
        }
    }

    /// Units were booked, and the node knows it; by how many that is more than was let in.
    pub(crate) fn booked(
        &mut self,
        tables: &Tables,
        (key, revision): (usize, usize),
        at: Timestamp,
        units: u64,
    ) -> u64 {
        let Some(it) = self.keys.get_mut(key) else { return 0 };
        it.owed.forgive(&tables.owed[revision], at, units, 0);
        it.booked += units;
        it.booked.saturating_sub(it.admitted)
    }

    /// The first key that still owes something, and how much.
    pub(crate) fn unbooked(
        &self,
        tables: &Tables,
        revision: usize,
        at: Timestamp,
    ) -> Option<(usize, u64)> {
        let units = |it: &Account| it.owed.units(&tables.owed[revision], at);
        let each = self.keys.iter().map(units).enumerate();
        each.into_iter().find(|(_, units)| *units > 0 && !self.was_ahead)
    }
}
