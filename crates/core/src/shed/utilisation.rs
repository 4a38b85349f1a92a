//! Sheds the least important traffic while the workers are busy, and restores it slowly.

use super::Class;
use crate::adaptive::mix;
use crate::time::{Span, Timestamp};

/// Raises a *level* while utilisation is high and lowers it while utilisation is low.
///
/// The level goes from 0 to the number of classes less one. Each whole step sheds one more class,
/// least important first; a fraction sheds that fraction of the next class. The most important class
/// is never shed.
#[derive(Clone, Debug)]
pub struct UtilisationShedder {
    levels: UtilisationLevels,
    classes: usize,
    /// In billionths.
    level: u64,
    /// Mean utilisation, in thousandths.
    mean: u64,
    read: Option<Timestamp>,
    calm_since: Option<Timestamp>,
}

/// The utilisations at which the level moves, in per cent, and how fast the level moves, in per
/// cent of a class per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UtilisationLevels {
    /// From this utilisation on, the level rises.
    pub busy: u32,
    /// Below this utilisation for a second, the level falls.
    pub calm: u32,
    /// Speed at which the level rises.
    pub up: u32,
    /// Speed at which the level falls.
    pub down: u32,
}

/// How a request is selected if only a fraction of its class is shed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// By a hash of the user's identity: for an hour, a user is either served or not.
    Identity {
        /// A keyed hash of the identity.
        hash: u64,
        /// Hours since the epoch.
        hour: u64,
    },
    /// By a running number, which sheds requests without an identity evenly.
    Number(u64),
}

impl Default for UtilisationLevels {
    fn default() -> Self {
        Self { busy: 90, calm: 75, up: 5, down: 2 }
    }
}

impl UtilisationShedder {
    const CLASS: u64 = 1_000_000_000;
    /// Time over which the mean follows the readings.
    const MEAN_OVER: Span = Span::from_millis(200);
    /// Utilisation must be low for this long before the level falls.
    const CALM_FOR: Span = Span::from_secs(1);
    /// A longer pause between two readings counts as this long: the process was stopped.
    const LONGEST_STEP: Span = Span::from_secs(1);

    /// A shedder at level 0.
    pub fn new(levels: UtilisationLevels, classes: usize) -> Self {
        let classes = classes.clamp(1, Class::MAX);
        Self { levels, classes, level: 0, mean: 0, read: None, calm_since: None }
    }

    /// Takes a reading: the utilisation in thousandths, for example `in_flight · 1000 / limit` or
    /// the lateness of a timer in relation to its target, whichever is larger.
    pub fn observe(&mut self, now: Timestamp, thousandths: u64) {
        let passed = self.read.map_or(Span::ZERO, |read| now.since(read)).min(Self::LONGEST_STEP);
        self.read = Some(now);
        let weight = passed.min(Self::MEAN_OVER).as_micros();
        let (mean, reading) = (self.mean, thousandths.min(1_000_000));
        let rest = Self::MEAN_OVER.as_micros() - weight;
        self.mean = (mean * rest + reading * weight) / Self::MEAN_OVER.as_micros();

        let micros = passed.as_micros();
        if self.mean >= u64::from(self.levels.busy) * 10 {
            self.calm_since = None;
            let highest = (self.classes as u64 - 1) * Self::CLASS;
            self.level = (self.level + Self::moved(self.levels.up, micros)).min(highest);
        } else if self.mean < u64::from(self.levels.calm) * 10 {
            let since = self.calm_since.map_or(now, |since| since.min(now));
            self.calm_since = Some(since);
            if now.since(since) >= Self::CALM_FOR {
                self.level = self.level.saturating_sub(Self::moved(self.levels.down, micros));
            }
        } else {
            self.calm_since = None;
        }
    }

    /// The fraction of `class` that is shed, in billionths.
    pub fn fraction(&self, class: Class) -> u64 {
        let last = self.classes - 1;
        let importance = last.saturating_sub(class.rank()) as u64;
        if class.rank() == 0 {
            return 0;
        }
        self.level.saturating_sub(importance * Self::CLASS).min(Self::CLASS)
    }

