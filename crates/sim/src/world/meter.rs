//! How much of a limit has been used, worked out anew: nothing here is shared with what decides.

use std::collections::VecDeque;

use tidegate::store::lease::LEASE;
use tidegate_core::{LeaseId, Timestamp};

use super::numbers::Numbers;

/// What the units that were let in add up to, by a clock that tells each of them its time.
///
/// A bucket's level is the most by which any interval that ends now exceeds the rate:
/// `max over s of admitted(s, now] - rate * (now - s)`, as the time that it takes to be refilled. No
/// interval admits more than its envelope exactly if the level never exceeds the capacity.
#[derive(Clone, Debug)]
pub(crate) enum Meter {
    Bucket {
        level: u128,
        /// What was forgotten and may still be spent, until then: it is spent first.
        credit: (u128, u64),
        last: u64,
    },
    Window {
        index: u64,
        used: u64,
        previous: u64,
        /// The same, in the window of this number, however long the clock makes that last.
        credit: (u64, u64),
    },
    Log(VecDeque<(u64, u64)>),
    /// Places that are held, and until when.
    Places(Vec<(LeaseId, u64)>),
}

/// What was given back and was not among the newest units: in a window units, of a bucket time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    /// In which window.
    index: u64,
    units: u128,
    /// Of these, taken off the window before.
    aged: u64,
}

impl Missed {
    pub(crate) const NOTHING: Self = Self { index: 0, units: 0, aged: 0 };

    /// In another window it is nothing.
    pub(crate) const fn add(&mut self, other: Self) {
        if self.index != other.index {
            *self = other;
            return;
        }
        (self.units, self.aged) = (self.units + other.units, self.aged + other.aged);
    }
}

impl Meter {
    pub(crate) const fn new(numbers: &Numbers) -> Self {
        match numbers {
            Numbers::Bucket { .. } => Self::Bucket { level: 0, credit: (0, 0), last: 0 },
            Numbers::Window { .. } => {
                Self::Window { index: 0, used: 0, previous: 0, credit: (0, 0) }
            }
            Numbers::Log { .. } => Self::Log(VecDeque::new()),
            Numbers::Places { .. } => Self::Places(Vec::new()),
        }
    }

    /// Whether so many more stay within the limit.
    pub(crate) fn fits(&self, by: &Numbers, at: Timestamp, cost: u64) -> bool {
        let now = at.as_micros();
        match (self, *by) {
            (Self::Bucket { credit, .. }, Numbers::Bucket { unit, capacity, slack, .. }) => {
                let credit = if now <= credit.1 { credit.0 } else { 0 };
                self.level(by, now) + u128::from(cost) * unit <= capacity + credit + slack
            }
            (Self::Window { credit, .. }, Numbers::Window { limit, .. }) => {
                let credit = if self.window(by, now).0 == credit.1 { credit.0 } else { 0 };
                self.estimate(by, now) + cost <= limit + credit
            }
            (Self::Log(entries), Numbers::Log { limit, length }) => {
                let alive = entries.iter().filter(|(entered, _)| entered + length > now);
                alive.map(|(_, units)| units).sum::<u64>() + cost <= limit
            }
            (Self::Places(held), Numbers::Places { limit, .. }) => {
                let alive = held.iter().filter(|(_, until)| *until > now);
                alive.count() as u64 + cost <= limit
            }
            _ => false,
        }
    }

    /// Whether they do for everybody who reckons with parts of a tick.
    pub(crate) fn fits_surely(&self, by: &Numbers, at: Timestamp, cost: u64) -> bool {
        let taut = match *by {
            Numbers::Bucket { unit, capacity, slack, scale } => {
                Numbers::Bucket { unit, capacity: capacity.saturating_sub(slack), slack: 0, scale }
            }
            other => other,
        };
        self.fits(&taut, at, cost)
    }

    /// Whether there is a window and nothing counts in it: what is given back then is not even written.
    pub(crate) fn is_blank(&self, by: &Numbers, at: Timestamp) -> bool {
        let (_, used, previous) = self.window(by, at.as_micros());
        let Numbers::Window { is_sliding, .. } = *by else { return false };
        used == 0 && !(is_sliding && previous > 0)
    }

    /// Whoever keeps no state where nothing counts does not know in which window that was.
    pub(crate) const fn forget_blank(&mut self) {
        if let Self::Window { index, used: 0, previous: 0, .. } = self {
            *index = 0;
        }
    }

