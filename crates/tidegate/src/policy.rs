//! Policies: one file that describes every limit.

mod decide;
mod document;
mod files;
mod http;
pub mod language;
mod load;
mod matching;
mod model;
#[cfg(feature = "watch")]
mod watch;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tidegate_core::Timestamp;

use self::document::Document;
use self::document::finding::{Finding, Findings, Location};
use crate::clock::Clock;

pub use self::decide::control::{
    ControlError, Controls, MAX_CONTROLS, MAX_OVERRIDE, OtherNumbers, Overruling, Switch,
};
#[cfg(feature = "http")]
pub use self::decide::http::HttpOptions;
pub use self::decide::inline::InlineLimit;
pub use self::decide::leases::{InvalidLeases, Leases};
pub use self::decide::limiter::{CheckError, PolicyLimiter};
pub use self::decide::local_override::{LocalOverride, LocalOverrides, LocallyDecided};
pub use self::decide::shadow::{Agreement, Variant};
pub use self::decide::stats::{LimitStats, MAX_DOMAINS, MAX_NAMES, OVERFLOW};
pub use self::document::nearest::nearest;
pub use self::document::source::{Revision, Source, SourceError, Texts};
pub use self::files::LoadError;
pub use self::http::{
    Described, HttpRequest, MAX_DESCRIBED, RequestError, RequestRules, RequestTarget, TargetError,
    normal_host,
};
#[cfg(feature = "http")]
pub use self::http::{HeaderTexts, api_key, client_ip, header_value, peer};
pub(crate) use self::matching::level::RuleId;
pub use self::matching::resolve::Match;
pub use self::model::allowance::{Allowance, CalendarQuota, in_words, length_in_words};
pub use self::model::calendar::{Calendar, CalendarUnit, Period, UnknownZone, Weekday};
pub use self::model::descriptor::{
    Descriptor, Entry, Hits, MAX_DESCRIPTORS, Request, RequestLimit,
};
pub use self::model::leaf::{Leaf, LeafValue, Step, leaves};
pub use self::model::limit::{Form, Mode, Override, PolicyLimit, Unit};
pub use self::model::rule::{Charging, Domain, Metadata, MetricDetail, Rule};
pub use self::model::share::{EnforceSecret, Share};
#[cfg(feature = "watch")]
pub use self::watch::{Refusal, Update, Watch, WatchBuilder};
pub use crate::store::{OnStoreFailure, Tier};

/// Every limit of every domain, checked and ready to be asked.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    domains: HashMap<Box<str>, Arc<Domain>, RandomState>,
}

/// Whether several files may describe one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// No: most likely one of them is a copy.
    #[default]
    Refuse,
    /// Yes: their descriptors are put together.
    Allow,
}

impl Policy {
    /// Reads a policy from files, given by name and text. What is wrong is told all at once, and then
    /// there is no policy.
    pub fn load(files: &[(&str, &str)], merging: Merging) -> Loaded {
        Self::load_at(files, merging, Clock::default().now())
    }

    /// The same as of some other time, which is for what ends some day.
    pub fn load_at(files: &[(&str, &str)], merging: Merging, now: Timestamp) -> Loaded {
        let mut findings = Findings::default();
        let mut documents: Vec<Document> = Vec::new();
        for (file, text) in files {
            let (known, errors) = (documents.len(), findings.errors());
            documents.extend(Document::parse(file, text, &mut findings));
            if documents.len() == known && findings.errors() == errors {
                let why = "expected a `domain`, found nothing";
                findings.push(Finding::error(&Arc::from(*file), Location::START, why));
            }
        }
        let policy = load::load(&documents, merging, now, &mut findings);
        let policy = (findings.errors() == 0).then_some(policy);
        let errors = findings.errors();
        findings.sort(files);
        Loaded { policy, errors, findings: findings.to_string() }
    }

    /// Warns of limits whose `enforce` covers a share of the keys by a public hash: one line, or
    /// nothing. For a program that has no [`EnforceSecret`].
    pub fn predictable_shares(&self) -> Option<String> {
        let mut ids: Vec<&str> = self
            .limits()
            .filter(|limit| limit.enforce() != Share::ALL)
            .map(PolicyLimit::id)
            .collect();
        ids.sort_unstable();
        let first = ids.first()?;
        let others = match ids.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        Some(format!(
            "warning: `enforce` of {first:?}{others} covers keys by a predictable hash: clients can choose \
             keys that are not enforced; set `policy.enforce_secret_file`"
        ))
    }

    /// Limits that some listeners of the daemon do not apply, and why, one line each.
    pub fn notes(&self) -> Vec<String> {
        let note = |limit: &PolicyLimit| {
            limit.is_in_flight().then(|| {
                format!(
                    "note: {:?} is in_flight: Envoy's rate limit service, /v1/auth, /v1/check and \
                     TG.CHECK cannot release it, and skip it; use /v1/acquire, TG.ACQUIRE or the \
                     library",
                    limit.id()
                )
            })
        };
        let mut notes: Vec<String> = self.limits().filter_map(note).collect();
        notes.sort_unstable();
        notes
    }

    /// All domains, in no order.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values().map(|domain| &**domain)
    }

    /// A domain by its name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name).map(|domain| &**domain)
    }

    fn shared_domain(&self, name: &str) -> Option<Arc<Domain>> {
        self.domains.get(name).map(Arc::clone)
    }

    /// The same, with what `old` has counted of limits that are still there.
    fn continuing(mut self, old: &Self) -> Self {
        let counted: HashMap<&str, &PolicyLimit> =
            old.limits().map(|limit| (limit.id(), limit)).collect();
        if counted.is_empty() {
            return self;
        }
        for domain in self.domains.values_mut() {
            let rules = &mut Arc::make_mut(domain).rules;
            for limit in rules.iter_mut().flat_map(|rule| &mut rule.limits) {
                let Some(old) = counted.get(limit.id()) else { continue };
                limit.counter = Arc::clone(&old.counter);
                let (Some(new), Some(old)) = (&limit.shadow, &old.shadow) else { continue };
                let (allowance, counts) = (new.allowance.clone(), Arc::clone(&old.counts));
                limit.shadow = Some(Arc::new(Variant { allowance, counts }));
            }
        }
        self
    }

    /// Whether some limit allows another amount than in `old`, or is not there.
    fn has_other_numbers(&self, old: &Self) -> bool {
        let old: HashMap<&str, &PolicyLimit> =
            old.limits().map(|limit| (limit.id(), limit)).collect();
        self.limits()
            .any(|limit| !old.get(limit.id()).is_some_and(|old| old.allows_the_same(limit)))
    }

    fn limits(&self) -> impl Iterator<Item = &PolicyLimit> {
        self.domains().flat_map(Domain::rules).flat_map(Rule::limits)
    }
}

/// A policy, if it could be read, and what is to be said about its files.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// None if there was an error.
    pub policy: Option<Policy>,
    /// How many errors there were.
    pub errors: usize,
    /// What is to be said, errors and warnings: one `file:line:column: message` per line.
    pub findings: String,
}
