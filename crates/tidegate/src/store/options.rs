//! What a policy says of a limit beyond its numbers, and how a decision was come by.

use std::num::NonZeroU16;

use tidegate_core::Span;

/// What a policy says of a limit beyond its numbers. Stores set it aside; the layers in front of them
/// go by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitOptions {
    /// What is answered when the store gives no decision; if nothing, what the layer that answers then
    /// was told.
    pub on_store_failure: Option<OnStoreFailure>,
    /// For how long a denial may be repeated without asking the store; nought for not at all. If
    /// nothing, what the layer that repeats denials was told.
    pub refund_staleness: Option<Span>,
    /// How close to the store it is decided.
    pub tier: Tier,
    /// Into how many keys each key of the limit is divided; not at all if nothing.
    pub shards: Option<NonZeroU16>,
    /// Whether its windows are calendar periods. In this process such a window is decided by wall time,
    /// and every other limit by the monotonic clock. A shared store decides by its own clock.
    pub is_calendar: bool,
}

impl LimitOptions {
    /// These options, with this answer to a store that is away.
    #[must_use]
    pub const fn on_store_failure(self, mode: OnStoreFailure) -> Self {
        Self { on_store_failure: Some(mode), ..self }
    }

    /// These options, with denials that are repeated for so long.
    #[must_use]
    pub const fn refund_staleness(self, longest: Span) -> Self {
        Self { refund_staleness: Some(longest), ..self }
    }

    /// These options, decided so close to the store.
    #[must_use]
    pub const fn tier(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }

    /// These options, for windows that are calendar periods or not.
    #[must_use]
    pub const fn calendar(self, is_calendar: bool) -> Self {
        Self { is_calendar, ..self }
    }

    /// These options, with each key divided into so many.
    #[must_use]
    pub const fn shards(self, shards: NonZeroU16) -> Self {
        Self { shards: Some(shards), ..self }
    }
}

/// How close to the store decisions are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Tier {
    /// In it.
    #[default]
    Exact,
    /// From units taken ahead.
    Leased,
    /// Without it: on this node alone.
    Local,
}

/// What is answered when the store gives no decision. Later is worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OnStoreFailure {
    /// What this node's share of the limit says.
    #[default]
    Local,
    /// Go ahead.
    Allow,
    /// Stay out.
    Deny,
}

impl OnStoreFailure {
    /// All of them.
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::Local, Self::Allow, Self::Deny];

    /// As spelled in policies.
    #[doc(hidden)]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// How the decisions of a request were come by. Later is worse, and a request goes by the worst of its
/// charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecisionSource {
    /// The store that keeps the state gave them, or whoever holds units of it.
    #[default]
    Store,
    /// The store gave none: the policy's word for that case did.
    Fallback(OnStoreFailure),
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
