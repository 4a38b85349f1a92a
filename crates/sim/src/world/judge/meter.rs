//! Counts admitted units against a promise.
//!
//! A request takes its units at some instant between its arrival and its answer. A meter therefore counts, in
//! each interval, the requests that arrived *and* were answered in it.

use std::collections::{BTreeSet, VecDeque};

use tidegate_core::LeaseId;

use super::promise::{Kind, Promise};

/// An instant, by the store's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    /// Microseconds since the world began.
    pub(crate) now: u64,
    /// The store's clock, in microseconds.
    pub(crate) clock: u64,
    /// The store's clock without its steps back: time that has passed as the store sees it.
    pub(crate) time: u64,
    /// How often the store's clock has been set.
    pub(crate) steps: u32,
}

/// Admitted units, and the time in which they were admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) units: u64,
    pub(crate) asked: Moment,
    pub(crate) answered: Moment,
    pub(crate) place: Option<LeaseId>,
}

impl Admission {
    /// The same admission for a node whose estimate of the store's clock is wrong by at most this
    /// many microseconds.
    pub(crate) const fn widened(mut self, micros: u64) -> Self {
        self.asked.time -= micros;
        self.asked.clock -= micros;
        self.answered.time += micros;
        self.answered.clock += micros;
        self
    }
}

/// Units that a fault adds to every interval that overlaps `from..=until`.
#[derive(Clone, Copy, Debug)]
struct Extra {
    from: u64,
    until: u64,
    /// In parts of a unit; a unit has as many parts as a bucket's `per`.
    parts: u128,
}

/// The admissions of one key.
#[derive(Debug)]
pub(crate) struct Meter {
    promise: Promise,
    extras: Vec<Extra>,
    count: Count,
}

#[derive(Debug)]
enum Count {
    Bucket(Vec<Interval>),
    Window {
        index: u64,
        used: i64,
        previous: i64,
    },
    /// Arrivals and units; extra units are negative.
    Log(VecDeque<(u64, i64)>),
    /// Places, with the time until which they are held, by the store's clock; and places that were
    /// lost or released.
    Places {
        held: Vec<(LeaseId, u64)>,
        gone: BTreeSet<LeaseId>,
    },
}

/// An interval that has begun and may end with the next admission.
#[derive(Clone, Copy, Debug)]
struct Interval {
    from: u64,
    /// Units of requests that arrived since `from`.
    units: u64,
    /// Extra units, in parts.
    extra: u128,
}

impl Meter {
    pub(crate) fn new(promise: Promise) -> Self {
        let count = match promise.kind {
            Kind::Bucket => Count::Bucket(Vec::new()),
            Kind::FixedWindow | Kind::SlidingWindow => {
                Count::Window { index: 0, used: 0, previous: 0 }
            }
            Kind::Log => Count::Log(VecDeque::new()),
            Kind::Places => Count::Places { held: Vec::new(), gone: BTreeSet::new() },
        };
        Self { promise, extras: Vec::new(), count }
    }

    /// Counts an admission. `oldest` is the arrival of the oldest request that is not answered yet. Returns by how
    /// many units an interval that ends now exceeds the promise; 0 if none does.
    pub(crate) fn admit(&mut self, it: &Admission, oldest: u64) -> u64 {
        let Promise { kind, units: most, count: rate, per } = self.promise;
        match &mut self.count {
            Count::Bucket(intervals) => {
                begin(intervals, &self.extras, it.asked.time);
                let mut excess = 0_u128;
                for interval in intervals.iter_mut().filter(|open| open.from <= it.asked.time) {
                    interval.units += it.units;
                    let passed = u128::from(it.answered.time - interval.from);
                    let allowed = parts(most, per) + interval.extra + u128::from(rate) * passed;
                    excess = excess.max(parts(interval.units, per).saturating_sub(allowed));
                }
                keep_fullest(intervals, (rate, per), oldest);
                u64::try_from(excess.div_ceil(per.into())).unwrap_or(u64::MAX)
            }
            Count::Window { .. } => {
                let (asked, answered) = (it.asked.clock / per, it.answered.clock / per);
                if asked != answered || it.asked.steps != it.answered.steps {
                    return 0;
                }
                self.roll(it.answered);
                let Count::Window { used, previous, .. } = &mut self.count else { return 0 };
                *used += it.units as i64;
                let left = (per - it.answered.clock % per) as i64;
                let slides = kind == Kind::SlidingWindow;
                let weighted = if slides { *previous * left / per as i64 } else { 0 };
                u64::try_from(*used + weighted - most as i64).unwrap_or(0)
            }
            Count::Log(entries) => {
                entries.push_back((it.asked.time, it.units as i64));
                entries.retain(|(asked, _)| asked + per > it.answered.time);
                let used: i64 = entries.iter().map(|(_, units)| units).sum();
                u64::try_from(used - most as i64).unwrap_or(0)
            }
            Count::Places { held, gone } => {
                held.retain(|(_, until)| *until > it.answered.clock);
                // A server may have lost the place before its holder received it.
                let place = it.place.filter(|place| !gone.contains(place));
                held.extend(place.map(|place| (place, it.asked.clock + per)));
                (held.len() as u64).saturating_sub(most)
            }
        }
    }

