//! The limits of a descriptor: `rate_limit` (envoyproxy/ratelimit), `rate` or `in_flight` (Tidegate),
//! or several (`limits`).

mod block;
mod envoy_form;
pub(super) mod hot;
mod in_flight;
pub(super) mod numbers;
mod settling;
mod variants;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tidegate_core::{AlgorithmName, Rate, Span};

use super::advice::advise;
use super::fields::Fields;
use super::{Trail, escaped};
use crate::policy::decide::stats::retry_spread::RetrySpread;
use crate::policy::document::Node;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::language;
use crate::policy::load::limits::numbers::Numbers;
use crate::policy::load::limits::variants::{VariedLimit, overrides, plans, shadow};
use crate::policy::model::allowance::Allowance;
use crate::policy::model::limit::{Form, Mode, PolicyLimit};
use crate::policy::model::share::Share;
use crate::store::{MAX_TOGETHER, OnStoreFailure, Tier};
#[cfg(feature = "http")]
use crate::verdict::KnownFields;

/// Fields that make a descriptor itself a limit.
const QUANTITIES: &[&str] = &["rate", "requests", "per", "in_flight"];

/// Defaults for limits that do not set the field themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    pub(super) algorithm: Option<AlgorithmName>,
    pub(super) cost: Option<u64>,
    pub(super) mode: Mode,
    pub(super) on_store_failure: OnStoreFailure,
    pub(super) refund_staleness: Option<Span>,
    pub(super) tier: Tier,
}

impl Defaults {
    pub(super) fn read(node: &Node, findings: &mut Findings) -> Self {
        match Fields::of(node, "defaults", &language::DEFAULTS, findings) {
            Some(fields) => Self::default().overlaid(&fields, findings),
            None => Self::default(),
        }
    }

    pub(super) fn overlaid(self, fields: &Fields<'_>, findings: &mut Findings) -> Self {
        let mode = fields.choice("mode", findings).map_or(self.mode, Mode::of);
        let on_store_failure = match fields.choice("on_store_failure", findings) {
            None => self.on_store_failure,
            Some("allow") => OnStoreFailure::Allow,
            Some("deny") => OnStoreFailure::Deny,
            Some(_) => OnStoreFailure::Local,
        };
        let tier = match fields.choice("tier", findings) {
            None => self.tier,
            Some("leased") => Tier::Leased,
            Some(_) => Tier::Exact,
        };
        let algorithm = algorithm(fields, findings).or(self.algorithm);
        let cost = fields.number("cost", findings).or(self.cost);
        let refund_staleness = refund_staleness(fields, findings).or(self.refund_staleness);
        Self { algorithm, cost, mode, on_store_failure, refund_staleness, tier }
    }
}

pub(super) fn algorithm(fields: &Fields<'_>, findings: &mut Findings) -> Option<AlgorithmName> {
    fields.choice("algorithm", findings)?.parse().ok()
}

/// A period, as in `5m`.
pub(super) fn period(text: &str) -> Option<Span> {
    format!("1/{text}").parse::<Rate>().ok().map(|rate| rate.per)
}

fn refund_staleness(fields: &Fields<'_>, findings: &mut Findings) -> Option<Span> {
    let node = fields.node("refund_staleness")?;
    let staleness = period(fields.text("refund_staleness", findings)?);
    if staleness.is_none() {
        let expected = "a period such as 1s or 200ms; 0s to ask the store each time";
        findings.push(node.mismatch(expected).at(fields.at("refund_staleness")));
    }
    staleness
}

/// Loads all limits of one descriptor.
pub(super) fn read(
    fields: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Vec<PolicyLimit> {
    let own = fields.first(QUANTITIES).map(|(_, node)| node);
    let (envoy, list) = (fields.node("rate_limit"), fields.node("limits"));
    let given = [own, envoy, list].into_iter().flatten().count();
    if let (true, Some(node)) = (given > 1, list.or(envoy)) {
        let why = "a descriptor has one of `rate`, `in_flight`, `limits` and `rate_limit`";
        findings.push(node.error(why).at(trail.path.clone()));
        return Vec::new();
    }
    if let (Some(node), true) = (fields.node("shadow_mode"), envoy.is_none() && given > 0) {
        let why = "`shadow_mode` belongs to `rate_limit`; use `mode: shadow` here";
        findings.push(node.error(why).at(fields.at("shadow_mode")));
    }
    if let Some(node) = envoy {
        return envoy_form::read(node, fields, trail, defaults, findings).into_iter().collect();
    }
    if own.is_some() {
        return native(fields, trail, defaults, findings).into_iter().collect();
    }
    let names: Vec<&str> = language::LIMIT.all().map(|field| field.name).collect();
    if let Some((field, node)) = fields.first(&names) {
        let why = match list {
            Some(_) => {
                format!("`{field}` beside `limits` has no meaning: write it in each of them")
            }
            None if matches!(field, "ttl" | "reserve") => format!("`{field}` needs `in_flight`"),
            None => format!("`{field}` needs a `rate` or `in_flight` beside it"),
        };
        findings.push(node.error(why).at(fields.at(field)));
    }
    if list.is_some() {
        return named_limits(fields, trail, defaults, findings);
    }
    Vec::new()
}

/// Loads `limits`: named limits that are charged together.
fn named_limits(
    fields: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Vec<PolicyLimit> {
    let mut limits: Vec<PolicyLimit> = Vec::new();
    let list = fields.list("limits", findings);
    if let Some(node) = list.get(MAX_TOGETHER) {
        let why = format!("a descriptor has at most {MAX_TOGETHER} limits");
        findings.push(node.error(why).at(fields.at("limits")));
        return limits;
    }
    for (number, node) in list.iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("limits"));
        let Some(fields) = Fields::of(node, &path, &language::LIMIT, findings) else { continue };
        if fields.first(QUANTITIES).is_none() {
            findings.push(node.error("expected a `rate` or `in_flight`").at(&*path));
        }
        let limit = native(&fields, trail, defaults, findings);
        let name = fields.text("name", findings);
        if name.is_none() && list.len() > 1 {
            let why = "several limits on one descriptor need a `name` each";
            findings.push(node.error(why).at(path));
        } else if limits.iter().any(|other| name.is_some() && other.name() == name) {
            let why = format!("two limits have the name {}", quoted(name.unwrap_or_default()));
            findings.push(node.error(why).at(fields.at("name")));
        }
        limits.extend(limit);
    }
    limits
}

