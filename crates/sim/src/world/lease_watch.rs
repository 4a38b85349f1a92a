//! What becomes of units that a node takes ahead, counted on the wire: what the store has granted and the
//! node has heard of, what was sent back. What the node says of itself is held against that; what it says it has
//! spent, against what the request asks for that it did something for. None is spent a lease time after it was
//! charged, or after the window that it was charged in.

use std::collections::VecDeque;

use tidegate::store::lease::{LeaseStats, QUANTUM};

use super::network::DEADLINE;

/// What one node has been granted, in one of its lives.
#[derive(Debug)]
pub(crate) struct LeaseWatch {
    /// Units that the store has granted, and the node has heard of it.
    granted: u64,
    /// What the node has said of itself.
    said: Moved,
    /// Units that it has sent back.
    returned: u64,
    /// The last numbers that it has got in this life.
    learned: Option<usize>,
    keys: Vec<KeyWatch>,
}

/// Units that a node has got to spend, that it has spent on requests, and that it has taken back from some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) granted: u64,
    pub(crate) spent: u64,
    pub(crate) unspent: u64,
}

#[derive(Clone, Debug, Default)]
struct KeyWatch {
    /// When the store was last known to have less than was asked for.
    dry_at: Option<u64>,
    /// What may still be spent.
    grants: VecDeque<Granted>,
    /// How often something was granted.
    times: u64,
    /// From then on a node may take all that it holds for ended: with the first of it.
    ends: u64,
}

/// Units that the store has granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Granted {
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

/// What was spent on one key of a request, and out of which grants: the last was this.
#[derive(Clone, Debug)]
pub(crate) struct Spending {
    pub(crate) spent: Spent,
    grants: Vec<Granted>,
    times: u64,
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
        Self { granted: 0, said: Moved::default(), returned: 0, learned: None, keys }
    }

    /// The node hears that units of a key were granted to a request. What was granted after that it may
    /// have heard of before.
    pub(crate) fn heard(
        &mut self,
        (key, request): (usize, usize),
        units: u64,
        term: Term,
        present: Term,
    ) {
        self.granted += units;
        if let Some(it) = self.keys.get_mut(key).filter(|_| units > 0) {
            it.grants.retain(|grant| grant.term.lasts(present));
            it.ends = if it.grants.is_empty() { term.until } else { it.ends.min(term.until) };
            it.grants.push_back(Granted { request, units, term });
            it.times += 1;
        }
    }

    /// A request was let in on its own charge, which was none that was taken ahead.
    pub(crate) fn let_in(&mut self, key: usize, request: usize, units: u64) {
        self.granted -= units;
        let Some(it) = self.keys.get_mut(key) else { return };
        // Before that, units may have been taken ahead on its behalf.
        let own = |grant: &Granted| grant.request == request && grant.units == units;
        if let Some(last) = it.grants.iter().rposition(own) {
            it.grants.remove(last);
        }
    }

    /// The node has got new numbers: what it was granted by others is void, or will be.
    pub(crate) const fn learned(&mut self, revision: usize) {
        self.learned = Some(revision);
    }

    /// What the node has done since it was last asked, by its own account; none if it takes something back
    /// that it has said.
    pub(crate) fn moved(&mut self, says: &LeaseStats) -> Option<Moved> {
        let LeaseStats { granted, spent, unspent, .. } = *says;
        let before = std::mem::replace(&mut self.said, Moved { granted, spent, unspent });
        Some(Moved {
            granted: granted.checked_sub(before.granted)?,
            spent: spent.checked_sub(before.spent)?,
            unspent: unspent.checked_sub(before.unspent)?,
        })
    }

    /// Units that were taken ahead are spent on a request. None if there are not so many that have not ended.
    pub(crate) fn spend(&mut self, key: usize, units: u64, present: Term) -> Option<Spending> {
        let it = self.keys.get_mut(key)?;
        it.grants.retain(|grant| grant.term.lasts(present));
        let (mut rest, mut spent, mut grants) = (units, Spent::default(), Vec::new());
        while let Some(oldest) = it.grants.front_mut().filter(|_| rest > 0) {
            let used = rest.min(oldest.units);
            (oldest.units, rest) = (oldest.units - used, rest - used);
            grants.push(Granted { units: used, ..*oldest });
            if oldest.term.counts(present) {
                spent.counted += used;
                spent.judged += if oldest.term.backs == present.backs { used } else { 0 };
            }
            if oldest.units == 0 {
                it.grants.pop_front();
            }
        }
        (rest == 0).then_some(Spending { spent, grants, times: it.times })
    }

    /// They are taken back: the request is not let in after all.
    pub(crate) fn unspend(&mut self, key: usize, spending: &Spending) {
        let Some(it) = self.keys.get_mut(key) else { return };
        for grant in spending.grants.iter().rev() {
            it.grants.push_front(*grant);
        }
    }

    /// Whether they could have been taken back by the numbers of this revision: those have not changed, nothing
    /// has ended, and nothing was granted since.
    pub(crate) fn is_there(
        &self,
        (key, revision): (usize, usize),
        spending: &Spending,
        present: Term,
    ) -> bool {
        let is_known = self.learned.is_none_or(|learned| learned == revision);
        let it = self.keys.get(key).filter(|it| is_known && it.times == spending.times);
        let Some(it) = it else { return false };
        // A node counts from before it asked, and reckons with clocks that differ.
        let is_young = |term: Term| {
            let margin = DEADLINE + (term.until - term.from) / 500;
            term.lasts(present) && present.from + margin < term.until.min(it.ends)
        };
        spending.grants.iter().all(|grant| is_young(grant.term))
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

    /// Whether the node's books are those that were kept here.
    pub(crate) fn agrees(&mut self, presents: &[Term], says: &LeaseStats) -> Result<(), String> {
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
