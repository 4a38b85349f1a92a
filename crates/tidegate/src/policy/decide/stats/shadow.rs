//! Shadow limits, evaluated beside a live limit on the same requests, with their own state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::policy::model::allowance::Allowance;

/// A shadow limit.
#[derive(Debug)]
pub struct Variant {
    pub(in crate::policy) allowance: Allowance,
    pub(in crate::policy) counts: Arc<Counts>,
}

/// How often a live limit and its shadow limit agreed.
#[derive(Debug, Default)]
pub(in crate::policy) struct Counts {
    agree: AtomicU64,
    would_deny: AtomicU64,
    would_allow: AtomicU64,
}

/// The counts at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Requests on which both limits agreed.
    pub agree: u64,
    /// Requests that the live limit allowed and the shadow limit would have denied.
    pub would_deny: u64,
    /// Requests that the live limit denied and the shadow limit would have allowed.
    pub would_allow: u64,
}

impl Variant {
    /// The numbers of the shadow limit.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// How often the shadow limit agreed with the live limit.
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
