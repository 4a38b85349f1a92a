//! One limit of a policy: its numbers, plans, overrides and mode.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tidegate_core::shed::Reserve;
use tidegate_core::{AlgorithmName, Limit, Span, Timestamp};

use crate::key::Scope;
use crate::policy::decide::stats::retry_spread::RetrySpread;
use crate::policy::decide::stats::shadow::Variant;
use crate::policy::decide::stats::{Counter, LimitStats};
use crate::policy::model::allowance::Allowance;
use crate::policy::model::settling::Settling;
use crate::policy::model::share::Share;
use crate::store::{LimitOptions, OnStoreFailure, Tier};
#[cfg(feature = "http")]
use crate::verdict::KnownFields;

/// A limit of a rule.
#[derive(Clone, Debug)]
pub struct PolicyLimit {
    /// Identifies the limit by domain, path and name, whatever its numbers.
    pub(in crate::policy) id: Arc<str>,
    pub(in crate::policy) name: Option<Box<str>>,
    /// `None` for an in-flight limit.
    pub(in crate::policy) algorithm: Option<AlgorithmName>,
    pub(in crate::policy) allowance: Allowance,
    /// Allowances by plan.
    pub(in crate::policy) plans: HashMap<Box<str>, Allowance, RandomState>,
    /// Overrides by the value of the rule's last entry.
    pub(in crate::policy) overrides: HashMap<Box<str>, Override, RandomState>,
    pub(in crate::policy) shadow: Option<Arc<Variant>>,
    pub(in crate::policy) form: Form,
    pub(in crate::policy) cost: u64,
    pub(in crate::policy) mode: Mode,
    pub(in crate::policy) enforce: Share,
    pub(in crate::policy) on_store_failure: OnStoreFailure,
    pub(in crate::policy) refund_staleness: Option<Span>,
    pub(in crate::policy) tier: Tier,
    pub(in crate::policy) shards: Option<NonZeroU16>,
    /// The local pre-limit of each node.
    pub(in crate::policy) local: Option<(Limit, Scope)>,
    pub(in crate::policy) replaces: Box<[Box<str>]>,
    /// The part of an in-flight limit that is kept for the first class.
    pub(crate) reserve: Option<ReservedPart>,
    /// Set if denials protect the server (503); spreads the retries of clients.
    pub(in crate::policy) sheds: Option<Arc<RetrySpread>>,
    /// How the limit is settled after the response, if it is.
    pub(in crate::policy) settling: Option<Arc<Settling>>,
    /// Its counters, which survive a change of its numbers.
    pub(in crate::policy) counter: Arc<Counter>,
    /// What the header fields of all its admissions have in common.
    #[cfg(feature = "http")]
    pub(crate) fields: KnownFields,
}

/// A part of an in-flight limit that is kept for the first class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReservedPart {
    pub(in crate::policy) percent: u8,
    /// The name of the part for the other classes.
    pub(crate) name: Box<str>,
}

impl ReservedPart {
    /// The part of these numbers for the other classes; at least one place, which runtime overrides
    /// might otherwise not leave.
    pub(in crate::policy) fn for_others(
        &self,
        (limit, scope): (Limit, Scope),
    ) -> Option<(Limit, Scope)> {
        let Limit::InFlight(in_flight) = limit else { return None };
        let others = Reserve::new(in_flight.limit(), self.percent).map_or(1, |it| it.other);
        Some((Limit::in_flight(others, in_flight.ttl()).ok()?, scope.of_other_classes()))
    }
}

/// Other numbers for one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    pub(in crate::policy) allowance: Allowance,
    pub(in crate::policy) until: Option<Timestamp>,
    pub(in crate::policy) reason: Option<Box<str>>,
}

impl Override {
    /// The allowance that applies instead.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// When the override ends.
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Why the override was made.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Whether the override applies at `now`.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl PolicyLimit {
    /// Identifies the limit by domain, path and name, whatever its numbers.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The limit's name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The algorithm of a rate; `None` for an in-flight limit.
    pub const fn algorithm(&self) -> Option<AlgorithmName> {
        self.algorithm
    }

    /// The name of the algorithm; `in_flight` for an in-flight limit.
    pub const fn kind(&self) -> &'static str {
        match self.algorithm {
            Some(algorithm) => algorithm.as_str(),
            None => "in_flight",
        }
    }

