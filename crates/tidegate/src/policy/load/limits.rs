//! The limits of a descriptor: theirs (`rate_limit`), ours (`rate` …), or several (`limits`).

use tidegate_core::{AlgorithmName, Builder, InvalidLimit, Limit, MAX_COST, Rate, Span};

use super::Trail;
use super::advice::advise;
use super::fields::Fields;
use crate::key::Scope;
use crate::policy::document::Node;
use crate::policy::finding::{Findings, quoted};
use crate::policy::rule::{Allowance, Form, Mode, OnStoreFailure, PolicyLimit, Tier, Unit};

/// What a limit may say; a descriptor with one limit says it itself.
pub(super) const FIELDS: &[&str] = &[
    "algorithm",
    "burst",
    "cost",
    "count_denied",
    "mode",
    "name",
    "on_store_failure",
    "per",
    "queue",
    "rate",
    "requests",
    "tier",
];
/// What a domain may say for all its limits.
const DEFAULTS: &[&str] = &["algorithm", "cost", "mode", "on_store_failure", "tier"];
/// What makes a descriptor's own fields a limit.
const QUANTITIES: &[&str] = &["rate", "requests"];
/// The fields of theirs.
const THEIRS: &[&str] = &["name", "replaces", "requests_per_unit", "unit", "unlimited"];
const MODES: &[&str] = &["enforce", "shadow", "off"];
const FAILURES: &[&str] = &["allow", "deny", "local"];
const TIERS: &[&str] = &["exact", "leased"];

/// What holds for every limit that does not say otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Defaults {
    algorithm: Option<AlgorithmName>,
    cost: Option<u64>,
    mode: Mode,
    on_store_failure: OnStoreFailure,
    tier: Tier,
}

impl Defaults {
    pub(super) fn read(node: &Node, findings: &mut Findings) -> Self {
        match Fields::of(node, "defaults", DEFAULTS, findings) {
            Some(fields) => Self::default().overlaid(&fields, findings),
            None => Self::default(),
        }
    }

    fn overlaid(self, fields: &Fields<'_>, findings: &mut Findings) -> Self {
        let mode = match fields.choice("mode", MODES, findings) {
            None => self.mode,
            Some("shadow") => Mode::Shadow,
            Some("off") => Mode::Off,
            Some(_) => Mode::Enforce,
        };
        let on_store_failure = match fields.choice("on_store_failure", FAILURES, findings) {
            None => self.on_store_failure,
            Some("allow") => OnStoreFailure::Allow,
            Some("deny") => OnStoreFailure::Deny,
            Some(_) => OnStoreFailure::Local,
        };
        let tier = match fields.choice("tier", TIERS, findings) {
            None => self.tier,
            Some("leased") => Tier::Leased,
            Some(_) => Tier::Exact,
        };
        let algorithm = algorithm(fields, findings).or(self.algorithm);
        let cost = fields.number("cost", findings).or(self.cost);
        Self { algorithm, cost, mode, on_store_failure, tier }
    }
}

fn algorithm(fields: &Fields<'_>, findings: &mut Findings) -> Option<AlgorithmName> {
    let words = AlgorithmName::ALL.map(AlgorithmName::as_str);
    fields.choice("algorithm", &words, findings)?.parse().ok()
}

/// All limits of one descriptor.
pub(super) fn read(
    fields: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Vec<PolicyLimit> {
    let own = QUANTITIES.iter().find_map(|field| fields.node(field));
    let (theirs, several) = (fields.node("rate_limit"), fields.node("limits"));
    let given = [own, theirs, several].into_iter().flatten().count();
    if let (true, Some(node)) = (given > 1, several.or(theirs)) {
        let why = "a descriptor has one of `rate`, `limits` and `rate_limit`";
        findings.push(node.error(why).at(trail.path.clone()));
        return Vec::new();
    }
    if let Some(node) = theirs {
        return self::theirs(node, fields, trail, defaults, findings).into_iter().collect();
    }
    if several.is_some() {
        return self::several(fields, trail, defaults, findings);
    }
    if own.is_some() {
        return ours(fields, trail, defaults, findings).into_iter().collect();
    }
    let stray = FIELDS.iter().find_map(|field| Some((field, fields.node(field)?)));
    if let Some((field, node)) = stray {
        let why = format!("`{field}` without a `rate` limits nothing");
        findings.push(node.error(why).at(fields.at(field)));
    }
    Vec::new()
}

/// Limits that are charged together, each with a name of its own.
fn several(
    fields: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Vec<PolicyLimit> {
    let mut limits: Vec<PolicyLimit> = Vec::new();
    let list = fields.list("limits", findings);
    for (number, node) in list.iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("limits"));
        let Some(fields) = Fields::of(node, &path, FIELDS, findings) else { continue };
        let limit = ours(&fields, trail, defaults, findings);
        let name = fields.text("name", findings);
        if name.is_none() && list.len() > 1 {
            let why = "several limits on one descriptor need a `name` each";
            findings.push(node.error(why).at(path));
        } else if limits.iter().any(|other| name.is_some() && other.name() == name) {
            let why = format!("two limits are called {}", quoted(name.unwrap_or_default()));
            findings.push(node.error(why).at(fields.at("name")));
        }
        limits.extend(limit);
    }
    limits
}

