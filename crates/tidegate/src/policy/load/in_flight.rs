//! In-flight limits: `in_flight: 20, ttl: 60s`.

use tidegate_core::algorithm::inflight::InFlight;
use tidegate_core::{Limit, Rate, Span};

use super::advice::capacity;
use super::fields::Fields;
use super::limits::{Defaults, Written};
use super::variants::{VariedLimit, overrides, plans};
use crate::key::Scope;
use crate::policy::document::finding::Findings;
use crate::policy::model::allowance::Allowance;
use crate::policy::model::limit::PolicyLimit;
use crate::store::Tier;

/// The time to live of a place unless the limit sets one.
const DEFAULT_TTL: Span = Span::from_secs(60);

/// The shortest time to live: a shorter one expires before a slow network renews it.
const MIN_TTL: Span = Span::from_secs(1);

/// Fields of rates, and of layers that an in-flight limit does not use.
const RATE_FIELDS: &[&str] = &[
    "rate",
    "requests",
    "per",
    "burst",
    "queue",
    "algorithm",
    "block_for",
    "count_denied",
    "calendar",
    "shadow",
    "tier",
    "refund_staleness",
    "shards",
    "local",
    "count",
    "refund",
    "actual",
];

/// Loads an in-flight limit.
pub(super) fn read(
    written: &Written<'_>,
    choices: Defaults,
    findings: &mut Findings,
) -> Option<PolicyLimit> {
    let (fields, before) = (written.fields, findings.errors());
    for field in RATE_FIELDS {
        if let Some(node) = fields.node(field) {
            let why = format!("`{field}` has no meaning beside `in_flight`");
            findings.push(node.error(why).at(fields.at(field)));
        }
    }
    let places = fields.number("in_flight", findings);
    let ttl = ttl(fields, findings);
    let cost = fields.number("cost", findings).unwrap_or(1);
    let (id, limit) = (written.id(), Limit::in_flight(places?, ttl?).ok()?);
    if cost > capacity(&limit)
        && let Some(node) = fields.node("cost")
    {
        let why = format!("a request takes {cost} places, more than there are: all are denied");
        findings.push(node.warning(why).at(fields.at("cost")));
    }
    if findings.errors() > before {
        return None;
    }
    // A default of the domain for rates, such as `tier: leased`, does not apply.
    let choices =
        Defaults { cost: Some(cost), tier: Tier::Exact, refund_staleness: None, ..choices };
    let base = VariedLimit::InFlight(ttl?);
    Some(PolicyLimit {
        algorithm: None,
        allowance: Allowance::Limited { limit, scope: Scope::new(&id, &limit) },
        enforce: written.share(findings),
        plans: plans(&base, &id, fields, written.trail, findings),
        overrides: overrides(&base, &id, fields, written.trail, findings),
        ..written.unlimited(choices)
    })
}

/// `ttl: 60s`.
fn ttl(fields: &Fields<'_>, findings: &mut Findings) -> Option<Span> {
    let Some(node) = fields.node("ttl") else { return Some(DEFAULT_TTL) };
    let rate = format!("1/{}", fields.text("ttl", findings)?).parse::<Rate>();
    let span = rate.ok().map(|rate| rate.per);
    let span = span.filter(|ttl| (MIN_TTL..=InFlight::MAX_SHARED_TTL).contains(ttl));
    if span.is_none() {
        findings.push(node.mismatch("a period from 1s to 1d, such as 60s").at(fields.at("ttl")));
    }
    span
}
