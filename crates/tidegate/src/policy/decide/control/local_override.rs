//! Local overrides: keys that one node decides alone for a while, because their traffic would
//! overload the store for all other keys.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use tidegate_core::Timestamp;

use crate::policy::decide::control::{ControlError, MAX_CONTROLS, MAX_OVERRIDE};
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::matching::resolve::whole_text;
use crate::policy::model::descriptor::Entry;
use crate::store::{Nodes, Store};

/// The keys that this node decides alone, each by its share of the limits that apply.
#[derive(Clone, Debug, Default)]
pub struct LocalOverrides(BTreeMap<Box<[u8]>, LocallyDecided>);

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocallyDecided {
    /// The domain.
    pub domain: String,
    /// Every entry of the descriptor, in order.
    pub entries: Vec<(String, String)>,
    /// How.
    pub local_override: LocalOverride,
}

/// The local override of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalOverride {
    /// Number of nodes that share the limits: this one enforces 1.5 × limit / nodes, at least one unit.
    pub nodes: Nodes,
    /// When the override ends; `None` if only a call ends it.
    pub until: Option<Timestamp>,
    /// The reason, for the audit log and status.
    pub reason: Option<String>,
}

impl LocalOverride {
    fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl LocalOverrides {
    /// All local overrides in the order of their keys, including expired ones that have not been
    /// removed yet.
    pub fn iter(&self) -> impl Iterator<Item = &LocallyDecided> {
        self.0.values()
    }

    /// Number of local overrides in force at `now`.
    pub fn count(&self, now: Timestamp) -> usize {
        self.iter().filter(|it| it.local_override.holds(now)).count()
    }

    /// The number of nodes that share the limits of a descriptor that this node decides alone;
    /// `None` if there is no override.
    #[inline]
    pub(in crate::policy) fn nodes(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        now: Timestamp,
    ) -> Option<NonZeroU32> {
        if self.0.is_empty() {
            return None;
        }
        let local_override = &self.0.get(&*text(domain, entries))?.local_override;
        local_override.holds(now).then(|| local_override.nodes.count())
    }
}

/// A text that is unique for each descriptor.
fn text(domain: &str, entries: &[Entry<'_>]) -> Vec<u8> {
    let mut text = Vec::with_capacity(64);
    whole_text(&[Entry { key: "domain", value: domain }], &mut text);
    whole_text(entries, &mut text);
    text
}

#[doc(hidden)]
impl<S: Store> PolicyLimiter<S> {
    /// Makes this node decide the keys of this descriptor alone, by its share of the limits. Other
    /// nodes are not affected.
    pub fn override_locally(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        local_override: &LocalOverride,
    ) -> Result<(), ControlError> {
        let now = self.0.store.clock(self.0.clock.now());
        let last = now.as_micros().saturating_add(MAX_OVERRIDE.as_micros());
        if local_override.until.is_some_and(|until| until <= now || until.as_micros() > last) {
            return Err(ControlError::Until);
        }
        if entries.is_empty() {
            return Err(ControlError::NoEntries);
        }
        self.policy().domain(domain).ok_or(ControlError::NoSuchDomain)?;
        let key = text(domain, entries).into_boxed_slice();
        let owned = entries.iter().map(|it| (it.key.to_owned(), it.value.to_owned())).collect();
        let decided = LocallyDecided {
            domain: domain.to_owned(),
            entries: owned,
            local_override: local_override.clone(),
        };
        self.change(|controls| {
            let LocalOverrides(all) = controls.local_overrides_mut();
            all.retain(|_, it| it.local_override.holds(now));
            if all.len() >= MAX_CONTROLS && !all.contains_key(&key) {
                return Err(ControlError::TooMany);
            }
            all.insert(key.clone(), decided.clone());
            Ok(())
        })
    }

    /// Ends a local override; false if there was none.
    pub fn end_local_override(&self, domain: &str, entries: &[Entry<'_>]) -> bool {
        let (key, mut was_overridden) = (text(domain, entries), false);
        let changed = self.change(|controls| {
            was_overridden = controls.local_overrides_mut().0.remove(&*key).is_some();
            Ok(())
        });
        changed.is_ok() && was_overridden
    }
}

#[cfg(test)]
#[path = "local_override_tests.rs"]
mod tests;