    /// Begins the count of the window that the store's clock is in.
    fn roll(&mut self, at: Moment) {
        let per = self.promise.per;
        let Count::Window { index, used, previous } = &mut self.count else { return };
        let current = at.clock / per;
        if current != *index {
            let lasts = |it: &&Extra| it.until > it.from && it.until.saturating_add(per) >= at.time;
            let carried = self.extras.iter().filter(lasts).map(|it| it.units(per)).sum::<i64>();
            *previous = if current == *index + 1 { (*used).max(0) } else { 0 };
            (*index, *used) = (current, -carried);
        }
    }

    /// A fault adds units to every interval that overlaps `at.time..=until`.
    pub(crate) fn add(&mut self, at: Moment, until: u64, units: u64) {
        let extra = Extra { from: at.time, until, parts: parts(units, self.promise.per) };
        self.roll(at);
        self.extra(extra);
    }

    /// A bucket may have received twice its refill of this many microseconds.
    pub(crate) fn add_refill(&mut self, at: Moment, micros: u64) {
        let parts = u128::from(self.promise.count) * u128::from(micros);
        self.extra(Extra { from: at.time, until: at.time, parts });
    }

    fn extra(&mut self, extra: Extra) {
        let per = self.promise.per;
        match &mut self.count {
            Count::Bucket(intervals) => {
                let meets = intervals.iter_mut().filter(|it| it.from <= extra.until);
                meets.for_each(|it| it.extra += extra.parts);
            }
            Count::Window { used, previous, .. } => {
                (*used, *previous) = (*used - extra.units(per), *previous - extra.units(per));
            }
            Count::Log(entries) => entries.push_back((extra.from, -extra.units(per))),
            Count::Places { .. } => {}
        }
        self.extras.retain(|it| it.until.saturating_add(per) >= extra.from);
        self.extras.push(extra);
    }

    /// A place is released or lost.
    pub(crate) fn leave(&mut self, place: LeaseId) {
        if let Count::Places { held, gone } = &mut self.count {
            held.retain(|(it, _)| *it != place);
            gone.insert(place);
        }
    }

    /// The store's clock was set. Buckets keep their count, because their time continues; all other
    /// counts start from zero.
    pub(crate) fn clock_set(&mut self) {
        if !matches!(self.count, Count::Bucket(_)) {
            self.restart(self.promise);
        }
    }

    /// Restarts all counts from zero, under this promise.
    pub(crate) fn restart(&mut self, promise: Promise) {
        *self = Self::new(promise);
    }
}

const fn parts(units: u64, per: u64) -> u128 {
    units as u128 * per as u128
}

impl Extra {
    fn units(&self, per: u64) -> i64 {
        i64::try_from(self.parts.div_ceil(per.into())).unwrap_or(i64::MAX)
    }
}

/// Begins an interval at the arrival of a request, if none begins there. Later requests that have
/// been answered belong to it.
fn begin(intervals: &mut Vec<Interval>, extras: &[Extra], from: u64) {
    let after = intervals.partition_point(|it| it.from < from);
    if intervals.get(after).is_none_or(|it| it.from != from) {
        let units = intervals.get(after).map_or(0, |it| it.units);
        let extra = extras.iter().filter(|it| it.until >= from).map(|it| it.parts).sum();
        intervals.insert(after, Interval { from, units, extra });
    }
}

/// Of the intervals that contain every request to come, keeps the one that is closest to its bound.
fn keep_fullest(intervals: &mut Vec<Interval>, (rate, per): (u64, u64), oldest: u64) {
    let closed = intervals.partition_point(|it| it.from <= oldest);
    let used = |it: &Interval| {
        let used = parts(it.units, per).cast_signed() - it.extra.cast_signed();
        used + i128::from(rate) * i128::from(it.from)
    };
    if let Some(fullest) = intervals[..closed].iter().copied().max_by_key(used) {
        intervals.splice(..closed, [fullest]);
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
