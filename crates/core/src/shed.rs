//! Load shedding: which requests to refuse so that the server can serve the others.
//!
//! | part | decides |
//! |---|---|
//! | [`Shares`] | how much of a concurrency limit each class may fill |
//! | [`Reserve`] | how much of a fleet's capacity is kept for the most important class |
//! | [`UtilisationShedder`] | which part of each class is shed while the workers are busy |
//! | [`QueueTimeout`] | how long a request may wait for a permit |
//! | [`retry_after`] | when a shed client may come back |

mod queue_timeout;
mod reserve;
mod shares;
mod utilisation;

pub use queue_timeout::QueueTimeout;
pub use reserve::{NothingLeft, Reserve};
pub use shares::{InvalidShares, Shares};
pub use utilisation::{Selection, UtilisationLevels, UtilisationShedder};

use crate::adaptive::mix;
use crate::time::Span;

/// How important a request is. Class 0 is the most important and is shed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class(u8);

impl Class {
    /// The most important class.
    pub const CRITICAL: Self = Self(0);
    /// Number of classes there may be.
    pub const MAX: usize = Self::LAST as usize + 1;
    const LAST: u8 = 7;

    /// The class of this rank, 0 being the most important. Ranks above 7 count as 7.
    #[inline]
    pub const fn new(rank: u8) -> Self {
        if rank < Self::LAST { Self(rank) } else { Self(Self::LAST) }
    }

    /// The rank, 0 being the most important.
    #[inline]
    pub const fn rank(self) -> usize {
        self.0 as usize
    }
}

/// The wait to tell a shed client, in whole seconds: 1 to `k` by `ticket`, where `k` grows with the
/// fraction shed. If nine of ten requests are shed, retries spread over ten seconds.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_core::shed::retry_after;
///
/// assert_eq!(retry_after(17, 0, 100), Span::from_secs(1));
/// assert!(retry_after(17, 90, 100) <= Span::from_secs(10));
/// ```
pub fn retry_after(ticket: u64, shed: u64, requests: u64) -> Span {
    const WIDEST: u64 = 10;
    let served = requests.saturating_sub(shed);
    let spread = if served == 0 && requests > 0 {
        WIDEST
    } else {
        requests.max(1).div_ceil(served.max(1)).clamp(1, WIDEST)
    };
    Span::from_secs(1 + mix(ticket) % spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OV-33: a shed fraction of 0.9 spreads `Retry-After` evenly over 1 to 10 s.
    #[test]
    fn the_wait_spreads_with_the_fraction_shed() {
        let mut seen = [0_u32; 11];
        for ticket in 0..10_000 {
            let seconds = retry_after(ticket, 900, 1_000).as_micros() / 1_000_000;
            seen[usize::try_from(seconds).unwrap()] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|count| (900..1_100).contains(count)), "{seen:?}");
        assert!((0..100).all(|ticket| retry_after(ticket, 500, 1_000) <= Span::from_secs(2)));
        assert!((0..100).any(|ticket| retry_after(ticket, 10, 10) == Span::from_secs(10)));
    }

    #[test]
    fn ranks_above_the_last_count_as_the_last() {
        assert_eq!(Class::new(200).rank(), Class::MAX - 1);
        assert!(Class::CRITICAL < Class::new(1));
    }
}