/// A limit as we write it.
fn ours(
    fields: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Option<PolicyLimit> {
    let rate = rate(fields, findings)?;
    let choices = defaults.overlaid(fields, findings);
    let algorithm = choices.algorithm.unwrap_or(AlgorithmName::TokenBucket);
    let mut builder = Builder::new(algorithm, rate);
    if let Some(burst) = fields.number("burst", findings) {
        builder = builder.burst(burst);
    }
    if let Some(queue) = fields.number("queue", findings) {
        builder = builder.queue(queue);
    }
    if fields.flag("count_denied", findings) {
        builder = builder.count_denied();
    }
    let limit = build(builder, fields, findings)?;
    let name = fields.text("name", findings);
    let written = Written { fields, trail, name, form: Form::Native };
    Some(finish(limit, &written, choices, findings))
}

/// `rate: N/PERIOD`, or `requests: N` and `per: PERIOD`.
fn rate(fields: &Fields<'_>, findings: &mut Findings) -> Option<Rate> {
    let (written, requests, per) =
        (fields.node("rate"), fields.node("requests"), fields.node("per"));
    match (written, requests, per) {
        (Some(node), None, None) => {
            let text = fields.text("rate", findings)?;
            let expected = "a rate such as 100/s, 5000/hour or 20/5m";
            let read = text
                .parse()
                .map_err(|_| findings.push(node.mismatch(expected).at(fields.at("rate"))));
            read.ok()
        }
        (None, Some(_), Some(node)) => {
            let count = fields.number("requests", findings)?;
            let period = format!("1/{}", fields.text("per", findings)?);
            let expected = "a period such as s, 5m, hour or day";
            let read = period
                .parse::<Rate>()
                .map_err(|_| findings.push(node.mismatch(expected).at(fields.at("per"))));
            read.ok().map(|rate| Rate::new(count, rate.per))
        }
        (None, Some(node), None) => {
            findings.push(node.error("`requests` needs a `per`").at(fields.at("requests")));
            None
        }
        (Some(_), Some(node), _) | (Some(_), None, Some(node)) => {
            let why = "either `rate`, or `requests` and `per`";
            findings.push(node.error(why).at(fields.at("rate")));
            None
        }
        (None, None, _) => None,
    }
}

/// A limit as envoyproxy/ratelimit writes it.
fn theirs(
    node: &Node,
    descriptor: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Option<PolicyLimit> {
    let fields = Fields::of(node, &descriptor.at("rate_limit"), THEIRS, findings)?;
    let unit = fields.text("unit", findings);
    let known = unit.and_then(|text| {
        Unit::ALL.into_iter().find(|unit| unit.as_str().eq_ignore_ascii_case(text))
    });
    let choices = defaults.overlaid(descriptor, findings);
    let shadow = descriptor.flag("shadow_mode", findings);
    let choices = if shadow { Defaults { mode: Mode::Shadow, ..choices } } else { choices };
    let (name, replaces) = (fields.text("name", findings), replaces(&fields, findings));
    if fields.flag("unlimited", findings) {
        if let Some(node) = fields.node("unit").filter(|_| known.is_some()) {
            findings.push(node.error("`unlimited` has no unit").at(fields.at("unit")));
        }
        let form = Form::Envoy { unit: Unit::Second, requests_per_unit: 0 };
        let written = Written { fields: &fields, trail, name, form };
        let limit = finish(None, &written, choices, findings);
        return Some(PolicyLimit { replaces, ..limit });
    }
    let Some(unit) = known else {
        let expected = format!("one of {}", Unit::ALL.map(Unit::as_str).join(", "));
        let at = fields.node("unit").unwrap_or(node);
        let finding = if unit.is_some() {
            at.mismatch(&expected)
        } else {
            at.error(format!("expected a `unit`, {expected}"))
        };
        findings.push(finding.at(fields.at("unit")));
        return None;
    };
    let count = fields.number("requests_per_unit", findings).unwrap_or(0);
    let Ok(requests_per_unit) = u32::try_from(count) else {
        let at = fields.node("requests_per_unit").unwrap_or(node);
        findings.push(at.mismatch("at most 4294967295").at(fields.at("requests_per_unit")));
        return None;
    };
    let rate = Rate::new(count, Span::from_secs(unit.seconds()));
    let builder = match choices.algorithm {
        Some(algorithm) => Builder::new(algorithm, rate),
        None => Limit::fixed_window(rate).count_denied(),
    };
    let limit = build(builder, &fields, findings)?;
    let form = Form::Envoy { unit, requests_per_unit };
    let written = Written { fields: &fields, trail, name, form };
    let limit = finish(limit, &written, choices, findings);
    Some(PolicyLimit { replaces, ..limit })
}

/// The names of limits that do not apply where this one does.
fn replaces(fields: &Fields<'_>, findings: &mut Findings) -> Box<[Box<str>]> {
    let own = fields.text("name", findings);
    let mut names: Vec<Box<str>> = Vec::new();
    for (number, node) in fields.list("replaces", findings).iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("replaces"));
        let Some(fields) = Fields::of(node, &path, &["name"], findings) else { continue };
        match fields.text("name", findings) {
            Some(name) if name.is_empty() || Some(name) == own => {
                findings.push(node.error("a limit replaces another one, by its name").at(path));
            }
            Some(name) => names.push(name.into()),
            None => findings.push(node.error("expected a `name`").at(path)),
        }
    }
    names.into()
}

