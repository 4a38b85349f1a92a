//! Runtime overrides of the policy in force: temporary numbers, and limits that are switched off.
//! Controls survive a reload of the policy, and end at their time or by a call.

pub(in crate::policy) mod local_override;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tidegate_core::{AlgorithmName, Limit, Span, Timestamp};

use crate::key::Scope;
use crate::policy::decide::control::local_override::LocalOverrides;
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::model::limit::PolicyLimit;
use crate::policy::model::rule::Domain;
use crate::policy::model::share::EnforceSecret;
use crate::scaling::scaled;
use crate::store::Store;

/// Maximum number of overrides, of kill switches and of local overrides at a time.
pub const MAX_CONTROLS: usize = 1_000;

/// The longest duration of an override.
pub const MAX_OVERRIDE: Span = Span::from_secs(30 * 86_400);

/// All controls in force.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    overrides: BTreeMap<Arc<str>, Overruling>,
    switches: BTreeSet<Switch>,
    local_overrides: LocalOverrides,
    pub(in crate::policy) enforce_secret: Option<EnforceSecret>,
}

/// Temporary numbers for one limit, for all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overruling {
    /// The temporary numbers.
    pub numbers: OtherNumbers,
    /// The instant from which the policy's numbers apply again.
    pub until: Timestamp,
    /// The reason, for the audit log and status.
    pub reason: Option<String>,
}

/// Numbers that replace the policy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherNumbers {
    /// A percentage of rate and burst, also of plans and overrides of the policy.
    Percent(u32),
    /// This limit for all keys, with separate state.
    Limit(Limit),
}

/// Limits that are decided and counted, not enforced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Switch {
    /// Everything.
    All,
    /// Every limit of a domain.
    Domain(String),
    /// One limit, by its id.
    Limit(String),
}

/// Why a control was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// There are already [`MAX_CONTROLS`] controls.
    TooMany,
    /// The policy has no such limit.
    NoSuchLimit,
    /// The policy has no such domain.
    NoSuchDomain,
    /// The end is more than [`MAX_OVERRIDE`] ahead, or in the past.
    Until,
    /// The descriptor is empty; it needs at least one entry.
    NoEntries,
    /// The limit's numbers cannot be scaled.
    Unscalable,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "there are {MAX_CONTROLS} already: remove some first"),
            Self::NoSuchLimit => f.write_str("the policy has no limit of this id"),
            Self::NoSuchDomain => f.write_str("the policy has no such domain"),
            Self::Until => f.write_str("the end must be in the future, and within 30 days"),
            Self::NoEntries => f.write_str("a descriptor has at least one entry"),
            Self::Unscalable => {
                f.write_str("this limit cannot be scaled so: give a rate instead of a percentage")
            }
        }
    }
}

impl std::error::Error for ControlError {}

impl Controls {
    /// Overrides by the id of their limit, including expired ones that have not been removed yet.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, &Overruling)> {
        self.overrides.iter().map(|(id, overruling)| (&**id, overruling))
    }

    /// The kill switches in force.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.switches.iter()
    }

    /// The keys that this node decides alone.
    pub const fn local_overrides(&self) -> &LocalOverrides {
        &self.local_overrides
    }

    pub(in crate::policy) const fn local_overrides_mut(&mut self) -> &mut LocalOverrides {
        &mut self.local_overrides
    }

    /// Whether a kill switch covers the whole domain, including limits that come with requests.
    pub(in crate::policy) fn spares(&self, domain: &Domain) -> bool {
        let is_off = |switch: &Switch| match switch {
            Switch::All => true,
            Switch::Domain(name) => name == domain.name(),
            Switch::Limit(_) => false,
        };
        !self.switches.is_empty() && self.switches.iter().any(is_off)
    }

    /// Whether a kill switch covers this limit.
    pub(in crate::policy) fn spares_limit(&self, limit: &PolicyLimit) -> bool {
        !self.switches.is_empty() && self.switches.contains(&Switch::Limit(limit.id().to_owned()))
    }

    /// The numbers of a limit that are in force.
    pub(in crate::policy) fn numbers(
        &self,
        limit: &PolicyLimit,
        numbers: Option<(Limit, Scope)>,
        now: Timestamp,
    ) -> Option<(Limit, Scope)> {
        let (plain, scope) = numbers?;
        if self.overrides.is_empty() {
            return Some((plain, scope));
        }
        let overruling = self.overrides.get(limit.id()).filter(|it| now < it.until);
        let other = overruling.and_then(|overruling| match overruling.numbers {
            // The refill time stays the same, so nodes with and without the override may share a
            // state.
            OtherNumbers::Percent(percent) => Some((scaled(&plain, percent, 100)?, scope)),
            // The numbers differ in refill time. A node with the policy's numbers would find a
            // state of these impossible and repair it, and vice versa. Therefore the override has
            // its own state.
            OtherNumbers::Limit(other) => {
                let name = format!("{}#override", limit.id());
                Some((other, Scope::new(&name, &other)))
            }
        });
        Some(other.unwrap_or((plain, scope)))
    }
}