    /// How the limit is settled after the response, if it is.
    pub fn settling(&self) -> Option<&Settling> {
        self.settling.as_deref()
    }

    /// Whether the limit counts requests that run at once, and so needs a release.
    pub const fn is_in_flight(&self) -> bool {
        self.algorithm.is_none()
    }

    /// The allowance without a plan and without an override.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// The allowance for this value of the rule's last entry, on this plan, at this time.
    pub fn allowance_for(&self, value: &str, plan: Option<&str>, now: Timestamp) -> &Allowance {
        let special = self.overrides.get(value).filter(|special| special.holds(now));
        if let Some(special) = special {
            return &special.allowance;
        }
        plan.and_then(|plan| self.plans.get(plan)).unwrap_or(&self.allowance)
    }

    /// The allowance of each plan, in no order.
    pub fn plans(&self) -> impl Iterator<Item = (&str, &Allowance)> {
        self.plans.iter().map(|(plan, allowance)| (&**plan, allowance))
    }

    /// The overrides by value, in no order.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, &Override)> {
        self.overrides.iter().map(|(value, special)| (&**value, special))
    }

    /// Whether both limits have the same allowances for all values.
    pub(in crate::policy) fn allows_the_same(&self, other: &Self) -> bool {
        self.allowance == other.allowance
            && self.plans == other.plans
            && self.overrides == other.overrides
            && self.reserve == other.reserve
            && self.shadow.as_ref().map(|it| &it.allowance)
                == other.shadow.as_ref().map(|it| &it.allowance)
    }

    /// The shadow limit that is evaluated beside this one.
    pub fn shadow(&self) -> Option<&Variant> {
        self.shadow.as_deref()
    }

    /// The share of keys that the limit is enforced for.
    pub const fn enforce(&self) -> Share {
        self.enforce
    }

    /// Whether the limit is enforced.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// The form in which the limit was written.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The cost of a request that does not state one.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The fallback when the store gives no decision.
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How long a cached denial may be used without asking the store, if configured.
    pub const fn refund_staleness(&self) -> Option<Span> {
        self.refund_staleness
    }

    /// The options sent with each of its charges.
    pub(in crate::policy) fn options(&self) -> LimitOptions {
        let options =
            LimitOptions::default().on_store_failure(self.on_store_failure).tier(self.tier);
        let options = self.shards.map_or(options, |shards| options.shards(shards));
        self.refund_staleness.map_or(options, |longest| options.refund_staleness(longest))
    }

    /// Where the limit is decided.
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// The part of an in-flight limit that is kept for the first class, in per cent.
    pub fn reserve(&self) -> Option<u8> {
        self.reserve.as_ref().map(|reserve| reserve.percent)
    }

    /// Whether its denials protect the server and so are 503, not 429.
    pub const fn sheds(&self) -> bool {
        self.sheds.is_some()
    }

    /// Number of shards of each key.
    pub const fn shards(&self) -> Option<NonZeroU16> {
        self.shards
    }

    /// The local pre-limit of each node.
    pub fn local(&self) -> Option<&Limit> {
        self.local.as_ref().map(|(limit, _)| limit)
    }

    /// The limit's counters. If counter names include values of requests, those are counted
    /// separately.
    pub fn stats(&self) -> LimitStats {
        self.counter.stats()
    }

    /// The names of limits that this one replaces.
    pub fn replaces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.replaces.iter().map(|name| &**name)
    }
}

/// The form in which a limit was written, which decides its semantics and its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `rate_limit`: a window as in envoyproxy/ratelimit.
    Envoy {
        /// The unit of the window.
        unit: Unit,
        /// The count as written.
        requests_per_unit: u32,
    },
    /// `rate` or `limits`.
    Native,
}

/// The windows of envoyproxy/ratelimit. A month has 30 days and a year 365.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All units, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The spelling in policies, in any case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The length in seconds.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a limit is enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// The limit is enforced.
    #[default]
    Enforce,
    /// The limit is decided and counted, but denies no request.
    Shadow,
    /// The limit is not decided.
    Off,
}

impl Mode {
    /// Parses the spelling in policies.
    pub(in crate::policy) fn of(word: &str) -> Self {
        match word {
            "shadow" => Self::Shadow,
            "off" => Self::Off,
            _ => Self::Enforce,
        }
    }
}