    /// Whether there is a window and it is so far ahead that nobody goes on in it.
    pub(crate) const fn is_far_ahead(&self, by: &Numbers, at: Timestamp) -> bool {
        match (self, *by) {
            (Self::Window { index, .. }, Numbers::Window { length, .. }) => {
                at.as_micros() / length + 1 < *index
            }
            _ => false,
        }
    }

    /// Whole units that are used and not refilled.
    pub(crate) fn units(&self, by: &Numbers, at: Timestamp) -> u64 {
        let now = at.as_micros();
        match (self, *by) {
            (_, Numbers::Bucket { unit, .. }) => {
                u64::try_from(self.level(by, now) / unit.max(1)).unwrap_or(u64::MAX)
            }
            (_, Numbers::Window { .. }) => self.estimate(by, now),
            (Self::Log(entries), Numbers::Log { length, .. }) => {
                let alive = entries.iter().filter(|(entered, _)| entered + length > now);
                alive.map(|(_, units)| units).sum()
            }
            _ => 0,
        }
    }

    fn level(&self, by: &Numbers, now: u64) -> u128 {
        match (self, by) {
            (Self::Bucket { level, last, .. }, Numbers::Bucket { scale, .. }) => {
                level.saturating_sub(scale * u128::from(now.saturating_sub(*last)))
            }
            _ => 0,
        }
    }

    /// The window that counts, what it holds and what the one before it held. A clock that was set back
    /// within one window keeps the newer one; further back it starts afresh.
    fn window(&self, by: &Numbers, now: u64) -> (u64, u64, u64) {
        let (Self::Window { index, used, previous, .. }, Numbers::Window { length, .. }) =
            (self, by)
        else {
            return (0, 0, 0);
        };
        match now / length {
            here if here == *index || here + 1 == *index => (*index, *used, *previous),
            here if here == index + 1 => (here, 0, *used),
            here => (here, 0, 0),
        }
    }

    /// The number of the window that counts, of a limit that has windows.
    pub(crate) fn counting(&self, by: &Numbers, at: Timestamp) -> Option<u64> {
        let is_window = matches!(self, Self::Window { .. });
        is_window.then(|| self.window(by, at.as_micros()).0)
    }

    /// What counts of a window: all of its own, and of the one before as much as has not slid out.
    fn estimate(&self, by: &Numbers, now: u64) -> u64 {
        /// A sliding window moves in at most so many steps.
        const MOST_STEPS: u64 = 1 << 20;
        let (index, used, previous) = self.window(by, now);
        let Numbers::Window { length, is_sliding: true, .. } = *by else { return used };
        let step = length.div_ceil(MOST_STEPS);
        let steps = length.div_ceil(step);
        let elapsed = now.saturating_sub(index * length) / step;
        let weighted = u128::from(previous) * u128::from(steps - elapsed) / u128::from(steps);
        used + u64::try_from(weighted).unwrap_or(u64::MAX)
    }

    /// Books units, whether they fit or not.
    pub(crate) fn add(&mut self, by: &Numbers, at: Timestamp, cost: u64, place: Option<LeaseId>) {
        let now = at.as_micros();
        let (before, window) = (self.level(by, now), self.window(by, now));
        match (self, *by) {
            (Self::Bucket { level, credit, last }, Numbers::Bucket { unit, .. }) => {
                let units = u128::from(cost) * unit;
                let given = if now <= credit.1 { units.min(credit.0) } else { 0 };
                credit.0 -= given;
                (*level, *last) = (before + units - given, now);
            }
            (Self::Window { index, used, previous, credit }, Numbers::Window { .. }) => {
                let given = if window.0 == credit.1 { cost.min(credit.0) } else { 0 };
                credit.0 -= given;
                (*index, *used, *previous) = (window.0, window.1 + cost - given, window.2);
            }
            (Self::Log(entries), Numbers::Log { length, .. }) => {
                while entries.front().is_some_and(|(entered, _)| entered + length <= now) {
                    entries.pop_front();
                }
                entries.push_back((now, cost));
            }
            (Self::Places(held), Numbers::Places { ttl, .. }) => {
                held.retain(|(_, until)| *until > now);
                held.extend(place.map(|place| (place, now + ttl)));
            }
            _ => {}
        }
    }

