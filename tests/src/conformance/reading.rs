//! Reads the files of conformance cases.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tidegate::policy::Unit;
use tidegate_core::Timestamp;

use super::{Action, CaseRequest, DescriptorInput, Limiting, Outcome, Sums};

/// One case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The requirement, as a sentence.
    pub name: String,
    /// The policy, by its name in the file or as text.
    policy: Option<String>,
    /// Several policy files instead, by names or as texts.
    #[serde(default)]
    policies: Vec<String>,
    /// Whether the files may share a domain.
    #[serde(default)]
    pub merge: bool,
    /// The domain of all steps that have none; `api` unless set.
    #[serde(default)]
    pub domain: Option<String>,
    /// The start of the case.
    #[serde(default)]
    pub at: Option<String>,
    /// The steps.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The errors in files that cannot be used.
    #[serde(default)]
    pub rejected: Vec<Rejected>,
    /// The properties of rules that only the library reports.
    #[serde(default)]
    pub rules: Vec<ExpectedRule>,
    /// Names and texts of the policy files.
    #[serde(skip)]
    pub files: Vec<(String, String)>,
}

/// One step of a case.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Time since the previous step.
    pub(super) advance: Option<String>,
    /// The time of the step, instead of `advance`.
    pub(super) at: Option<String>,
    #[serde(default, rename = "do")]
    pub(super) action: Action,
    domain: Option<String>,
    /// The descriptors.
    #[serde(default)]
    ask: Vec<Descriptor>,
    #[serde(default)]
    hits: u64,
    /// The name of the request that acquires, releases, renews or is settled.
    holder: Option<String>,
    /// The outcome of the request that is settled.
    #[serde(default)]
    outcome: Outcome,
    pub(super) settled: Option<Sums>,
    pub(super) times: Option<u32>,
    pub(super) expect: Option<Overall>,
    pub(super) retry_after: Option<Seconds>,
    pub(super) statuses: Option<Vec<Expected>>,
}

/// A descriptor: only entries, or with further fields.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Descriptor {
    Entries(Vec<EntryText>),
    Full(FullDescriptor),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FullDescriptor {
    entries: Vec<EntryText>,
    hits: Option<i64>,
    limit: Option<RequestLimit>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLimit {
    requests_per_unit: u32,
    unit: String,
}

/// `{key: value}` or `[key, value]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum EntryText {
    Map(BTreeMap<String, String>),
    Pair(String, String),
}

/// The expected answer to a request as a whole.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Overall {
    /// A decision.
    Code(Code),
    /// An error instead of a decision.
    Error {
        /// A part of the error text.
        error: String,
    },
}

/// A verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// Within the limit.
    Ok,
    /// Over it.
    Over,
}

/// The expected status of one descriptor.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Whether the descriptor is over its limit.
    pub code: Code,
    /// The binding limit.
    pub limit: Option<ExpectedLimit>,
    /// The remaining units.
    pub remaining: Option<u64>,
    /// Whole seconds until a reset.
    pub reset: Option<u64>,
    /// Whole seconds, or `never`.
    pub retry_after: Option<Seconds>,
    /// The delay.
    pub delay: Option<String>,
}

/// A number or a word.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Seconds {
    /// A number of seconds.
    Number(u64),
    /// `never`.
    Word(String),
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// A limit as a case expects it: `nothing`, `unlimited`, or numbers.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum ExpectedLimit {
    /// `nothing` or `unlimited`.
    Word(String),
    /// Fields that are absent are not compared.
    Numbers {
        /// The name of the limit.
        name: Option<String>,
        /// The most units that can be taken at once.
        capacity: Option<u64>,
        /// The same number in the form of envoyproxy/ratelimit.
        requests_per_unit: Option<u64>,
        /// Its unit.
        unit: Option<String>,
    },
}

