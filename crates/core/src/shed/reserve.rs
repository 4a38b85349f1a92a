//! A part of a fleet's capacity that is kept for the most important class.

use core::fmt;

/// The two in-flight limits of a fleet: requests of the most important class charge `total`,
/// requests of the other classes charge `total` and `other` together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Requests in progress on all nodes, of all classes.
    pub total: u64,
    /// Requests in progress on all nodes, of all classes but the most important.
    pub other: u64,
}

/// A reserve that leaves nothing for the other classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NothingLeft {
    capacity: u64,
    percent: u8,
}

impl Reserve {
    /// Keeps `percent` of `capacity` for the most important class.
    ///
    /// # Errors
    /// If nothing is left for the other classes.
    pub fn new(capacity: u64, percent: u8) -> Result<Self, NothingLeft> {
        let left = u128::from(capacity) * u128::from(100_u8.saturating_sub(percent)) / 100;
        match u64::try_from(left) {
            Ok(other @ 1..) => Ok(Self { total: capacity, other }),
            _ => Err(NothingLeft { capacity, percent }),
        }
    }
}

impl fmt::Display for NothingLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, percent } = self;
        write!(f, "a reserve of {percent}% of {capacity} leaves nothing for the other classes")
    }
}

impl core::error::Error for NothingLeft {}

#[cfg(test)]
mod tests {
    use super::*;

    /// With 100 and 20 %, the other classes get 80 and the most important one 100.
    #[test]
    fn ov_05_the_other_classes_share_the_rest() {
        assert_eq!(Reserve::new(100, 20), Ok(Reserve { total: 100, other: 80 }));
        assert_eq!(Reserve::new(7, 20), Ok(Reserve { total: 7, other: 5 }));
        assert_eq!(Reserve::new(u64::MAX, 0).map(|reserve| reserve.other), Ok(u64::MAX));
    }

    #[test]
    fn ov_06_a_reserve_that_leaves_nothing_is_an_error() {
        let error = Reserve::new(1, 20).unwrap_err();
        let text = "a reserve of 20% of 1 leaves nothing for the other classes";
        assert_eq!(error.to_string(), text);
        assert!(Reserve::new(100, 100).is_err());
        assert!(Reserve::new(100, 200).is_err());
    }
}