    /// Books units as far as they fit.
    pub(crate) fn force(&mut self, by: &Numbers, at: Timestamp, units: u64) {
        let now = at.as_micros();
        let free = match *by {
            Numbers::Bucket { .. } => units,
            Numbers::Window { limit, .. } => limit.saturating_sub(self.estimate(by, now)),
            Numbers::Log { limit, .. } => limit.saturating_sub(self.units(by, at)),
            Numbers::Places { .. } => 0,
        };
        if units.min(free) > 0 {
            self.add(by, at, units.min(free), None);
        }
        if let (Self::Bucket { level, .. }, Numbers::Bucket { capacity, .. }) = (self, by) {
            *level = (*level).min(*capacity);
        }
    }

    /// Units are given back, or somebody has forgotten them: they may be let in once more, and no
    /// others. Until `until` what nobody has used yet counts as well.
    pub(crate) fn forgive(&mut self, by: &Numbers, at: Timestamp, units: u64, until: u64) {
        let now = at.as_micros();
        let window = self.window(by, now);
        match (self, *by) {
            (it @ Self::Bucket { .. }, Numbers::Bucket { unit, .. }) => {
                it.forgive_time(by, at, u128::from(units) * unit, until);
            }
            (Self::Window { index, used, previous, credit }, Numbers::Window { .. }) => {
                let newest = units.min(window.1);
                (*index, *used) = (window.0, window.1 - newest);
                *previous = window.2.saturating_sub(units - newest);
                if until > now {
                    let before = if credit.1 == window.0 { credit.0 } else { 0 };
                    *credit = (before + units - newest, window.0);
                }
            }
            (Self::Log(entries), _) => {
                let mut rest = units;
                while let Some((_, last)) = entries.back_mut().filter(|_| rest > 0) {
                    let gone = rest.min(*last);
                    (*last, rest) = (*last - gone, rest - gone);
                    if *last == 0 {
                        entries.pop_back();
                    }
                }
            }
            _ => {}
        }
    }

    /// Units are given back. Says what of them was not among the newest: it went for older ones, or for none.
    pub(crate) fn give_back(&mut self, by: &Numbers, at: Timestamp, units: u64) -> Missed {
        let now = at.as_micros();
        let (level, (index, used, previous)) = (self.level(by, now), self.window(by, now));
        let missed = match *by {
            Numbers::Bucket { unit, .. } => {
                let units = (u128::from(units) * unit).saturating_sub(level);
                Missed { index, units, aged: 0 }
            }
            Numbers::Window { .. } => {
                let missed = units.saturating_sub(used);
                Missed { index, units: missed.into(), aged: missed.min(previous) }
            }
            _ => Missed::NOTHING,
        };
        if !self.is_blank(by, at) {
            self.forgive(by, at, units, 0);
        }
        missed
    }

    /// Units are given back that are not used: those that somebody held, and that others have given back
    /// meanwhile instead of what they meant. What was missed then is given back now. Of a window only as long as
    /// it lasts.
    pub(crate) fn give_instead(
        &mut self,
        by: &Numbers,
        at: Timestamp,
        units: u64,
        missed: &mut Missed,
    ) {
        let now = at.as_micros();
        let window = self.window(by, now);
        match (self, *by) {
            (it @ Self::Bucket { .. }, Numbers::Bucket { unit, .. }) => {
                let time = (u128::from(units) * unit).min(missed.units);
                missed.units -= time;
                it.forgive_time(by, at, time, 0);
            }
            (Self::Window { index, used, previous, .. }, Numbers::Window { .. })
                if window.0 == missed.index =>
            {
                let instead = missed.units.min(units.min(window.1).into());
                let aged = missed.aged.min(instead as u64);
                (missed.units, missed.aged) = (missed.units - instead, missed.aged - aged);
                (*index, *used, *previous) = (window.0, window.1 - instead as u64, window.2 + aged);
            }
            _ => {}
        }
    }

    /// Forgives a bucket, in the time that units take to be refilled.
    pub(crate) fn forgive_time(&mut self, by: &Numbers, at: Timestamp, time: u128, until: u64) {
        let now = at.as_micros();
        let before = self.level(by, now);
        if let Self::Bucket { level, credit, last } = self {
            (*level, *last) = (before.saturating_sub(time), now);
            if until > now {
                let rest = if now <= credit.1 { credit.0 } else { 0 };
                *credit = (rest + time.saturating_sub(before), until);
            }
        }
    }

