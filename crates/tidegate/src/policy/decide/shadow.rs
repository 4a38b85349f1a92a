//! A limit that is tried beside another, on the same requests and with its own state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::model::allowance::Allowance;

/// A limit that is tried beside another.
#[derive(Debug)]
pub struct Variant {
    pub(in crate::policy) allowance: Allowance,
    pub(in crate::policy) counts: Arc<Counts>,
}

/// How often two limits said the same of one request.
#[derive(Debug, Default)]
pub(in crate::policy) struct Counts {
    agree: AtomicU64,
    would_deny: AtomicU64,
    would_allow: AtomicU64,
}

/// What was counted at some instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Requests of which both said the same.
    pub agree: u64,
    /// Requests that the live limit let through and the shadow would not have.
    pub would_deny: u64,
    /// Requests that the live limit denied and the shadow would not have.
    pub would_allow: u64,
}

impl Variant {
    /// How much it would allow.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// How often it said the same as the live limit.
    pub fn agreement(&self) -> Agreement {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { agree, would_deny, would_allow } = &*self.counts;
        Agreement {
            agree: read(agree),
            would_deny: read(would_deny),
            would_allow: read(would_allow),
        }
    }

    /// Counts one request.
    pub(in crate::policy) fn count(&self, live_allows: bool, shadow_allows: bool) {
        let Counts { agree, would_deny, would_allow } = &*self.counts;
        let counter = match (live_allows, shadow_allows) {
            (true, false) => would_deny,
            (false, true) => would_allow,
            _ => agree,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
