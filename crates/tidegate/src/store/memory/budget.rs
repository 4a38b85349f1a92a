//! How many bytes the whole store may hold, whichever part of it holds them.

use crate::sync::{AtomicU64, Ordering};

/// Bytes given out, never above the most.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicU64,
    most: u64,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    /// Takes `bytes`, or nothing if they do not fit.
    pub(super) fn reserve(&self, bytes: u64) -> bool {
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= self.most)
            })
            .is_ok()
    }

    /// Takes `bytes` for which room was reserved before.
    pub(super) fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}