    /// The clock was set forth, which refills a bucket at once: so much of what was granted may still be
    /// spent, and comes on top of it.
    pub(crate) fn carry_over(
        &mut self,
        by: &Numbers,
        (before, after): (Timestamp, Timestamp),
        held: u128,
    ) {
        let refilled = u128::from(after.since(before).as_micros());
        if let (Self::Bucket { credit, .. }, Numbers::Bucket { scale, .. }) = (self, by)
            && refilled > 0
        {
            let rest = if before.as_micros() <= credit.1 { credit.0 } else { 0 };
            let until = after.as_micros() + LEASE.as_micros();
            *credit = (rest + held.min(refilled * scale), until);
        }
    }

    /// The store goes on in the window of this number, whichever that was before: in the same or the one
    /// after it, in one that it had left, or afresh.
    pub(crate) const fn go_on_in(&mut self, window: u64, is_afresh: bool) {
        let Self::Window { index, used, previous, credit } = self else { return };
        // What was forgotten in one window is nothing in another.
        if *index != window {
            credit.0 = 0;
        }
        (*used, *previous) = match *index {
            _ if is_afresh => (0, 0),
            same if same == window => (*used, *previous),
            before if before + 1 == window => (0, *used),
            after if after == window + 1 => (*previous, 0),
            _ => (0, 0),
        };
        *index = window;
    }

    /// Somebody gives back a place: by its number, as limits do, which another may have got since if the
    /// store has forgotten who had it.
    pub(crate) fn release(&mut self, place: LeaseId) {
        if let Self::Places(held) = self {
            held.retain(|(it, _)| *it != place);
        }
    }

    /// The clock was set. Nothing is given for that: what was used remains so, as of the new time.
    pub(crate) fn set_clock(&mut self, by: &Numbers, before: Timestamp, after: Timestamp) {
        let kept = self.level(by, before.as_micros());
        let (before, after) = (before.as_micros(), after.as_micros());
        if after >= before {
            return;
        }
        match (self, *by) {
            // What was forgotten is spent in the time that it could be spent in before.
            (Self::Bucket { level, last, credit }, _) => {
                (*level, *last) = (kept, after);
                credit.1 = credit.1.saturating_sub(before - after);
            }
            // What has left the log does not come back.
            (Self::Log(entries), Numbers::Log { length, .. }) => {
                entries.retain(|(entered, _)| entered + length > before);
                entries.iter_mut().for_each(|(entered, _)| *entered = (*entered).min(after));
            }
            // Nobody keeps a place for longer than who comes now.
            (Self::Places(held), Numbers::Places { ttl, .. }) => {
                held.retain(|(_, until)| *until > before);
                held.iter_mut().for_each(|(_, until)| *until = (*until).min(after + ttl));
            }
            _ => {}
        }
    }

    /// The clock says less than it did: what was refilled meanwhile is owed again.
    pub(crate) fn owe_again(&mut self, by: &Numbers, at: Timestamp) {
        if let (Self::Bucket { level, last, .. }, Numbers::Bucket { scale, .. }) = (self, by) {
            *level += scale * u128::from(last.saturating_sub(at.as_micros()));
            *last = (*last).min(at.as_micros());
        }
    }

    /// A decision was made: no limit keeps more against anybody than it holds, nor later than now. Says how
    /// much more a bucket did, as the time that it takes to be refilled.
    pub(crate) fn repair(&mut self, by: &Numbers, at: Timestamp) -> u128 {
        let now = at.as_micros();
        let before = self.level(by, now);
        match (self, *by) {
            (Self::Bucket { level, last, .. }, Numbers::Bucket { capacity, .. }) => {
                (*level, *last) = (before.min(capacity), now);
                before.saturating_sub(capacity)
            }
            (Self::Window { index, used, previous, .. }, Numbers::Window { length, .. }) => {
                if now / length + 1 < *index {
                    (*index, *used, *previous) = (now / length, 0, 0);
                }
                0
            }
            (Self::Log(entries), _) => {
                entries.iter_mut().for_each(|(entered, _)| *entered = (*entered).min(now));
                0
            }
            (Self::Places(held), Numbers::Places { ttl, .. }) => {
                held.iter_mut().for_each(|(_, until)| *until = (*until).min(now + ttl));
                0
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
