//! Other numbers for a limit: `plans`, `overrides` and `shadow`.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{Limit, Span, Timestamp};

use crate::key::Scope;
use crate::policy::decide::stats::shadow::Variant;
use crate::policy::document::Node;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::language;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::algorithm;
use crate::policy::load::limits::numbers::Numbers;
use crate::policy::load::{Trail, escaped};
use crate::policy::model::allowance::Allowance;
use crate::policy::model::limit::Override;

/// The limit whose numbers are varied.
#[derive(Debug)]
pub(in crate::policy::load) enum VariedLimit<'a> {
    /// A rate.
    Rate(&'a Numbers),
    /// An in-flight limit of this time to live.
    InFlight(Span),
}

/// `plans: {pro: {rate: 1000/s}}`.
pub(in crate::policy::load) fn plans(
    base: &VariedLimit<'_>,
    id: &Arc<str>,
    limit: &Fields<'_>,
    trail: &Trail,
    findings: &mut Findings,
) -> HashMap<Box<str>, Allowance, RandomState> {
    if let (Some(node), false) = (limit.node("plans"), trail.has_plans) {
        let why = "no value has a plan: the file has no `plans` that assign them";
        findings.push(node.warning(why).at(limit.at("plans")));
    }
    let named = limit.named("plans", findings);
    let read = named.into_iter().filter_map(|(plan, node)| {
        let path = format!("{}.{plan}", limit.at("plans"));
        let fields = Fields::of(node, &path, &language::NUMBERS, findings)?;
        // Each plan has its own state. With a shared one, a request on a small plan would find the
        // debt of a large plan impossible and repair it.
        let id = format!("{id}~{}", escaped(plan, "~")).into();
        let allowance = other_numbers(base, &id, &fields, (node, &path), findings)?;
        Some((plan.into(), allowance))
    });
    read.collect()
}

/// `overrides: [{value: acme, rate: 5000/s, until: 2031-01-01}]`.
pub(in crate::policy::load) fn overrides(
    base: &VariedLimit<'_>,
    id: &Arc<str>,
    limit: &Fields<'_>,
    trail: &Trail,
    findings: &mut Findings,
) -> HashMap<Box<str>, Override, RandomState> {
    let mut overrides = HashMap::with_hasher(RandomState::default());
    if let (Some(node), true) = (limit.node("overrides"), trail.shares_state) {
        let why = "overrides apply to single values, but all values here share one quota: write a \
                   separate descriptor for this value";
        findings.push(node.error(why).at(limit.at("overrides")));
        return overrides;
    }
    for (number, node) in limit.list("overrides", findings).iter().enumerate() {
        let path = format!("{}[{number}]", limit.at("overrides"));
        let Some(fields) = Fields::of(node, &path, &language::OVERRIDE, findings) else { continue };
        let allowance = other_numbers(base, id, &fields, (node, &path), findings);
        let until = until(&fields, trail, findings);
        let Some(value) = fields.text("value", findings) else {
            findings.push(node.error("expected a `value`").at(&*path));
            continue;
        };
        let reason = fields.text("reason", findings).map(Into::into);
        let Some(allowance) = allowance else { continue };
        let special = Override { allowance, until, reason };
        if overrides.insert(value.into(), special).is_some() {
            let why = format!("{} already has an override", quoted(value));
            findings.push(node.error(why).at(fields.at("value")));
        }
    }
    overrides
}

/// `shadow: {rate: 50/s}`.
pub(in crate::policy::load) fn shadow(
    numbers: &Numbers,
    id: &Arc<str>,
    limit: &Fields<'_>,
    findings: &mut Findings,
) -> Option<Arc<Variant>> {
    let node = limit.node("shadow")?;
    let path = limit.at("shadow");
    let fields = Fields::of(node, &path, &language::VARIANT, findings)?;
    let varied = numbers.varied(&fields, node, &path, findings)?;
    let varied = match algorithm(&fields, findings) {
        Some(algorithm) if algorithm != varied.algorithm => Numbers {
            algorithm,
            // Options that only the other algorithm has are not inherited.
            burst: varied.burst.filter(|_| fields.node("burst").is_some()),
            queue: varied.queue.filter(|_| fields.node("queue").is_some()),
            denied: Denied::Ignored,
            calendar: None,
            ..varied
        },
        _ => varied,
    };
    let id: Arc<str> = format!("{id}~shadow").into();
    let allowance = varied.build(&id, &fields, findings)?;
    Some(Arc::new(Variant { allowance, counts: Arc::default() }))
}

/// Other numbers for the same limit, or unlimited.
fn other_numbers(
    base: &VariedLimit<'_>,
    id: &Arc<str>,
    fields: &Fields<'_>,
    (node, path): (&Node, &str),
    findings: &mut Findings,
) -> Option<Allowance> {
    if fields.flag("unlimited", findings) {
        let numbers = ["rate", "requests", "per", "burst", "queue", "in_flight"];
        if let Some((field, node)) = fields.first(&numbers) {
            let why = format!("`unlimited` has no `{field}`");
            findings.push(node.error(why).at(fields.at(field)));
        }
        return Some(Allowance::Unlimited);
    }
    let numbers = match base {
        VariedLimit::InFlight(ttl) => return in_flight(*ttl, id, fields, (node, path), findings),
        VariedLimit::Rate(numbers) => numbers,
    };
    if let Some(node) = fields.node("in_flight") {
        let why = "the limit is a rate and has no `in_flight`";
        findings.push(node.error(why).at(fields.at("in_flight")));
        return None;
    }
    numbers.varied(fields, node, path, findings)?.build(id, fields, findings)
}

/// Another number of places; the time to live stays.
fn in_flight(
    ttl: Span,
    id: &Arc<str>,
    fields: &Fields<'_>,
    (node, path): (&Node, &str),
    findings: &mut Findings,
) -> Option<Allowance> {
    if let Some((field, node)) = fields.first(&["rate", "requests", "per", "burst", "queue"]) {
        let why = format!("the limit is `in_flight` and has no `{field}`");
        findings.push(node.error(why).at(fields.at(field)));
        return None;
    }
    if fields.node("in_flight").is_none() {
        findings.push(node.error("expected `in_flight`").at(path));
    }
    let limit = Limit::in_flight(fields.number("in_flight", findings)?, ttl).ok()?;
    Some(Allowance::Limited { limit, scope: Scope::new(id, &limit) })
}

/// When an override ends; warns if it has ended.
fn until(fields: &Fields<'_>, trail: &Trail, findings: &mut Findings) -> Option<Timestamp> {
    let node = fields.node("until")?;
    let text = fields.text("until", findings)?;
    let Some(until) = instant(text) else {
        let expected = "a date such as 2031-01-01 or 2031-01-01T12:00:00Z";
        findings.push(node.mismatch(expected).at(fields.at("until")));
        return None;
    };
    if until <= trail.now {
        let why = "this override has ended: it can be removed";
        findings.push(node.warning(why).at(fields.at("until")));
    }
    Some(until)
}

/// Parses a date, which means its start in UTC, or an instant.
fn instant(text: &str) -> Option<Timestamp> {
    let day = || text.parse::<jiff::civil::Date>().ok().filter(|_| !text.contains('T'));
    let instant = match day() {
        Some(day) => day.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp(),
        None => text.parse::<jiff::Timestamp>().ok()?,
    };
    u64::try_from(instant.as_microsecond()).ok().map(Timestamp::from_micros)
}
