//! Graded shares of a concurrency limit.

use core::fmt;

use super::Class;

/// The part of a concurrency limit that each class may fill, most important class first.
///
/// A class is admitted while *all* requests in progress together are below its part, so the last
/// part of the limit is free for the more important classes whenever they need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    percent: [u8; Class::MAX],
    classes: usize,
}

/// Why shares are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidShares {
    /// There must be 1 to [`Class::MAX`] classes.
    Count(usize),
    /// A share must be between 1 % and 100 %.
    Percent(u8),
    /// A class may not have a larger share than a more important one.
    Ascending(u8),
}

impl Shares {
    /// Shares in per cent, most important class first.
    ///
    /// # Errors
    /// If there are too many, if one is not between 1 and 100, or if one is larger than that of a
    /// more important class.
    pub fn new(percent: &[u8]) -> Result<Self, InvalidShares> {
        if percent.is_empty() || percent.len() > Class::MAX {
            return Err(InvalidShares::Count(percent.len()));
        }
        let mut shares = Self { percent: [1; Class::MAX], classes: percent.len() };
        let mut before = 100;
        for (share, percent) in shares.percent.iter_mut().zip(percent) {
            if !(1..=100).contains(percent) {
                return Err(InvalidShares::Percent(*percent));
            }
            if *percent > before {
                return Err(InvalidShares::Ascending(*percent));
            }
            (*share, before) = (*percent, *percent);
        }
        // Classes without a share get the last share.
        shares.percent[percent.len()..].fill(before);
        Ok(shares)
    }

    /// 100 % for the most important of `classes`, then 10 points less each, at least 50 %.
    pub fn graded(classes: usize) -> Self {
        let mut percent = [50; Class::MAX];
        for (share, percent) in percent.iter_mut().zip([100, 90, 80, 70, 60]) {
            *share = percent;
        }
        Self { percent, classes: classes.clamp(1, Class::MAX) }
    }

    /// The share of each class, in per cent.
    pub const fn percent(&self) -> [u8; Class::MAX] {
        self.percent
    }

    /// Number of classes.
    pub const fn classes(&self) -> usize {
        self.classes
    }

    /// Returns `class`, or the last class if there is no such class.
    #[inline]
    pub fn known(&self, class: Class) -> Class {
        if class.rank() < self.classes {
            class
        } else {
            Class::new(u8::try_from(self.classes - 1).unwrap_or(0))
        }
    }

    /// The number of requests in progress at which each class is refused; at least 1, so that a
    /// limit of 1 serves every class.
    pub fn thresholds(&self, limit: u32) -> [u32; Class::MAX] {
        self.percent.map(|percent| {
            let threshold = u64::from(limit) * u64::from(percent) / 100;
            u32::try_from(threshold).unwrap_or(u32::MAX).max(1)
        })
    }
}

impl Default for Shares {
    /// Four graded classes.
    fn default() -> Self {
        Self::graded(4)
    }
}

impl fmt::Display for InvalidShares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count} classes: there must be 1 to {}", Class::MAX),
            Self::Percent(percent) => write!(f, "max_share {percent}%: must be 1% to 100%"),
            Self::Ascending(percent) => {
                write!(f, "max_share {percent}% is larger than that of a more important class")
            }
        }
    }
}

impl core::error::Error for InvalidShares {}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(limit: u32, in_flight: u32) -> [bool; 4] {
        let thresholds = Shares::new(&[100, 90, 80, 70]).unwrap().thresholds(limit);
        [0, 1, 2, 3].map(|rank: usize| in_flight < thresholds[rank])
    }

    /// Critical, write, read, test.
    #[test]
    fn ov_02_a_class_is_refused_once_all_requests_together_reach_its_share() {
        assert_eq!(admitted(10, 6), [true, true, true, true]);
        assert_eq!(admitted(10, 7), [true, true, true, false]);
        assert_eq!(admitted(10, 9), [true, false, false, false]);
        assert_eq!(admitted(10, 10), [false; 4]);
    }

    #[test]
    fn ov_03_every_class_may_take_the_only_permit() {
        assert_eq!(admitted(1, 0), [true; 4]);
        assert_eq!(admitted(1, 1), [false; 4]);
    }

    #[test]
    fn default_shares_fall_by_ten_points_to_fifty() {
        let thresholds = Shares::graded(8).thresholds(100);
        assert_eq!(thresholds, [100, 90, 80, 70, 60, 50, 50, 50]);
        assert_eq!(Shares::default().classes(), 4);
    }

    #[test]
    fn shares_that_make_no_sense_are_refused() {
        assert_eq!(Shares::new(&[]), Err(InvalidShares::Count(0)));
        assert_eq!(Shares::new(&[100; 9]), Err(InvalidShares::Count(9)));
        assert_eq!(Shares::new(&[100, 0]), Err(InvalidShares::Percent(0)));
        assert_eq!(Shares::new(&[80, 90]), Err(InvalidShares::Ascending(90)));
        assert!(Shares::new(&[80, 80]).is_ok());
    }

    #[test]
    fn an_unknown_class_counts_as_the_last() {
        let shares = Shares::new(&[100, 60]).unwrap();
        assert_eq!(shares.known(Class::new(5)), Class::new(1));
        assert_eq!(shares.thresholds(10)[5], 6);
    }
}
