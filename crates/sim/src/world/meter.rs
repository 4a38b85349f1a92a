//! How much of a limit has been used, worked out anew: nothing here is shared with what decides.

use std::collections::VecDeque;

use tidegate_core::{AlgorithmName, Timestamp};

use super::setup::WorldSetup;

/// What the units that were let in add up to, by a clock that tells each of them its time.
///
/// A bucket's level is the most by which any interval that ends now exceeds the rate:
/// `max over s of admitted(s, now] - rate * (now - s)`. It is kept in units times the rate's period, so
/// every figure is whole. No interval admits more than its envelope exactly if the level never exceeds
/// the capacity.
#[derive(Clone, Debug)]
pub(crate) enum Meter {
    Bucket {
        count: u128,
        per: u128,
        capacity: u128,
        level: u128,
        last: u64,
    },
    /// `is_whole`: there is nothing else to the limit.
    Window {
        limit: u64,
        length: u64,
        index: u64,
        used: u64,
        is_whole: bool,
    },
    Log {
        limit: u64,
        length: u64,
        entries: VecDeque<(u64, u64)>,
    },
}

impl Meter {
    pub(crate) fn new(setup: &WorldSetup) -> Self {
        let (count, length) = (setup.rate.count, setup.rate.per.as_micros());
        let bucket = |capacity: u64| Self::Bucket {
            count: count.into(),
            per: length.into(),
            capacity: u128::from(capacity) * u128::from(length),
            level: 0,
            last: 0,
        };
        let window = |is_whole| Self::Window { limit: count, length, index: 0, used: 0, is_whole };
        match setup.algorithm {
            AlgorithmName::TokenBucket | AlgorithmName::Gcra => bucket(setup.burst),
            // One starts at once, the burst is how many wait.
            AlgorithmName::LeakyBucket => bucket(setup.burst + 1),
            AlgorithmName::FixedWindow => window(true),
            // Each window alone holds no more than the limit; what slides between them comes on top.
            AlgorithmName::SlidingWindow => window(false),
            AlgorithmName::SlidingLog => {
                Self::Log { limit: count, length, entries: VecDeque::new() }
            }
        }
    }

    /// Whether a limit of these numbers, used like this, has to let this many more in. `None` if that
    /// cannot be told from the figures kept here.
    pub(crate) fn must_admit(&self, at: Timestamp, cost: u64) -> Option<bool> {
        match self {
            Self::Window { is_whole: false, .. } => None,
            _ => Some(self.fits(at, cost)),
        }
    }

    /// Whether so many more stay within the limit.
    pub(crate) fn fits(&self, at: Timestamp, cost: u64) -> bool {
        let at = at.as_micros();
        match self {
            Self::Bucket { per, capacity, .. } => {
                self.level(at) + u128::from(cost) * per <= *capacity
            }
            Self::Window { limit, .. } => self.used(at) + cost <= *limit,
            Self::Log { limit, length, entries } => {
                let alive = entries.iter().filter(|(entered, _)| entered + length > at);
                alive.map(|(_, units)| units).sum::<u64>() + cost <= *limit
            }
        }
    }

    fn level(&self, at: u64) -> u128 {
        let Self::Bucket { count, level, last, .. } = self else { return 0 };
        level.saturating_sub(count * u128::from(at.saturating_sub(*last)))
    }

    /// A clock that was set back within one window keeps the newer one; further back it starts afresh.
    fn used(&self, at: u64) -> u64 {
        let Self::Window { length, index, used, .. } = self else { return 0 };
        let here = at / length;
        if here == *index || here + 1 == *index { *used } else { 0 }
    }

    /// Books units, whether they fit or not.
    pub(crate) fn add(&mut self, at: Timestamp, cost: u64) {
        let at = at.as_micros();
        let (level, before) = (self.level(at), self.used(at));
        match self {
            Self::Bucket { per, level: kept, last, .. } => {
                (*kept, *last) = (level + u128::from(cost) * *per, at);
            }
            Self::Window { length, index, used, .. } => {
                let here = at / *length;
                *index = if here + 1 == *index { *index } else { here };
                *used = before + cost;
            }
            Self::Log { length, entries, .. } => {
                while entries.front().is_some_and(|(entered, _)| entered + *length <= at) {
                    entries.pop_front();
                }
                entries.push_back((at, cost));
            }
        }
    }

    /// Somebody has forgotten so many units: they may be let in once more, and no others.
    pub(crate) fn forgive(&mut self, units: u64) {
        match self {
            Self::Bucket { per, level, .. } => {
                *level = level.saturating_sub(u128::from(units) * *per);
            }
            Self::Window { used, .. } => *used = used.saturating_sub(units),
            Self::Log { entries, .. } => {
                let mut rest = units;
                while let Some((_, last)) = entries.back_mut().filter(|_| rest > 0) {
                    let gone = rest.min(*last);
                    (*last, rest) = (*last - gone, rest - gone);
                    if *last == 0 {
                        entries.pop_back();
                    }
                }
            }
        }
    }

    /// The clock was set. Nothing is given for that: what was used remains so, as of the new time.
    pub(crate) fn set_clock(&mut self, before: Timestamp, after: Timestamp) {
        let level = self.level(before.as_micros());
        let (before, after) = (before.as_micros(), after.as_micros());
        if after >= before {
            return;
        }
        match self {
            Self::Bucket { level: kept, last, .. } => (*kept, *last) = (level, after),
            // Further back than a window, a limit starts afresh, once. So it does if a charge that nobody
            // was let in by has begun another window meanwhile.
            Self::Window { length, index, used, .. } => {
                if after / *length + 1 < *index || before / *length > *index {
                    (*index, *used) = (after / *length, 0);
                }
            }
            Self::Log { entries, .. } => {
                entries.iter_mut().for_each(|(entered, _)| *entered = (*entered).min(after));
            }
        }
    }

    /// The clock was set back: a limit may take what was refilled since for not refilled yet.
    pub(crate) fn owe_again(&mut self, before: Timestamp, after: Timestamp) {
        let back = before.since(after).as_micros();
        let now = self.level(before.as_micros());
        if let Self::Bucket { count, level, last, .. } = self {
            (*level, *last) = (now + *count * u128::from(back), after.as_micros());
        }
    }

    /// A decision was made: no limit keeps more against anybody than it holds, nor later than now.
    pub(crate) fn repair(&mut self, at: Timestamp) {
        let now = at.as_micros();
        let level = self.level(now);
        match self {
            Self::Bucket { capacity, level: kept, last, .. } => {
                (*kept, *last) = (level.min(*capacity), now);
            }
            Self::Window { length, index, used, .. } => {
                if now / *length + 1 < *index {
                    (*index, *used) = (now / *length, 0);
                }
            }
            Self::Log { entries, .. } => {
                entries.iter_mut().for_each(|(entered, _)| *entered = (*entered).min(now));
            }
        }
    }
}
