//! Policies: all limits of a service in one YAML file.
//!
//! ```
//! use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
//!
//! let text = "domain: api\ndescriptors:\n  - {key: user, rate: 100/min}";
//! let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
//! let limiter = PolicyLimiter::in_memory(loaded.policy.ok_or(loaded.findings)?)?;
//!
//! let entries = [Entry { key: "user", value: "alice" }];
//! let descriptors = [Descriptor::new(&entries)];
//! let request = Request { domain: "api", descriptors: &descriptors, hits: None };
//! assert_eq!(limiter.check_now(&request)?.remaining(), 99);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod decide;
mod document;
mod files;
mod http;
#[doc(hidden)]
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

#[doc(hidden)]
pub use self::decide::acquire::Granted;
#[doc(hidden)]
pub use self::decide::control::local_override::{LocalOverride, LocalOverrides, LocallyDecided};
#[doc(hidden)]
pub use self::decide::control::{
    ControlError, Controls, MAX_CONTROLS, MAX_OVERRIDE, OtherNumbers, Overruling, Switch,
};
#[cfg(feature = "http")]
#[doc(hidden)]
pub use self::decide::http::AdmittedHttp;
#[cfg(feature = "http")]
pub use self::decide::http::HttpOptions;
#[doc(hidden)]
pub use self::decide::inline::InlineLimit;
#[doc(hidden)]
pub use self::decide::settle::SettleStats;
pub use self::decide::settle::{RequestOutcome, Settled, Settlement};
#[doc(hidden)]
pub use self::decide::stats::shadow::{Agreement, Variant};
#[doc(hidden)]
pub use self::decide::stats::{LimitStats, MAX_DOMAINS, MAX_NAMES, OVERFLOW};
#[doc(hidden)]
pub use self::decide::token::leases::{InvalidLeases, Leases};
#[doc(hidden)]
pub use self::decide::token::reservations::{InvalidReservations, Reservations};
pub use self::decide::{check_error::CheckError, limiter::PolicyLimiter};
#[doc(hidden)]
pub use self::document::nearest::nearest;
#[doc(hidden)]
pub use self::document::source::{Revision, Texts};
#[doc(hidden)]
pub use self::document::source::{Source, SourceError};
pub use self::files::LoadError;
#[cfg(feature = "http")]
#[doc(hidden)]
pub use self::http::HeaderTexts;
pub use self::http::RequestError;
#[doc(hidden)]
pub use self::http::{
    Described, HttpRequest, MAX_DESCRIBED, RequestRules, RequestTarget, TargetError, UNPROTECTED,
    normal_host,
};
#[cfg(feature = "http")]
#[doc(hidden)]
pub use self::http::{api_key, client_ip, header_value, peer};
pub(crate) use self::matching::level::RuleId;
#[doc(hidden)]
pub use self::matching::resolve::Match;
#[doc(hidden)]
pub use self::model::allowance::{Allowance, CalendarQuota};
#[doc(hidden)]
pub use self::model::calendar::{Calendar, CalendarUnit, Period, UnknownZone, Weekday};
#[doc(hidden)]
pub use self::model::descriptor::RequestLimit;
pub use self::model::descriptor::{Descriptor, Entry, Hits, MAX_DESCRIPTORS, Request};
#[doc(hidden)]
pub use self::model::in_words::{in_words, length_in_words};
#[doc(hidden)]
pub use self::model::leaf::{Leaf, LeafValue, Step, leaves};
#[doc(hidden)]
pub use self::model::limit::{Form, Mode, Override, PolicyLimit, Unit};
#[doc(hidden)]
pub use self::model::overload::{Classes, Guard, HoldUntil, Protection};
#[doc(hidden)]
pub use self::model::rule::{Charging, Domain, Metadata, MetricDetail, Rule};
#[doc(hidden)]
pub use self::model::settling::{ActualSource, ByStatus, Settling, Statuses};
#[doc(hidden)]
pub use self::model::share::{EnforceSecret, Share};
#[cfg(feature = "watch")]
pub use self::watch::{Refusal, Watch};
#[cfg(feature = "watch")]
#[doc(hidden)]
pub use self::watch::{Update, WatchBuilder};
#[doc(hidden)]
pub use crate::store::{OnStoreFailure, Tier};

