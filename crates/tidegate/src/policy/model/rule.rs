//! Domains and their rules.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use crate::policy::http::RequestRules;
use crate::policy::matching::level::{Level, RuleId};
use crate::policy::matching::network::Prefixes;
use crate::policy::model::limit::{Mode, PolicyLimit};
use crate::policy::model::overload::{Classes, Protection};

/// The rules of one domain.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(in crate::policy) name: Box<str>,
    pub(in crate::policy) charging: Charging,
    /// The entry whose value keeps a tenant's keys together; the first entry by default.
    pub(in crate::policy) tag: Option<Box<str>>,
    /// Overrides the mode of every limit.
    pub(in crate::policy) mode: Option<Mode>,
    pub(in crate::policy) plans: Plans,
    pub(in crate::policy) classes: Classes,
    pub(in crate::policy) protections: Vec<Protection>,
    pub(in crate::policy) requests: RequestRules,
    pub(in crate::policy) first: Level,
    pub(in crate::policy) rules: Vec<Rule>,
    pub(in crate::policy) revision: u64,
}

/// Whether the limits of one request are charged all or nothing. By default, limits in the form of
/// envoyproxy/ratelimit are charged separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charging {
    /// The default of each limit's form.
    #[default]
    AsWritten,
    /// All or none.
    Together,
    /// Each limit separately.
    Each,
}

/// A rule: one descriptor of a policy.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The keys and values of the descriptor, as in `api_key_foo.path`.
    pub(in crate::policy) path: Box<str>,
    /// The values that match, in words.
    pub(in crate::policy) wants: Box<str>,
    pub(in crate::policy) limits: Box<[PolicyLimit]>,
    pub(in crate::policy) next: Level,
    /// Replaces the value in keys, where all matching values share one state.
    pub(in crate::policy) shared_as: Option<Box<str>>,
    /// How much of an address is kept in keys; `None` if values are kept unchanged.
    pub(in crate::policy) prefixes: Option<Prefixes>,
    pub(in crate::policy) quota: bool,
    pub(in crate::policy) metric: MetricDetail,
    /// The name of this level in counters: `key`, or `key_value` if the policy has a value.
    pub(in crate::policy) step: Box<str>,
    /// The name of the rule's counters, as in `api_key_foo.path`.
    pub(in crate::policy) stat: Box<str>,
    /// Whether some level up to here puts its value into the name (`value_to_metric`).
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

/// Metadata that is returned with an answer, as written in the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Null.
    Null,
    /// A bool.
    Bool(bool),
    /// A number, as written.
    Number(Box<str>),
    /// A text.
    Text(Box<str>),
    /// A list.
    List(Vec<Self>),
    /// A map.
    Map(Vec<(Box<str>, Self)>),
}

impl Rule {
    /// The keys and values of the descriptor.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The values that match, in words.
    pub fn wants(&self) -> &str {
        &self.wants
    }

    /// Whether its limits deny a request only if those of all quota rules do (`quota_mode`).
    pub const fn is_quota(&self) -> bool {
        self.quota
    }

    /// How much of a descriptor appears in the name of its metric.
    pub const fn metric_detail(&self) -> MetricDetail {
        self.metric
    }

    /// The name of its counters, as in envoyproxy/ratelimit.
    pub fn stat(&self) -> &str {
        &self.stat
    }

    /// Metadata that is returned with an answer.
    pub const fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// The limits for requests whose last entry matches this rule.
    pub fn limits(&self) -> &[PolicyLimit] {
        &self.limits
    }
}

impl Domain {
    /// The name of the domain.
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

    /// The mode that overrides the mode of every limit.
    pub const fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// The classes of requests.
    pub const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// The concurrency limiters. The first one protects the requests whose rules name none.
    pub fn protections(&self) -> &[Protection] {
        &self.protections
    }

    /// The concurrency limiter of a request whose rules name this one; `None` if there is none, or if it is
    /// switched off.
    pub fn protection(&self, named: Option<&str>) -> Option<&Protection> {
        let protection = match named {
            Some(name) => self.protections.iter().find(|it| it.name() == name)?,
            None => self.protections.first()?,
        };
        (protection.mode() != Mode::Off && self.mode != Some(Mode::Off)).then_some(protection)
    }

    /// The rules that turn HTTP requests into descriptors.
    pub const fn requests(&self) -> &RequestRules {
        &self.requests
    }

    /// All rules in the order of the file; rules below another one come before it.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// A hash of the domain's content: the same on every node that loaded the same policy, whatever
    /// the names, comments and layout of the files.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn rule(&self, id: RuleId) -> &Rule {
        &self.rules[id as usize]
    }
}

/// Assignment of plans.
#[derive(Clone, Debug, Default)]
pub(in crate::policy) struct Plans {
    /// The key of the entry that names the plan.
    pub(in crate::policy) entry: Option<Box<str>>,
    /// The key of the entry whose value may be a member.
    pub(in crate::policy) key: Option<Box<str>>,
    /// The plan of each member.
    pub(in crate::policy) members: HashMap<Box<str>, Box<str>, RandomState>,
}
