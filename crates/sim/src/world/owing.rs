//! What a node lets in while the store is away: no more than its share, and all of it is booked.
//!
//! A node goes by the store's clock as far as it knows it. If that turns out to be earlier than it thought
//! (it was set back; or the node started with a wrong clock of its own, and has heard of the store only
//! now), what is owed seems to be owed for longer, or to be from another window. Whether something is left to
//! book is not judged then; that no more is booked than was let in always is.

use tidegate_core::{Span, Timestamp};

use super::meter::Meter;
use super::network::DEADLINE;
use super::numbers::{Numbers, Tables};

/// The books of one node in one of its lives, by its own clock as it thinks the store's to be.
#[derive(Debug)]
pub(crate) struct Owing {
    keys: Vec<Account>,
    latest: Timestamp,
    was_ahead: bool,
}

/// The clock may seem to go back by the time that messages take.
const JITTER: Span = Span::from_millis(10);
/// A request of two keys waits no longer: for each key at most three times until the store's deadline.
const OTHERS: u64 = 6 * DEADLINE;

#[derive(Debug)]
struct Account {
    /// What was let in by the share.
    share: Meter,
    /// What was let in at all and is neither booked nor refilled.
    owed: Meter,
    /// Units let in, and units booked.
    admitted: u64,
    booked: u64,
    /// When a request of two keys asked for it last.
    asked_with: Timestamp,
}

impl Owing {
    pub(crate) fn new(tables: &Tables, keys: usize) -> Self {
        let account = |_| Account {
            share: Meter::new(&tables.share[0]),
            owed: Meter::new(&tables.owed[0]),
            admitted: 0,
            booked: 0,
            asked_with: Timestamp::EPOCH,
        };
        let keys = (0..keys).map(account).collect();
        Self { keys, latest: Timestamp::EPOCH, was_ahead: false }
    }

    /// What the node thinks the store's clock to say.
    pub(crate) fn supposes(&mut self, tables: &Tables, at: Timestamp) {
        if self.latest.since(at) > JITTER {
            self.was_ahead = true;
            // What has been refilled by then does not come back: nobody need keep it.
            let by = &tables.share[0];
            for it in &mut self.keys {
                it.share.set_clock(by, self.latest, at);
                it.asked_with = it.asked_with.min(at);
            }
            self.latest = at;
        }
        self.latest = self.latest.max(at);
    }

    /// A share has decided; false if it let in more than it holds.
    pub(crate) fn shared(
        &mut self,
        tables: &Tables,
        (key, revision): (usize, usize),
        at: Timestamp,
        admitted: Option<u64>,
    ) -> bool {
        let (Some(it), by) = (self.keys.get_mut(key), &tables.share[revision]) else { return true };
        it.share.forget_blank();
        it.share.repair(by, at);
        let Some(units) = admitted else { return true };
        // Who is not answered yet may have begun a window that the clock seems to have gone back from.
        let is_window = matches!(by, Numbers::Window { .. });
        let may_turn = is_window && !it.share.fits(by, at, units);
        let at = if may_turn { at.max(it.asked_with) } else { at };
        let fits = it.share.fits(by, at, units);
        it.share.add(by, at, units, None);
        fits
    }

    /// The same of units that were taken before the store was waited for, which counts only now. The clock may
    /// seem to have gone back since: then others have been counted in a window, or by a weight, that it was not
    /// decided by, and only a bucket tells.
    pub(crate) fn shared_first(
        &mut self,
        tables: &Tables,
        place: (usize, usize),
        (then, now): (Timestamp, Timestamp),
        units: u64,
    ) -> bool {
        let latest = self.latest.max(then);
        let fits = self.shared(tables, place, latest.max(now), Some(units));
        let is_bucket = matches!(tables.share[place.1], Numbers::Bucket { .. });
        fits || latest > now && !is_bucket
    }

    /// One of two keys may be decided without the store before the other is asked for: by new numbers, a bucket
    /// keeps less against it from then on.
    pub(crate) fn asked_with(
        &mut self,
        tables: &Tables,
        (key, revision): (usize, usize),
        at: Timestamp,
    ) {
        let Some(it) = self.keys.get_mut(key) else { return };
        it.asked_with = at;
        if matches!(it.share, Meter::Bucket { .. }) {
            it.share.repair(&tables.share[revision], at);
        }
    }

    /// So many units of the share may have been held from then until now, for a request that waited for the
    /// store. If they were taken first they are counted only now: there is more by what was refilled in
    /// between, or by all if their window is over. If they were given back, there is more only where others cut
    /// in between what was kept against the key, by new numbers.
    pub(crate) fn held(
        &mut self,
        tables: &Tables,
        (key, revision): (usize, usize),
        (then, now): (Timestamp, Timestamp),
        (units, was_first): (u64, bool),
    ) {
        let (now, back) = (now.max(self.latest), self.latest.since(now));
        let (Some(it), by) = (self.keys.get_mut(key), &tables.share[revision]) else { return };
        // Others may have taken some in between who are not heard of yet: it holds for theirs as well.
        let until = now.as_micros() + OTHERS;
        match *by {
            Numbers::Bucket { .. } if tables.share.len() > 1 => {
                it.share.forgive(by, now, units, until);
            }
            Numbers::Bucket { unit, scale, .. } => {
                // Where the clock seems to have gone back nobody knows what was refilled.
                let time = if was_first { now.since(then) } else { back };
                let refilled = scale * u128::from(time.as_micros());
                it.share.forgive_time(by, now, refilled.min(u128::from(units) * unit), until);
            }
            _ if !was_first => {}
            Numbers::Window { length, .. }
                if then.as_micros() / length == now.as_micros() / length => {}
            _ => it.share.forgive(by, now, units, until),
        }
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
        // It may go for units that are held for a request of two keys, and counts when those do.
        let until = if tables.has_pairs { at.as_micros() + OTHERS } else { 0 };
        let share = &tables.share[revision];
        if !it.share.is_blank(share, at) {
            it.share.repair(share, at);
            it.share.forgive(share, at, units, until);
        } else if tables.has_pairs {
            it.share.credit(share, at, units);
        }
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