/// The engine's limit; what it refuses is told at the field that is to blame.
fn build(builder: Builder, fields: &Fields<'_>, findings: &mut Findings) -> Option<Option<Limit>> {
    match builder.build() {
        Ok(limit) => Some(Some(limit)),
        Err(error) => {
            let blamed = match error {
                InvalidLimit::Burst | InvalidLimit::BurstOnWindow => "burst",
                InvalidLimit::Queue | InvalidLimit::QueueOutsideLeakyBucket => "queue",
                InvalidLimit::WindowOption => "count_denied",
                _ => "rate",
            };
            let at = [blamed, "rate", "requests", "requests_per_unit"];
            let at = at.into_iter().find_map(|field| Some((field, fields.node(field)?)));
            if let Some((field, node)) = at {
                findings.push(node.error(error.to_string()).at(fields.at(field)));
            }
            None
        }
    }
}

/// Where a limit was written.
struct Written<'a> {
    fields: &'a Fields<'a>,
    trail: &'a Trail,
    name: Option<&'a str>,
    form: Form,
}

/// `None` is unlimited.
fn finish(
    limit: Option<Limit>,
    written: &Written<'_>,
    choices: Defaults,
    findings: &mut Findings,
) -> PolicyLimit {
    let Written { fields, trail, name, form } = *written;
    let Defaults { cost, mode, on_store_failure, tier, .. } = choices;
    let cost = cost.unwrap_or(1);
    if let Some(node) = fields.node("cost").filter(|_| cost > MAX_COST) {
        findings.push(node.mismatch("at most 4294967296").at(fields.at("cost")));
    }
    if let Some(limit) = &limit {
        advise(limit, cost, fields, trail, findings);
    }
    let id = format!("{}/{}#{}", trail.domain, trail.name, name.unwrap_or_default());
    let allowance = limit.map_or(Allowance::Unlimited, |limit| Allowance::Limited {
        limit,
        scope: Scope::new(&id, &limit),
    });
    PolicyLimit {
        id: id.into(),
        name: name.map(Into::into),
        allowance,
        form,
        cost,
        mode,
        on_store_failure,
        tier,
        replaces: Box::default(),
    }
}
