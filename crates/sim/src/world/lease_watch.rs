//! What becomes of units that a node takes ahead, counted on the wire: what the store has granted and the
//! node has heard of, what requests were let in on, what was sent back. What the node says of itself is held
//! against that. None is spent a lease time after it was charged, or after the window that it was charged in.

use std::collections::{BTreeMap, VecDeque};

use tidegate::store::lease::{LeaseStats, QUANTUM};

/// What one node has been granted, in one of its lives.
#[derive(Debug)]
pub(crate) struct LeaseWatch {
    /// Units that the store has granted, and the node has heard of it.
    granted: u64,
    /// Units of them that requests were let in on.
    spent: u64,
    /// Units that it has sent back.
    returned: u64,
    /// Requests whose last charge was granted and is as large as they are: it may be their own, and need not
    /// be one that was taken ahead. That shows when they are answered.
    own: BTreeMap<usize, u64>,
    keys: Vec<KeyWatch>,
}

#[derive(Clone, Debug, Default)]
struct KeyWatch {
    /// When the store was last known to have less than was asked for.
    dry_at: Option<u64>,
    /// What may still be spent.
    grants: VecDeque<Granted>,
}

/// Units that the store has granted.
#[derive(Clone, Copy, Debug)]
struct Granted {
    request: usize,
    units: u64,
    term: Term,
}

/// How long units may be spent that are charged at some instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// The instant, and the last one, in microseconds after the world began.
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// The window that they count in, if they count in one.
    pub(crate) window: Option<InWindow>,
    /// How often the store's clock was set before, so that windows end at another time than nodes know.
    pub(crate) sets: u64,
    /// How often it was set back: that lets less slide out of a window.
    pub(crate) backs: u64,
}

/// Units that were spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// They count now, and not in a window that the store's clock has left.
    pub(crate) counted: u64,
    /// Of these, whether they fit was not decided by a clock that has been set back since.
    pub(crate) judged: u64,
}

/// A window of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InWindow {
    pub(crate) number: u64,
    /// How often the store's clock has left a window before its end, or gone back to one.
    pub(crate) steps: u64,
}

impl Term {
    /// Whether units of this term may be spent when others of that term are charged: in the same window, or
    /// by a node that cannot know yet that the store's clock was set.
    pub(crate) fn lasts(self, present: Self) -> bool {
        match (self.window, present.window) {
            (Some(then), Some(now)) if self.sets == present.sets => then.number == now.number,
            _ => present.from <= self.until,
        }
    }

    /// Whether units of this term count where others of that term do, as long as they last.
    pub(crate) fn counts(self, present: Self) -> bool {
        self.lasts(present) && self.window == present.window
    }
}

impl LeaseWatch {
    pub(crate) fn new(keys: usize) -> Self {
        let keys = vec![KeyWatch::default(); keys];
        Self { granted: 0, spent: 0, returned: 0, own: BTreeMap::new(), keys }
    }

    /// The node hears that units of a key were granted to a request, which asked for `cost`.
    pub(crate) fn heard(
        &mut self,
        key: usize,
        (request, cost): (usize, u64),
        units: u64,
        term: Term,
    ) {
        self.granted += units;
        self.own.remove(&request);
        if units == cost {
            self.own.insert(request, units);
        }
        if let Some(it) = self.keys.get_mut(key) {
            it.grants.push_back(Granted { request, units, term });
        }
    }

    /// Nobody waits for a request any more.
    pub(crate) fn gone(&mut self, request: usize) {
        self.own.remove(&request);
    }

    /// A request was let in on its own charge, which was none that was taken ahead.
    fn let_in(&mut self, key: usize, request: usize, units: u64) {
        self.granted -= units;
        let Some(it) = self.keys.get_mut(key) else { return };
        // Before that, units may have been taken ahead on its behalf.
        let own = |grant: &Granted| grant.request == request && grant.units == units;
        if let Some(last) = it.grants.iter().rposition(own) {
            it.grants.remove(last);
        }
    }

    /// A request was let in on what was taken ahead. None if there is not so much that has not ended.
    fn spend(&mut self, key: usize, units: u64, present: Term) -> Option<Spent> {
        self.spent += units;
        let it = self.keys.get_mut(key)?;
        it.grants.retain(|grant| grant.term.lasts(present));
        let (mut rest, mut spent) = (units, Spent::default());
        while let Some(oldest) = it.grants.front_mut().filter(|_| rest > 0) {
            let used = rest.min(oldest.units);
            (oldest.units, rest) = (oldest.units - used, rest - used);
            if oldest.term.counts(present) {
                spent.counted += used;
                spent.judged += if oldest.term.backs == present.backs { used } else { 0 };
            }
            if oldest.units == 0 {
                it.grants.pop_front();
            }
        }
        (rest == 0).then_some(spent)
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

    /// Sends units back.
    pub(crate) fn returns(&mut self, units: u64) {
        self.returned += units;
    }

    /// What was sent back by now is what the node says; if not, why.
    pub(crate) fn returned(&self, says: &LeaseStats) -> Result<(), String> {
        match self.returned == says.returned {
            true => Ok(()),
            false => Err(format!("gave back {}, and says {}", self.returned, says.returned)),
        }
    }

    /// A request for units of a key was answered, and let in on the store's word or not. If it was on units
    /// taken ahead, which; or what is wrong with the books.
    pub(crate) fn answered(
        &mut self,
        (key, request): (usize, usize),
        admitted: Option<u64>,
        presents: &[Term],
        says: &LeaseStats,
    ) -> Result<Option<Spent>, String> {
        let present = presents[key];
        let spent = says.spent.checked_sub(says.unspent + self.spent);
        let own = self.own.remove(&request);
        let is_ahead = match (admitted, spent) {
            (Some(cost), Some(0)) if own == Some(cost) => {
                self.let_in(key, request, cost);
                None
            }
            (Some(cost), Some(spent)) if cost == spent => {
                let spent = self.spend(key, cost, present);
                Some(spent.ok_or_else(|| format!("spent {cost} of key {key} that had ended"))?)
            }
            (None, Some(0)) => None,
            _ => {
                let known = self.spent;
                return Err(format!(
                    "spent {known} units before request {request} was let in on {admitted:?}, and says {says:?}"
                ));
            }
        };
        self.agrees(presents, says).map(|()| is_ahead)
    }

    /// Whether the node's books are those that were kept here.
    fn agrees(&mut self, presents: &[Term], says: &LeaseStats) -> Result<(), String> {
        let LeaseStats { granted, spent, unspent, returned, expired, outstanding, .. } = *says;
        if granted + unspent != spent + returned + expired + outstanding {
            return Err(format!("keeps books that do not add up: {says:?}"));
        }
        if granted != self.granted {
            return Err(format!("heard of {} units granted, and says {granted}", self.granted));
        }
        // What it takes out to give back may not get as far as the wire.
        if self.returned > returned {
            return Err(format!("gave back {}, and says {returned}", self.returned));
        }
        let mut held = 0;
        for (it, present) in self.keys.iter_mut().zip(presents) {
            it.grants.retain(|grant| grant.term.lasts(*present));
            held += it.grants.iter().map(|grant| grant.units).sum::<u64>();
        }
        if outstanding > held {
            return Err(format!(
                "can hold {held} units that have not ended, and says {outstanding}"
            ));
        }
        Ok(())
    }
}