#[doc(hidden)]
impl<S: Store> PolicyLimiter<S> {
    /// The controls in force.
    pub fn controls(&self) -> Arc<Controls> {
        self.0.controls.load_full()
    }

    /// Puts temporary numbers in force for a limit, until the given time.
    pub fn overrule(&self, id: &str, overruling: &Overruling) -> Result<(), ControlError> {
        let now = self.0.store.clock(self.0.clock.now());
        let last = now.as_micros().saturating_add(MAX_OVERRIDE.as_micros());
        if overruling.until <= now || overruling.until.as_micros() > last {
            return Err(ControlError::Until);
        }
        let policy = self.policy();
        let limit = policy.limits().find(|it| it.id() == id).ok_or(ControlError::NoSuchLimit)?;
        if let OtherNumbers::Percent(percent) = overruling.numbers {
            // A shaping bucket does not expose its queue.
            let shapes = limit.algorithm() == Some(AlgorithmName::LeakyBucket);
            let numbers = limit.allowance().at(now).ok_or(ControlError::Unscalable)?.0;
            if shapes || percent == 0 || scaled(&numbers, percent, 100).is_none() {
                return Err(ControlError::Unscalable);
            }
        }
        // Changed before any request is decided with the new numbers.
        self.0.revision.change();
        self.change(|controls| {
            controls.overrides.retain(|_, it| now < it.until);
            if controls.overrides.len() >= MAX_CONTROLS && !controls.overrides.contains_key(id) {
                return Err(ControlError::TooMany);
            }
            controls.overrides.insert(id.into(), overruling.clone());
            Ok(())
        })?;
        // Changed again, because the store may have registered the old numbers in between.
        self.0.revision.change();
        Ok(())
    }

    /// Ends an override; false if there was none.
    pub fn end_overruling(&self, id: &str) -> bool {
        let mut was_there = false;
        self.0.revision.change();
        let ended = self.change(|controls| {
            was_there = controls.overrides.remove(id).is_some();
            Ok(())
        });
        self.0.revision.change();
        ended.is_ok() && was_there
    }

    /// Switches limits off: they are still decided and counted, but not enforced.
    pub fn switch_off(&self, switch: &Switch) -> Result<(), ControlError> {
        let policy = self.policy();
        match switch {
            Switch::All => {}
            Switch::Domain(name) => {
                policy.domain(name).ok_or(ControlError::NoSuchDomain)?;
            }
            Switch::Limit(id) => {
                let mut limits = policy.limits();
                limits.find(|limit| limit.id() == id).ok_or(ControlError::NoSuchLimit)?;
            }
        }
        self.change(|controls| {
            if controls.switches.len() >= MAX_CONTROLS && !controls.switches.contains(switch) {
                return Err(ControlError::TooMany);
            }
            controls.switches.insert(switch.clone());
            Ok(())
        })
    }

    /// Switches limits on again; false if they were on.
    pub fn switch_on(&self, switch: &Switch) -> bool {
        let mut was_off = false;
        let changed = self.change(|controls| {
            was_off = controls.switches.remove(switch);
            Ok(())
        });
        changed.is_ok() && was_off
    }

    /// Chooses the keys of `enforce: 25%` with this secret, which all nodes need to share. A change of
    /// the secret enforces other keys.
    pub fn set_enforce_secret(&self, secret: Option<EnforceSecret>) {
        let _ = self.change(|controls| {
            controls.enforce_secret = secret;
            Ok(())
        });
    }

    /// Replaces the controls atomically, so that concurrent changes are not lost.
    pub(in crate::policy) fn change(
        &self,
        mut change: impl FnMut(&mut Controls) -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        loop {
            let old = self.0.controls.load_full();
            let mut new = Controls::clone(&old);
            change(&mut new)?;
            let before = self.0.controls.compare_and_swap(&old, Arc::new(new));
            if Arc::ptr_eq(&before, &old) {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
