//! What a policy says, after it was checked: domains and their rules.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use super::level::{Level, RuleId};
use super::limit::{Mode, PolicyLimit};
use super::network::Prefixes;
use super::request::RequestRules;

/// The rules of one domain.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(super) name: Box<str>,
    pub(super) charging: Charging,
    /// The entry whose value keeps a tenant's keys together; the first unless named.
    pub(super) tag: Option<Box<str>>,
    /// Overrules that of every limit.
    pub(super) mode: Option<Mode>,
    pub(super) plans: Plans,
    pub(super) requests: RequestRules,
    pub(super) first: Level,
    pub(super) rules: Vec<Rule>,
    pub(super) revision: u64,
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
    /// Which values lead here, in words.
    pub(super) wants: Box<str>,
    pub(super) limits: Box<[PolicyLimit]>,
    pub(super) next: Level,
    /// What is kept instead of the value, where all values that match share one budget.
    pub(super) shared_as: Option<Box<str>>,
    /// What is kept of an address; `None` if values are kept as they are.
    pub(super) prefixes: Option<Prefixes>,
    pub(super) quota: bool,
    pub(super) metric: MetricDetail,
    /// What counts of this level are called: `key`, or `key_value` if the policy names one.
    pub(super) step: Box<str>,
    /// The steps that lead here, as in `api_key_foo.path`.
    pub(super) stat: Box<str>,
    /// Whether some level on the way asks for its value in the name (`value_to_metric`).
    pub(super) varies: bool,
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
    /// Yes or no.
    Bool(bool),
    /// As it was written.
    Number(Box<str>),
    /// Words.
    Text(Box<str>),
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

    /// Which values lead here, in words.
    pub fn wants(&self) -> &str {
        &self.wants
    }

    /// Whether its limits deny only if those of all such rules do (`quota_mode`).
    pub const fn is_quota(&self) -> bool {
        self.quota
    }

    /// How much of a descriptor appears in the name of its metric.
    pub const fn metric_detail(&self) -> MetricDetail {
        self.metric
    }

    /// What its counts are called, as envoyproxy/ratelimit calls them.
    pub fn stat(&self) -> &str {
        &self.stat
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

    /// What overrules the mode of every limit.
    pub const fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// How HTTP requests become descriptors.
    pub const fn requests(&self) -> &RequestRules {
        &self.requests
    }

    /// All rules, in the order of the file, those below a rule before it.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// A hash of what its documents say: the same on every node that loaded the same policy, whatever
    /// the names of the files, their comments and their layout.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id as usize]
    }
}

/// Who is on which plan.
#[derive(Clone, Debug, Default)]
pub(super) struct Plans {
    /// The key of the entry that names the plan.
    pub(super) entry: Option<Box<str>>,
    /// The key of the entry whose value may be a member.
    pub(super) key: Option<Box<str>>,
    /// The plan of a value.
    pub(super) members: HashMap<Box<str>, Box<str>, RandomState>,
}