/// The limits of all domains, checked when they were loaded.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    domains: HashMap<Box<str>, Arc<Domain>, RandomState>,
}

/// Whether several files may define one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merging {
    /// Two files with one domain are an error: most likely, one is a copy of the other.
    #[default]
    Refuse,
    /// The descriptors of all files of a domain are merged.
    Allow,
}

impl Policy {
    /// Loads a policy from files, each given by name and text. The result lists all errors; with an error
    /// there is no policy.
    pub fn load(files: &[(&str, &str)], merging: Merging) -> Loaded {
        Self::load_at(files, merging, Clock::default().now())
    }

    /// [`Policy::load`] as of the time `now`, which decides whether an override with `until` has expired.
    #[doc(hidden)]
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

    /// A warning, in one line, if a limit's `enforce` covers a percentage of the keys: without an
    /// [`EnforceSecret`], clients can compute which keys are enforced.
    #[doc(hidden)]
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
    #[doc(hidden)]
    pub fn notes(&self) -> Vec<String> {
        let unreleased = |limit: &PolicyLimit| {
            limit.is_in_flight().then(|| {
                format!(
                    "note: {:?} is in_flight: Envoy's rate limit service, /v1/auth, /v1/check and \
                     TG.CHECK cannot release it, and skip it; use /v1/acquire, TG.ACQUIRE or the \
                     library",
                    limit.id()
                )
            })
        };
        let unsettled = |limit: &PolicyLimit| {
            limit.settling().map(|settling| {
                format!(
                    "note: {:?} {settling}: Envoy's rate limit service and /v1/auth cannot settle it, \
                     and count every request in full; use /v1/check with /v1/settle, TG.CHECK with \
                     TG.SETTLE, or the library",
                    limit.id()
                )
            })
        };
        let chosen_by_envoy = |limit: &PolicyLimit| {
            limit.sheds().then(|| {
                format!(
                    "note: {:?} denies with status 503: Envoy's rate limit service answers OVER_LIMIT, \
                     and Envoy sends the status of its `rate_limited_status`, 429 unless set",
                    limit.id()
                )
            })
        };
        let mut notes: Vec<String> = self.limits().filter_map(unreleased).collect();
        notes.extend(self.limits().filter_map(unsettled));
        notes.extend(self.limits().filter_map(chosen_by_envoy));
        notes.extend(self.domains().filter(|it| !it.protections().is_empty()).map(|domain| {
            format!(
                "note: `protect` of {:?} is applied by the tower layer and the gateway; the other \
                 listeners of the daemon do not apply it",
                domain.name()
            )
        }));
        notes.sort_unstable();
        notes
    }

    /// All domains, in no particular order.
    #[doc(hidden)]
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values().map(|domain| &**domain)
    }

    /// A domain by its name.
    #[doc(hidden)]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name).map(|domain| &**domain)
    }

    fn shared_domain(&self, name: &str) -> Option<Arc<Domain>> {
        self.domains.get(name).map(Arc::clone)
    }

    /// This policy with the counters and concurrency limiters that `old` has for the same limits.
    fn continuing(mut self, old: &Self) -> Self {
        let counted: HashMap<&str, &PolicyLimit> =
            old.limits().map(|limit| (limit.id(), limit)).collect();
        for domain in self.domains.values_mut() {
            let old = old.domain(&domain.name);
            if counted.is_empty() && old.is_none_or(|old| old.protections.is_empty()) {
                continue;
            }
            let domain = Arc::make_mut(domain);
            for protection in &mut domain.protections {
                let mut old = old.into_iter().flat_map(Domain::protections);
                if let Some(old) = old.find(|old| old.name() == protection.name()) {
                    protection.continuing(old);
                }
            }
            let rules = &mut domain.rules;
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

    /// Whether a limit is new or has other numbers than in `old`.
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

/// The result of loading a policy.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The policy; `None` if there was an error.
    pub policy: Option<Policy>,
    /// Number of errors.
    pub errors: usize,
    /// Errors and warnings, one `file:line:column: message` per line.
    pub findings: String,
}
