//! Short hashes of the keys in one set of a table, read without the lock of the set.

use crate::sync::{AtomicU64, Ordering};

/// Places in a set.
pub(super) const WAYS: usize = 4;

/// 16 bits of the print of each key in a set. They change with the places, under the lock of the set, so a
/// thread that knows of a place finds its tag.
#[derive(Debug, Default)]
pub(super) struct Tags(AtomicU64);

impl Tags {
    #[inline(always)]
    pub(super) fn may_hold(&self, print: u64) -> bool {
        let tags = self.0.load(Ordering::Acquire);
        tags != 0 && (0..WAYS).any(|way| (tags >> (16 * way)) as u16 == tag(print))
    }

    /// Publishes the keys in the set.
    pub(super) fn set(&self, prints: impl Iterator<Item = u64>) {
        let tags = prints.fold(0, |tags, print| tags << 16 | u64::from(tag(print)));
        self.0.store(tags, Ordering::Release);
    }

    /// Number of places that are taken.
    pub(super) fn count(&self) -> usize {
        let tags = self.0.load(Ordering::Relaxed);
        (0..WAYS).filter(|way| (tags >> (16 * way)) as u16 != 0).count()
    }
}

/// Never 0, which marks a free place.
#[inline(always)]
const fn tag(print: u64) -> u16 {
    (print >> 48) as u16 | 1
}
