//! The options of a limit beyond its numbers, and the sources of decisions.

use std::num::NonZeroU16;

use tidegate_core::Span;

/// The options of a limit beyond its numbers. The layers in front of a store use them; the store ignores them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(hidden)]
pub struct LimitOptions {
    /// The answer when the store gives no decision; `None` for the stack's default.
    pub on_store_failure: Option<OnStoreFailure>,
    /// How long a denial may be repeated without asking the store; 0 for not at all, `None` for the stack's
    /// default.
    pub refund_staleness: Option<Span>,
    /// Where it is decided.
    pub tier: Tier,
    /// The number of keys that each key of the limit is divided into; `None` for one.
    pub shards: Option<NonZeroU16>,
    /// Whether its windows are calendar periods. In this process such a window is decided by wall time,
    /// and every other limit by the monotonic clock. A shared store decides by its own clock.
    pub is_calendar: bool,
}

impl LimitOptions {
    /// These options, with this answer while the store is unavailable.
    #[must_use]
    pub const fn on_store_failure(self, mode: OnStoreFailure) -> Self {
        Self { on_store_failure: Some(mode), ..self }
    }

    /// These options, with denials that are repeated for at most this long.
    #[must_use]
    pub fn refund_staleness(self, longest: impl Into<Span>) -> Self {
        Self { refund_staleness: Some(longest.into()), ..self }
    }

    /// These options, decided in this tier.
    #[must_use]
    pub const fn tier(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }

    /// These options, for windows that are calendar periods or not.
    #[must_use]
    pub const fn calendar(self, is_calendar: bool) -> Self {
        Self { is_calendar, ..self }
    }

    /// These options, with each key divided into this many shards.
    #[must_use]
    pub const fn shards(self, shards: NonZeroU16) -> Self {
        Self { shards: Some(shards), ..self }
    }
}

/// Where decisions are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// In the store.
    #[default]
    Exact,
    /// From units that the node took in advance.
    Leased,
    /// On this node alone.
    Local,
}

/// The answer when the store gives no decision, ordered from best to worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnStoreFailure {
    /// The decision of this node's share of the limit.
    #[default]
    Local,
    /// Admit.
    Allow,
    /// Deny.
    Deny,
}

impl OnStoreFailure {
    /// Every mode.
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    /// The name in policies.
    #[doc(hidden)]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Where a request's decisions came from, ordered from best to worst; a request reports the worst of its
/// charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(hidden)]
pub enum DecisionSource {
    /// The store, or a layer that holds units or denials of the store.
    #[default]
    Store,
    /// The fallback, because the store gave no decision.
    Fallback(OnStoreFailure),
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
