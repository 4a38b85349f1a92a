//! One limit of a policy: what it allows to whom, and whether its verdict counts.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tidegate_core::{AlgorithmName, Limit, Span, Timestamp};

use crate::key::Scope;
use crate::policy::decide::shadow::Variant;
use crate::policy::decide::stats::{Counter, LimitStats};
use crate::policy::model::allowance::Allowance;
use crate::policy::model::share::Share;
use crate::store::{LimitOptions, OnStoreFailure, Tier};

/// A limit of a rule.
#[derive(Clone, Debug)]
pub struct PolicyLimit {
    /// Domain, path and name: which limit it is, whatever its numbers.
    pub(in crate::policy) id: Arc<str>,
    pub(in crate::policy) name: Option<Box<str>>,
    pub(in crate::policy) algorithm: AlgorithmName,
    pub(in crate::policy) allowance: Allowance,
    /// By the name of the plan.
    pub(in crate::policy) plans: HashMap<Box<str>, Allowance, RandomState>,
    /// By the value of the rule's entry.
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
    /// What each node lets through to it.
    pub(in crate::policy) local: Option<(Limit, Scope)>,
    pub(in crate::policy) replaces: Box<[Box<str>]>,
    /// What it has counted, whatever its numbers were.
    pub(in crate::policy) counter: Arc<Counter>,
}

/// Other numbers for one value.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    pub(in crate::policy) allowance: Allowance,
    pub(in crate::policy) until: Option<Timestamp>,
    pub(in crate::policy) reason: Option<Box<str>>,
}

impl Override {
    /// How much is allowed instead.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// When it ends.
    pub const fn until(&self) -> Option<Timestamp> {
        self.until
    }

    /// Why it was made.
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Whether it counts at `now`.
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

impl PolicyLimit {
    /// Domain, path and name: which limit it is, whatever its numbers.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What people call it.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// How it counts.
    pub const fn algorithm(&self) -> AlgorithmName {
        self.algorithm
    }

    /// How much it allows to whoever has no plan and no override.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
    }

    /// How much it allows to this value of its rule's entry, on this plan, at this time.
    pub fn allowance_for(&self, value: &str, plan: Option<&str>, now: Timestamp) -> &Allowance {
        let special = self.overrides.get(value).filter(|special| special.holds(now));
        if let Some(special) = special {
            return &special.allowance;
        }
        plan.and_then(|plan| self.plans.get(plan)).unwrap_or(&self.allowance)
    }

    /// What each plan allows, in no order.
    pub fn plans(&self) -> impl Iterator<Item = (&str, &Allowance)> {
        self.plans.iter().map(|(plan, allowance)| (&**plan, allowance))
    }

    /// What single values are allowed, in no order.
    pub fn overrides(&self) -> impl Iterator<Item = (&str, &Override)> {
        self.overrides.iter().map(|(value, special)| (&**value, special))
    }

    /// Whether everybody is allowed the same by both.
    pub(in crate::policy) fn allows_the_same(&self, other: &Self) -> bool {
        self.allowance == other.allowance
            && self.plans == other.plans
            && self.overrides == other.overrides
            && self.shadow.as_ref().map(|it| &it.allowance)
                == other.shadow.as_ref().map(|it| &it.allowance)
    }

    /// The limit that is tried beside this one.
    pub fn shadow(&self) -> Option<&Variant> {
        self.shadow.as_deref()
    }

    /// The share of keys that it holds back.
    pub const fn enforce(&self) -> Share {
        self.enforce
    }

    /// Whether its verdict counts.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// How it was written.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// What one request costs, unless the request says.
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// What is answered when the store gives no decision.
    pub const fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// For how long a denial may be repeated without asking the store, if it says.
    pub const fn refund_staleness(&self) -> Option<Span> {
        self.refund_staleness
    }

    /// What goes with each of its charges.
    pub(in crate::policy) fn options(&self) -> LimitOptions {
        let options =
            LimitOptions::default().on_store_failure(self.on_store_failure).tier(self.tier);
        let options = self.shards.map_or(options, |shards| options.shards(shards));
        self.refund_staleness.map_or(options, |longest| options.refund_staleness(longest))
    }

    /// How close to the store it is decided.
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// Into how many keys each of its keys is divided.
    pub const fn shards(&self) -> Option<NonZeroU16> {
        self.shards
    }

    /// The bucket that each node has in front of it.
    pub fn local(&self) -> Option<&Limit> {
        self.local.as_ref().map(|(limit, _)| limit)
    }

    /// What it has counted. Where names hold values of requests, it is counted under those.
    pub fn stats(&self) -> LimitStats {
        self.counter.stats()
    }

    /// The names of limits that do not apply where this one does.
    pub fn replaces(&self) -> impl ExactSizeIterator<Item = &str> {
        self.replaces.iter().map(|name| &**name)
    }
}

/// How a limit was written, which decides what it means (and what its users are told).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `rate_limit`: a window of theirs.
    Envoy {
        /// What they call the length of the window.
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
    /// One second.
    Second,
    /// Sixty of them.
    Minute,
    /// Sixty minutes.
    Hour,
    /// Twenty-four hours.
    Day,
    /// Seven days.
    Week,
    /// Thirty days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// As policies spell it, in any case.
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

    /// How long it is.
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

/// Whether a limit's verdict counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It is decided and counted, but nobody is held back.
    Shadow,
    /// It is not even decided.
    Off,
}

impl Mode {
    /// As policies spell it.
    pub(in crate::policy) fn of(word: &str) -> Self {
        match word {
            "shadow" => Self::Shadow,
            "off" => Self::Off,
            _ => Self::Enforce,
        }
    }
}
