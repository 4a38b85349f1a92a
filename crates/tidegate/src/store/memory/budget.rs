//! How many bytes the whole store may hold, whichever part of it holds them.

use crate::sync::{AtomicU64, Ordering};

/// What bytes are for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Rows of a table.
    Table,
    /// A log or a list of leases for a key that has none.
    NewList,
    /// More of one.
    KnownList,
}

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
    pub(super) fn reserve(&self, bytes: u64, purpose: Purpose) -> bool {
        // Tables never give back what they took, and a log that is known must be able to grow: so
        // each of these leaves something to the next.
        let most = match purpose {
            Purpose::Table => self.most - self.most / 16,
            Purpose::NewList => self.most - self.most / 32,
            Purpose::KnownList => self.most,
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(bytes).filter(|used| *used <= most)
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