    /// True if a request of `class` is shed.
    pub fn sheds(&self, class: Class, selection: Selection) -> bool {
        let fraction = self.fraction(class);
        let ticket = match selection {
            Selection::Identity { hash, hour } => mix(hash ^ mix(hour)),
            // A Weyl sequence: any run of numbers is spread evenly.
            Selection::Number(number) => number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        };
        u128::from(ticket) * u128::from(Self::CLASS) < u128::from(fraction) << 64
    }

    /// The change of the level over `micros` at `percent` of a class per second, in billionths.
    fn moved(percent: u32, micros: u64) -> u64 {
        u64::from(percent) * 10 * micros
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds a constant utilisation every 10 ms.
    fn feed(shedder: &mut UtilisationShedder, start: u64, millis: u64, thousandths: u64) -> u64 {
        for step in 0..millis / 10 {
            shedder.observe(at(start + step * 10), thousandths);
        }
        start + millis
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Span::from_millis(millis)
    }

    fn fractions(shedder: &UtilisationShedder) -> [u64; 4] {
        // Per cent, most important class first.
        [0, 1, 2, 3].map(|rank| shedder.fraction(Class::new(rank)) / 10_000_000)
    }

    fn shedder() -> UtilisationShedder {
        UtilisationShedder::new(UtilisationLevels::default(), 4)
    }

    #[test]
    fn ov_27_a_class_is_shed_in_twenty_seconds_and_restored_in_fifty() {
        let mut shedder = shedder();
        // The mean needs less than a second to arrive at the reading.
        let mut now = feed(&mut shedder, 0, 20_900, 950);
        assert_eq!(fractions(&shedder)[3], 100);
        assert!(fractions(&shedder)[2] < 5);
        let busy = fractions(&shedder);
        now = feed(&mut shedder, now, 30_000, 800);
        assert!(fractions(&shedder)[2] - busy[2] < 5, "a reading in between holds the level");
        let held = shedder.level;
        now = feed(&mut shedder, now, 45_000, 700);
        assert!(fractions(&shedder)[3] > 0, "not restored too soon");
        feed(&mut shedder, now, 10_000, 700);
        assert_eq!(fractions(&shedder), [0; 4], "from level {held}");
    }

    #[test]
    fn ov_28_the_most_important_class_is_never_shed() {
        let mut shedder = shedder();
        feed(&mut shedder, 0, 300_000, 5_000);
        assert_eq!(fractions(&shedder), [0, 100, 100, 100]);
        assert!((0..1_000).all(|n| !shedder.sheds(Class::CRITICAL, Selection::Number(n))));
        let mut alone = UtilisationShedder::new(UtilisationLevels::default(), 1);
        feed(&mut alone, 0, 60_000, 5_000);
        assert_eq!(alone.fraction(Class::CRITICAL), 0);
    }

    #[test]
    fn ov_29_a_stopped_process_moves_the_level_by_one_second_at_most() {
        let mut shedder = shedder();
        let now = feed(&mut shedder, 0, 10_000, 1_000);
        let before = shedder.level;
        shedder.observe(at(now + 30_000), 1_000);
        assert!(shedder.level - before <= UtilisationShedder::moved(5, 1_000_000));
        assert!(shedder.level > before);
        // And back.
        let before = shedder.level;
        shedder.observe(at(0), 1_000);
        assert_eq!(shedder.level, before);
    }

    #[test]
    fn a_fraction_sheds_that_part_of_the_users_and_always_the_same() {
        let mut shedder = shedder();
        feed(&mut shedder, 0, 10_500, 1_000);
        let lowest = Class::new(3);
        let expected = shedder.fraction(lowest) * 10_000 / UtilisationShedder::CLASS;
        let by_number = (0..10_000).filter(|n| shedder.sheds(lowest, Selection::Number(*n)));
        assert!(by_number.count().abs_diff(usize::try_from(expected).unwrap()) < 10);
        let user = |hash, hour| shedder.sheds(lowest, Selection::Identity { hash, hour });
        let by_user = (0..10_000).filter(|hash| user(mix(*hash), 1)).count();
        assert!(by_user.abs_diff(usize::try_from(expected).unwrap()) < 300, "{by_user}");
        // Each hour selects other users.
        let changed = (0..10_000).filter(|hash| user(mix(*hash), 1) != user(mix(*hash), 2));
        assert!(changed.count() > 3_000);
    }
}
