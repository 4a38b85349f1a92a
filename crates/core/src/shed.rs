//! Load shedding: which requests to refuse so that the server can serve the others.
//!
//! | part | decides |
//! |---|---|
//! | [`Shares`] | how much of a concurrency limit each class may fill |
//! | [`Reserve`] | how much of a fleet's capacity is kept for the most important class |
//! | [`UtilisationShedder`] | which part of each class is shed while the workers are busy |
//! | [`QueueTimeout`] | how long a request may wait for a permit |
//! | [`retry_spread`], [`retry_after`] | when a shed client may come back |

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

/// The importance of a request. Class 0 is the most important and is shed last.
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

/// Number of seconds over which to spread the retries of shed clients. The larger the fraction of
/// shed requests, the longer: ten seconds if nine of ten requests are shed.
pub fn retry_spread(shed: u64, requests: u64) -> u32 {
    const WIDEST: u64 = 10;
    let served = requests.saturating_sub(shed);
    let spread = if shed == 0 {
        1
    } else if served == 0 {
        WIDEST
    } else {
        requests.div_ceil(served).clamp(1, WIDEST)
    };
    u32::try_from(spread).unwrap_or(1)
}

/// The wait to report to a shed client: 1 to `spread` whole seconds, chosen by `ticket`.
///
/// ```
/// use tidegate_core::Span;
/// use tidegate_core::shed::{retry_after, retry_spread};
///
/// assert_eq!(retry_after(17, retry_spread(0, 100)), Span::from_secs(1));
/// assert!(retry_after(17, retry_spread(90, 100)) <= Span::from_secs(10));
/// ```
pub fn retry_after(ticket: u64, spread: u32) -> Span {
    Span::from_secs(1 + mix(ticket) % u64::from(spread.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shed fraction of 0.9 spreads `Retry-After` evenly over 1 to 10 s.
    #[test]
    fn ov_33_the_wait_spreads_with_the_fraction_shed() {
        let mut seen = [0_u32; 11];
        for ticket in 0..10_000 {
            let seconds = retry_after(ticket, retry_spread(900, 1_000)).as_micros() / 1_000_000;
            seen[usize::try_from(seconds).unwrap()] += 1;
        }
        assert_eq!(seen[0], 0);
        assert!(seen[1..].iter().all(|count| (900..1_100).contains(count)), "{seen:?}");
        assert_eq!(
            [(0, 0), (0, 9), (5, 10), (2, 3), (10, 10)].map(|(a, b)| retry_spread(a, b)),
            [1, 1, 2, 3, 10]
        );
    }

    #[test]
    fn ranks_above_the_last_count_as_the_last() {
        assert_eq!(Class::new(200).rank(), Class::MAX - 1);
        assert!(Class::CRITICAL < Class::new(1));
    }
}
