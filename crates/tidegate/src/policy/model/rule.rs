//! What a policy says, after it was checked: domains and their rules.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use crate::policy::http::RequestRules;
use crate::policy::matching::level::{Level, RuleId};
use crate::policy::matching::network::Prefixes;
use crate::policy::model::limit::{Mode, PolicyLimit};

/// The rules of one domain.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(in crate::policy) name: Box<str>,
    pub(in crate::policy) charging: Charging,
    /// The entry whose value keeps a tenant's keys together; the first unless named.
    pub(in crate::policy) tag: Option<Box<str>>,
    /// Overrules that of every limit.
    pub(in crate::policy) mode: Option<Mode>,
    pub(in crate::policy) plans: Plans,
    pub(in crate::policy) requests: RequestRules,
    pub(in crate::policy) first: Level,
    pub(in crate::policy) rules: Vec<Rule>,
    pub(in crate::policy) revision: u64,
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
    pub(in crate::policy) path: Box<str>,
    /// Which values lead here, in words.
    pub(in crate::policy) wants: Box<str>,
    pub(in crate::policy) limits: Box<[PolicyLimit]>,
    pub(in crate::policy) next: Level,
    /// What is kept instead of the value, where all values that match share one budget.
    pub(in crate::policy) shared_as: Option<Box<str>>,
    /// What is kept of an address; `None` if values are kept as they are.
    pub(in crate::policy) prefixes: Option<Prefixes>,
    pub(in crate::policy) quota: bool,
    pub(in crate::policy) metric: MetricDetail,
    /// What counts of this level are called: `key`, or `key_value` if the policy names one.
    pub(in crate::policy) step: Box<str>,
    /// The steps that lead here, as in `api_key_foo.path`.
    pub(in crate::policy) stat: Box<str>,
    /// Whether some level on the way asks for its value in the name (`value_to_metric`).
    pub(in crate::policy) varies: bool,
    pub(in crate::policy) metadata: Option<Metadata>,
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

    pub(crate) fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id as usize]
    }
}

/// Who is on which plan.
#[derive(Clone, Debug, Default)]
pub(in crate::policy) struct Plans {
    /// The key of the entry that names the plan.
    pub(in crate::policy) entry: Option<Box<str>>,
    /// The key of the entry whose value may be a member.
    pub(in crate::policy) key: Option<Box<str>>,
    /// The plan of a value.
    pub(in crate::policy) members: HashMap<Box<str>, Box<str>, RandomState>,
}
