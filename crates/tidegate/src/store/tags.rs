//! Whose places a set of a table has, for those who do not take its lock.

use crate::sync::{AtomicU64, Ordering};

/// So many places a set has.
pub(super) const WAYS: usize = 4;

/// 16 bits of the print of each key in a set. They change with the places, under the lock of the set:
/// whoever knows of a place finds its tag.
#[derive(Debug, Default)]
pub(super) struct Tags(AtomicU64);

impl Tags {
    #[inline(always)]
    pub(super) fn may_hold(&self, print: u64) -> bool {
        let tags = self.0.load(Ordering::Acquire);
        tags != 0 && (0..WAYS).any(|way| (tags >> (16 * way)) as u16 == tag(print))
    }

    /// Lets others know whose places these are.
    pub(super) fn set(&self, prints: impl Iterator<Item = u64>) {
        let tags = prints.fold(0, |tags, print| tags << 16 | u64::from(tag(print)));
        self.0.store(tags, Ordering::Release);
    }

    /// How many places are taken.
    pub(super) fn count(&self) -> usize {
        let tags = self.0.load(Ordering::Relaxed);
        (0..WAYS).filter(|way| (tags >> (16 * way)) as u16 != 0).count()
    }
}

/// Never nought, which stands for nobody.
#[inline(always)]
const fn tag(print: u64) -> u16 {
    (print >> 48) as u16 | 1
}
