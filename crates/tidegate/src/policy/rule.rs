//! What a policy says, after it was checked: domains, rules, limits.

use std::fmt;

use tidegate_core::Limit;

use super::level::{Level, RuleId};
use crate::key::Scope;

/// The rules of one domain.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(super) name: Box<str>,
    pub(super) charging: Charging,
    /// The entry whose value keeps a tenant's keys together; the first unless named.
    pub(super) tag: Option<Box<str>>,
    pub(super) first: Level,
    pub(super) rules: Vec<Rule>,
}

/// Whether the limits of one request are charged all or nothing. Limits in the form of
/// envoyproxy/ratelimit are charged each alone unless the domain says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charging {
    /// As each limit is written.
    #[default]
    AsWritten,
    /// All or none.
    Together,
    /// Each alone.
    Each,
}

/// One descriptor of a policy.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The keys and values that lead here, as in `api_key_foo.path`.
    pub(super) path: Box<str>,
    pub(super) limits: Box<[PolicyLimit]>,
    pub(super) next: Level,
    /// What is kept instead of the value, where all values that match share one budget.
    pub(super) shared_as: Option<Box<str>>,
    pub(super) quota: bool,
    pub(super) metric: MetricDetail,
    pub(super) metadata: Option<Metadata>,
}

/// How much of a descriptor appears in the name of its metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MetricDetail {
    /// The keys, and the values that the policy names.
    #[default]
    Names,
    /// This level's value as well (`value_to_metric`).
    Value,
    /// Every value (`detailed_metric`).
    Everything,
}

/// What is handed on with an answer, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Nothing.
    Null,
    /// A text or a number.
    Scalar(Box<str>),
    /// Several.
    List(Vec<Self>),
    /// Several, by name.
    Map(Vec<(Box<str>, Self)>),
}

impl Rule {
    /// The keys and values that lead here.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether its limits deny only if those of all such rules do (`quota_mode`).
    pub const fn is_quota(&self) -> bool {
        self.quota
    }

    /// How much of a descriptor appears in the name of its metric.
    pub const fn metric_detail(&self) -> MetricDetail {
        self.metric
    }

    /// What is handed on with an answer.
    pub const fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// The limits that apply to whoever comes here with its last entry.
    pub fn limits(&self) -> &[PolicyLimit] {
        &self.limits
    }
}

/// A limit of a rule.
#[derive(Clone, Debug)]
pub struct PolicyLimit {
    /// Domain, path and name: which limit it is, whatever its numbers.
    pub(super) id: Box<str>,
    pub(super) name: Option<Box<str>>,
    pub(super) allowance: Allowance,
    pub(super) form: Form,
    pub(super) cost: u64,
    pub(super) mode: Mode,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) tier: Tier,
    pub(super) replaces: Box<[Box<str>]>,
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

    /// How much it allows.
    pub const fn allowance(&self) -> &Allowance {
        &self.allowance
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

    /// How close to the store it is decided.
    pub const fn tier(&self) -> Tier {
        self.tier
    }

    /// The names of limits that do not apply where this one does.
    pub fn replaces(&self) -> impl Iterator<Item = &str> {
        self.replaces.iter().map(|name| &**name)
    }
}

/// How much a limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// Everything, uncounted.
    Unlimited,
    /// So much, with the state kept under this.
    Limited {
        /// By which numbers.
        limit: Limit,
        /// The limit's part of its keys.
        scope: Scope,
    },
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// It is decided and counted, but nobody is held back.
    Shadow,
    /// It is not even decided.
    Off,
}

/// What is answered when the store gives no decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreFailure {
    /// Go ahead.
    Allow,
    /// Stay out.
    Deny,
    /// What this node's share of the limit says.
    #[default]
    Local,
}

/// How close to the store decisions are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// In it.
    #[default]
    Exact,
    /// From units taken ahead.
    Leased,
}

impl Domain {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether limits are charged together.
    pub const fn charging(&self) -> Charging {
        self.charging
    }

    /// The key of the entry that keeps a tenant's keys together.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// All rules, in the order of the file, those below a rule before it.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    pub(super) fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id as usize]
    }
}
