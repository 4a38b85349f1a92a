//! The revision of a node's policy, for the registry of a shared store.

use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tidegate_core::Timestamp;

use crate::policy::decide::control::{Controls, OtherNumbers};
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::model::in_words::in_words;
use crate::policy::model::rule::Domain;
use crate::store::{DomainRevision, Revisions, Store};

#[doc(hidden)]
impl<S: Store + 'static> PolicyLimiter<S> {
    /// Publishes the revision of each domain, so that nodes that share a store can tell whether all
    /// of them have the same policy. Active overrides with their own numbers are part of it. Only
    /// the first limiter that publishes to a store counts.
    pub fn publish_revisions(&self, to: &Revisions) {
        let shared = Arc::downgrade(&self.0);
        to.publish(move || {
            let Some(shared) = shared.upgrade() else { return Vec::new() };
            let limiter = Self(shared);
            let (policy, controls) = (limiter.policy(), limiter.controls());
            let now = limiter.0.store.clock(limiter.0.clock.now());
            let revision = |domain: &Domain| DomainRevision {
                domain: domain.name().into(),
                revision: revision(domain, &controls, now),
            };
            policy.domains().map(revision).collect()
        });
    }
}

/// The revision of a domain and of the overrides of its limits. Overrides in percent do not count:
/// they keep the refill time, so nodes without them need not repair states.
fn revision(domain: &Domain, controls: &Controls, now: Timestamp) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(domain.revision(), 0);
    let mut is_overruled = false;
    for (id, overruling) in controls.overrides().filter(|(_, it)| now < it.until) {
        let OtherNumbers::Limit(limit) = &overruling.numbers else { continue };
        let mut limits = domain.rules().iter().flat_map(|rule| rule.limits());
        if limits.any(|limit| limit.id() == id) {
            is_overruled = true;
            hasher.write(format!("{id}\n{}\n", in_words(limit)).as_bytes());
        }
    }
    if is_overruled { hasher.finish() } else { domain.revision() }
}
