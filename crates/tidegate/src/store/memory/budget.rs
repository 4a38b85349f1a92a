//! The memory bound of the whole store, shared by all its parts.

use crate::sync::{AtomicU64, Ordering};

/// The purpose of a reservation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Rows of a table.
    Table,
    /// A log or a list of leases for a new key.
    NewList,
    /// Growth of an existing list.
    KnownList,
}

/// Counts reserved bytes, up to the maximum.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicU64,
    most: u64,
}

impl Budget {
    pub(super) fn new(most: u64) -> Self {
        Self { used: AtomicU64::new(0), most }
    }

    /// Reserves `bytes`; false, and nothing is reserved, if they do not fit.
    pub(super) fn reserve(&self, bytes: u64, purpose: Purpose) -> bool {
        // Tables never shrink, and an existing log must be able to grow, so each purpose leaves a
        // part of the memory to the next.
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

    /// Adds `bytes` that were reserved before.
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
