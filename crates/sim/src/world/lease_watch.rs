//! What becomes of units that a node takes ahead: none is spent or given back that was not granted, none is
//! granted that the store has not charged, and none is spent a lease time after it was, or in another window.

use std::collections::VecDeque;

use tidegate::store::lease::{LEASE, LeaseStats, QUANTUM};

/// What one node has been granted, in one of its lives.
#[derive(Debug)]
pub(crate) struct LeaseWatch {
    /// Units that the store has charged for it.
    charged: u64,
    /// Of them, units that a request was let in on at once.
    direct: u64,
    /// Units that it has sent back.
    returned: u64,
    /// What it said that it has spent when it was last asked.
    spent: u64,
    keys: Vec<KeyWatch>,
}

#[derive(Clone, Debug, Default)]
struct KeyWatch {
    /// When the store was last known to have less than was asked for.
    dry_at: Option<u64>,
    /// What may still be spent.
    grants: VecDeque<Granted>,
}

/// Units that the store has charged.
#[derive(Clone, Copy, Debug)]
struct Granted {
    request: usize,
    units: u64,
    term: Term,
}

/// Until when units may be spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Term {
    /// For a lease time from this instant on.
    From(u64),
    /// In the window of this number.
    In(u64),
}

impl Term {
    /// Whether units of this term may be spent when others of that term are charged.
    fn lasts(self, present: Self) -> bool {
        match (self, present) {
            (Self::From(then), Self::From(now)) => now <= then + LEASE.as_micros(),
            (window, present) => window == present,
        }
    }
}

impl LeaseWatch {
    pub(crate) fn new(keys: usize) -> Self {
        let keys = vec![KeyWatch::default(); keys];
        Self { charged: 0, direct: 0, returned: 0, spent: 0, keys }
    }

    /// The store has charged units for a request.
    pub(crate) fn charged(&mut self, key: usize, request: usize, units: u64, term: Term) {
        self.charged += units;
        if let Some(it) = self.keys.get_mut(key) {
            it.grants.push_back(Granted { request, units, term });
        }
    }

    /// A request was let in on its own charge.
    pub(crate) fn let_in(&mut self, key: usize, request: usize, units: u64) {
        self.direct += units;
        let Some(it) = self.keys.get_mut(key) else { return };
        // Before that, units may have been taken ahead on its behalf.
        let own = |grant: &Granted| grant.request == request && grant.units == units;
        if let Some(last) = it.grants.iter().rposition(own) {
            it.grants.remove(last);
        }
    }

    /// A request was let in on what was taken ahead; false if there is not so much that has not ended.
    pub(crate) fn spend(&mut self, key: usize, units: u64, present: Term) -> bool {
        let Some(it) = self.keys.get_mut(key) else { return false };
        it.grants.retain(|grant| grant.term.lasts(present));
        let mut rest = units;
        while let Some(oldest) = it.grants.front_mut().filter(|_| rest > 0) {
            let used = rest.min(oldest.units);
            (oldest.units, rest) = (oldest.units - used, rest - used);
            if oldest.units == 0 {
                it.grants.pop_front();
            }
        }
        rest == 0
    }

    /// The store had less than was asked for.
    pub(crate) fn ran_dry(&mut self, now: u64, key: usize) {
        if let Some(it) = self.keys.get_mut(key) {
            it.dry_at = Some(now);
        }
    }

    /// Whether the store need not be asked again yet; clocks may run slow.
    pub(crate) fn is_dry(&self, now: u64, key: usize) -> bool {
        let until = |at: u64| at + QUANTUM.as_micros() + QUANTUM.as_micros() / 1_000 + 1;
        self.keys.get(key).and_then(|it| it.dry_at).is_some_and(|at| now <= until(at))
    }

    /// Sends units back; false if it has not got them.
    pub(crate) fn returned(&mut self, units: u64, says: &LeaseStats) -> bool {
        self.returned += units;
        self.returned <= says.returned
    }

    /// A request was answered: how many units were spent on it, or what is wrong with the books.
    pub(crate) fn answered(&mut self, says: &LeaseStats) -> Result<u64, String> {
        let LeaseStats { granted, spent, unspent, returned, expired, outstanding, .. } = *says;
        if granted + unspent != spent + returned + expired + outstanding {
            return Err(format!("{says:?} does not add up"));
        }
        if granted + self.direct > self.charged {
            let (charged, direct) = (self.charged, self.direct);
            return Err(format!(
                "{granted} units were granted and {direct} let in of {charged} charged"
            ));
        }
        let before = std::mem::replace(&mut self.spent, spent);
        Ok(spent.saturating_sub(before))
    }
}