impl ExpectedLimit {
    pub(super) fn agrees(&self, answer: &Limiting) -> bool {
        match (self, answer) {
            (Self::Word(word), Limiting::Nothing) => word == "nothing",
            (Self::Word(word), Limiting::Unlimited) => word == "unlimited",
            (
                Self::Numbers { name, capacity, requests_per_unit, unit },
                Limiting::Numbers { name: told_name, capacity: told_capacity, unit: told_unit },
            ) => {
                name.as_ref().is_none_or(|name| name == told_name)
                    && capacity.or(*requests_per_unit).is_none_or(|it| it == *told_capacity)
                    && unit.as_ref().is_none_or(|unit| Some(unit_of(unit)) == *told_unit)
            }
            (
                Self::Numbers { name, capacity, requests_per_unit, .. },
                Limiting::Ours { name: told_name, capacity: told_capacity },
            ) => {
                name.as_ref().is_none_or(|name| name.is_empty() || name == told_name)
                    && !told_name.is_empty()
                    && capacity.or(*requests_per_unit).is_none_or(|it| it == *told_capacity)
            }
            _ => false,
        }
    }
}

/// The expected error in a file that cannot be used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rejected {
    /// `line:column`.
    pub at: String,
    /// A part of the message.
    pub says: String,
}

/// The expected properties of a rule in the library.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRule {
    /// Its path.
    pub rule: String,
    /// `names`, `value` or `everything`.
    pub metric: Option<String>,
    /// Its metadata, in one line.
    pub metadata: Option<String>,
    /// For the shadow of the first limit: how often both agreed, how often it would have denied,
    /// and how often it would have allowed.
    pub shadow: Option<[u64; 3]>,
}

/// A file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    policies: BTreeMap<String, String>,
    cases: Vec<Case>,
}

/// The cases of one file, each with its policies.
pub(super) fn file(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).expect("a file of cases");
    let read: Result<File, _> = serde_saphyr::from_str(&text);
    let File { policies, mut cases } =
        read.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for case in &mut cases {
        let named = |written: &String| policies.get(written).unwrap_or(written).clone();
        let texts = case.policy.iter().chain(&case.policies).map(named);
        let files = texts.enumerate().map(|(number, text)| (format!("{number}.yaml"), text));
        case.files = files.collect();
        assert!(!case.files.is_empty(), "{}: {} has no policy", path.display(), case.name);
        let asserts = case.steps.len() + case.rejected.len() + case.rules.len();
        assert!(asserts > 0, "{}: {} shows nothing", path.display(), case.name);
    }
    cases
}

impl Step {
    pub(super) const fn descriptors(&self) -> usize {
        self.ask.len()
    }

    pub(super) fn question(&self, case: &Case, now: Timestamp) -> CaseRequest {
        let domain = self.domain.as_ref().or(case.domain.as_ref());
        CaseRequest {
            now,
            action: self.action,
            domain: domain.cloned().unwrap_or_else(|| "api".into()),
            descriptors: self.ask.iter().map(Descriptor::side).collect(),
            hits: self.hits,
            holder: self.holder.clone(),
            outcome: self.outcome.clone(),
        }
    }
}

impl Descriptor {
    fn side(&self) -> DescriptorInput {
        let (entries, hits, limit) = match self {
            Self::Entries(entries) => (entries, None, None),
            Self::Full(full) => (&full.entries, full.hits, full.limit.as_ref()),
        };
        let pairs = entries.iter().flat_map(|entry| match entry {
            EntryText::Map(map) => map.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            EntryText::Pair(key, value) => vec![(key.clone(), value.clone())],
        });
        let limit = limit.map(|limit| (limit.requests_per_unit, unit_of(&limit.unit)));
        DescriptorInput { entries: pairs.collect(), hits, limit }
    }
}

fn unit_of(text: &str) -> Unit {
    let unit = Unit::ALL.into_iter().find(|unit| unit.as_str() == text);
    unit.unwrap_or_else(|| panic!("{text} is no unit"))
}
