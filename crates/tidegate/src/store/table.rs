//! A table of fixed size with one entry for each of some keys.

use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// The most entries in a set.
pub(super) const WAYS: usize = 4;

/// Sets of a few entries; the hash of a key, its print, chooses the set.
#[derive(Debug)]
pub(super) struct Table<T>(Box<[Set<T>]>);

/// Entries, each with the print of its key.
pub(super) type Entries<T> = Vec<(u64, T)>;

/// Aligned to a cache line of its own, because requests for hot keys write to it.
#[derive(Debug)]
#[repr(align(64))]
struct Set<T> {
    /// 16 bits of the print of each key in the set, so that a look-up of any other key takes no
    /// lock. They change under the lock together with the entries, so a thread that knows of an
    /// entry finds its tag.
    tags: AtomicU64,
    entries: Mutex<Entries<T>>,
}

impl<T> Table<T> {
    /// A table of `sets` sets, a power of two.
    pub(super) fn new(sets: usize) -> Self {
        let set = |_| Set { tags: AtomicU64::new(0), entries: Mutex::new(Vec::new()) };
        Self((0..sets).map(set).collect())
    }

    #[inline(always)]
    fn set(&self, print: u64) -> &Set<T> {
        &self.0[place(print, self.0.len())]
    }

    /// Whether a key may have an entry; false if it certainly has none.
    #[inline(always)]
    pub(super) fn may_hold(&self, print: u64) -> bool {
        let tags = self.set(print).tags.load(Ordering::Acquire);
        tags != 0 && (0..WAYS).any(|way| (tags >> (16 * way)) as u16 == tag(print))
    }

    /// Runs `work` on the entry of a key, if there is one.
    #[inline]
    pub(super) fn with<R>(&self, print: u64, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if !self.may_hold(print) {
            return None;
        }
        let mut entries = lock(&self.set(print).entries);
        entries.iter_mut().find(|(known, _)| *known == print).map(|(_, entry)| work(entry))
    }

    /// Runs `work` on the set that a key belongs to. It may add entries, up to [`WAYS`], and remove some.
    pub(super) fn change<R>(&self, print: u64, work: impl FnOnce(&mut Entries<T>) -> R) -> R {
        self.set(print).change(work)
    }

    /// Runs `work` on every set, one after the other, until it returns false.
    pub(super) fn change_all(&self, mut work: impl FnMut(&mut Entries<T>) -> bool) {
        self.0.iter().all(|set| set.change(&mut work));
    }

    /// Number of entries.
    pub(super) fn len(&self) -> usize {
        let count = |set: &Set<T>| {
            let tags = set.tags.load(Ordering::Relaxed);
            (0..WAYS).filter(|way| (tags >> (16 * way)) as u16 != 0).count()
        };
        self.0.iter().map(count).sum()
    }
}

impl<T> Set<T> {
    fn change<R>(&self, work: impl FnOnce(&mut Entries<T>) -> R) -> R {
        let mut entries = lock(&self.entries);
        let value = work(&mut entries);
        let tags = entries.iter().fold(0, |tags, (print, _)| tags << 16 | u64::from(tag(*print)));
        self.tags.store(tags, Ordering::Release);
        value
    }
}

/// The index of a print in `places` places, a power of two. Skips the last five bits, which are the
/// same in all prints.
#[inline(always)]
pub(super) const fn place(print: u64, places: usize) -> usize {
    (print >> 5) as usize & (places - 1)
}

/// Never 0, which marks a free place.
#[inline(always)]
const fn tag(print: u64) -> u16 {
    (print >> 48) as u16 | 1
}
