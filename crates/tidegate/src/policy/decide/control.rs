//! What people change in a hurry, over whatever policy is in force: other numbers for a while, and
//! limits that are switched off. It outlives reloads of the policy, and ends by itself or by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tidegate_core::{AlgorithmName, Limit, Span, Timestamp};

use crate::key::Scope;
use crate::policy::decide::limiter::PolicyLimiter;
use crate::policy::decide::local_override::LocalOverrides;
use crate::policy::model::limit::PolicyLimit;
use crate::policy::model::rule::Domain;
use crate::policy::model::share::EnforceSecret;
use crate::scaling::scaled;
use crate::store::Store;

/// The most overrides, the most switches and the most local overrides, at a time.
pub const MAX_CONTROLS: usize = 1_000;

/// The longest that an override holds.
pub const MAX_OVERRIDE: Span = Span::from_secs(30 * 86_400);

/// Everything that overrules the policy for now.
#[derive(Clone, Debug, Default)]
pub struct Controls {
    overrides: BTreeMap<Arc<str>, Overruling>,
    switches: BTreeSet<Switch>,
    local_overrides: LocalOverrides,
    pub(in crate::policy) enforce_secret: Option<EnforceSecret>,
}

/// Other numbers for one limit, for all keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overruling {
    /// Which numbers.
    pub numbers: OtherNumbers,
    /// From when on they do not count any more.
    pub until: Timestamp,
    /// The reason, for the audit log and status.
    pub reason: Option<String>,
}

/// Which numbers hold instead of the policy's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherNumbers {
    /// So many hundredths of rate and burst, plans and overrides of the policy included.
    Percent(u32),
    /// This limit for all keys, with its own state.
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

/// Why a control was not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlError {
    /// There are [`MAX_CONTROLS`] already.
    TooMany,
    /// The policy has no such limit.
    NoSuchLimit,
    /// The policy has no such domain.
    NoSuchDomain,
    /// It would hold for longer than [`MAX_OVERRIDE`], or has ended already.
    Until,
    /// The descriptor is empty; it needs at least one entry.
    NoEntries,
    /// Its numbers cannot be scaled.
    Unscalable,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany => write!(f, "there are {MAX_CONTROLS} already: remove some first"),
            Self::NoSuchLimit => f.write_str("the policy has no limit of this id"),
            Self::NoSuchDomain => f.write_str("the policy has no such domain"),
            Self::Until => f.write_str("it has to end within 30 days, and not before now"),
            Self::NoEntries => f.write_str("a descriptor has at least one entry"),
            Self::Unscalable => {
                f.write_str("this limit cannot be scaled so: give a rate instead of a percentage")
            }
        }
    }
}

impl std::error::Error for ControlError {}

impl Controls {
    /// Overrides in force or not yet cleared away, by the id of their limit.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, &Overruling)> {
        self.overrides.iter().map(|(id, overruling)| (&**id, overruling))
    }

    /// What is switched off.
    pub fn switches(&self) -> impl Iterator<Item = &Switch> {
        self.switches.iter()
    }

    /// Which keys this node decides by itself.
    pub const fn local_overrides(&self) -> &LocalOverrides {
        &self.local_overrides
    }

    pub(in crate::policy) const fn local_overrides_mut(&mut self) -> &mut LocalOverrides {
        &mut self.local_overrides
    }

    /// Whether the limits of a domain are switched off, including limits that come with requests.
    pub(in crate::policy) fn spares(&self, domain: &Domain) -> bool {
        let is_off = |switch: &Switch| match switch {
            Switch::All => true,
            Switch::Domain(name) => name == domain.name(),
            Switch::Limit(_) => false,
        };
        !self.switches.is_empty() && self.switches.iter().any(is_off)
    }

    /// Whether this limit itself is switched off.
    pub(in crate::policy) fn spares_limit(&self, limit: &PolicyLimit) -> bool {
        !self.switches.is_empty() && self.switches.contains(&Switch::Limit(limit.id().to_owned()))
    }

    /// The numbers of a limit as they are now.
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
            // Takes as long to refill, so that nodes with and without it may share a state.
            OtherNumbers::Percent(percent) => Some((scaled(&plain, percent, 100)?, scope)),
            // A node that has the policy's numbers would find a state of these impossible, or the
            // other way round, and refill it: each counts for itself.
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
    /// What overrules the policy now.
    pub fn controls(&self) -> Arc<Controls> {
        self.0.controls.load_full()
    }

    /// Puts other numbers in force for a limit, until the time given.
    pub fn overrule(&self, id: &str, overruling: &Overruling) -> Result<(), ControlError> {
        let now = self.0.store.clock(self.0.clock.now());
        let last = now.as_micros().saturating_add(MAX_OVERRIDE.as_micros());
        if overruling.until <= now || overruling.until.as_micros() > last {
            return Err(ControlError::Until);
        }
        let policy = self.policy();
        let limit = policy.limits().find(|it| it.id() == id).ok_or(ControlError::NoSuchLimit)?;
        if let OtherNumbers::Percent(percent) = overruling.numbers {
            // A shaping bucket does not tell its queue.
            let shapes = limit.algorithm() == Some(AlgorithmName::LeakyBucket);
            let numbers = limit.allowance().at(now).ok_or(ControlError::Unscalable)?.0;
            if shapes || percent == 0 || scaled(&numbers, percent, 100).is_none() {
                return Err(ControlError::Unscalable);
            }
        }
        // Before any request is decided by the new numbers.
        self.0.revision.change();
        self.change(|controls| {
            controls.overrides.retain(|_, it| now < it.until);
            if controls.overrides.len() >= MAX_CONTROLS && !controls.overrides.contains_key(id) {
                return Err(ControlError::TooMany);
            }
            controls.overrides.insert(id.into(), overruling.clone());
            Ok(())
        })?;
        // Meanwhile the store may have registered the old numbers.
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

    /// Switches limits off: they are decided and counted, not enforced.
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

    /// Lets them count again; false if they did.
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

    /// Changes the controls as a whole; what others change meanwhile is not lost.
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