/// Loads a limit in Tidegate's form.
fn native(
    fields: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Option<PolicyLimit> {
    let choices = defaults.overlaid(fields, findings);
    if fields.node("in_flight").is_some() {
        let name = fields.text("name", findings);
        let written = Written { fields, trail, name, form: Form::Native };
        return in_flight::read(&written, choices, findings);
    }
    for field in ["ttl", "reserve"] {
        if let Some(node) = fields.node(field) {
            let why = format!("`{field}` needs `in_flight`");
            findings.push(node.error(why).at(fields.at(field)));
        }
    }
    // A calendar implies the algorithm, so only an explicit one can contradict it.
    let chosen = match fields.node("calendar") {
        Some(_) => algorithm(fields, findings),
        None => choices.algorithm,
    };
    let numbers = numbers::read(fields, chosen, findings)?;
    let choices = settling::exact(fields, block::exact(&numbers, choices));
    let name = fields.text("name", findings);
    Written { fields, trail, name, form: Form::Native }.finish(&numbers, choices, findings)
}

/// A limit's position in the file, and its name.
pub(super) struct Written<'a> {
    pub(super) fields: &'a Fields<'a>,
    pub(super) trail: &'a Trail,
    pub(super) name: Option<&'a str>,
    pub(super) form: Form,
}

impl Written<'_> {
    pub(super) fn id(&self) -> Arc<str> {
        let (domain, name) = (&self.trail.domain, self.name.unwrap_or_default());
        // Escaping keeps ids unique, whatever separators the names contain.
        let (domain, name) = (escaped(domain, "/"), escaped(name, "~"));
        format!("{domain}/{}#{name}", self.trail.name).into()
    }

    /// A limit that allows everything.
    pub(super) fn unlimited(&self, choices: Defaults) -> PolicyLimit {
        let Defaults { cost, mode, on_store_failure, refund_staleness, tier, .. } = choices;
        PolicyLimit {
            id: self.id(),
            name: self.name.map(Into::into),
            algorithm: Some(choices.algorithm.unwrap_or(AlgorithmName::TokenBucket)),
            allowance: Allowance::Unlimited,
            plans: HashMap::with_hasher(RandomState::default()),
            overrides: HashMap::with_hasher(RandomState::default()),
            shadow: None,
            form: self.form,
            cost: cost.unwrap_or(1),
            mode,
            enforce: Share::ALL,
            on_store_failure,
            refund_staleness,
            tier,
            shards: None,
            local: None,
            replaces: Box::default(),
            reserve: None,
            sheds: None,
            settling: None,
            counter: Arc::default(),
            #[cfg(feature = "http")]
            fields: KnownFields::default(),
        }
    }

    /// Builds a limit from these numbers and its other fields.
    pub(super) fn finish(
        &self,
        numbers: &Numbers,
        choices: Defaults,
        findings: &mut Findings,
    ) -> Option<PolicyLimit> {
        let (id, fields) = (self.id(), self.fields);
        let numbers = &Numbers { tier: choices.tier, ..numbers.clone() };
        let allowance = numbers.build(&id, fields, findings)?;
        advise(numbers, &choices, fields, self.trail, findings);
        let enforce = self.share(findings);
        let settling = match self.form {
            Form::Native => settling::read(fields, numbers, &choices, findings),
            Form::Envoy { .. } => None,
        };
        let limit = PolicyLimit {
            sheds: self.sheds(429, findings),
            settling,
            shards: hot::shards(numbers, &choices, fields, findings),
            local: hot::local(&id, &choices, fields, findings),
            plans: plans(&VariedLimit::Rate(numbers), &id, fields, self.trail, findings),
            overrides: overrides(&VariedLimit::Rate(numbers), &id, fields, self.trail, findings),
            shadow: shadow(numbers, &id, fields, findings),
            algorithm: Some(numbers.algorithm),
            allowance,
            enforce,
            ..self.unlimited(choices)
        };
        hot::check_shards(&limit, fields, findings);
        Some(limit)
    }

    /// `status: 503`; `default` if the limit has none.
    pub(super) fn sheds(&self, default: u64, findings: &mut Findings) -> Option<Arc<RetrySpread>> {
        let status = self.fields.number("status", findings);
        if let Some(node) = self.fields.node("status")
            && status.is_some_and(|status| !matches!(status, 429 | 503))
        {
            findings.push(node.mismatch("429 or 503").at(self.fields.at("status")));
        }
        (status.unwrap_or(default) == 503).then(Arc::default)
    }

    pub(super) fn share(&self, findings: &mut Findings) -> Share {
        let Some(node) = self.fields.node("enforce") else { return Share::ALL };
        let text = self.fields.text("enforce", findings).unwrap_or_default();
        Share::parse(text).unwrap_or_else(|| {
            let expected = "a share such as 25%, from 0% to 100%";
            findings.push(node.mismatch(expected).at(self.fields.at("enforce")));
            Share::ALL
        })
    }
}
