//! In-flight limits: `in_flight: 20, ttl: 60s`.

use tidegate_core::algorithm::inflight::InFlight;
use tidegate_core::shed::Reserve;
use tidegate_core::{Limit, Span};

use crate::key::Scope;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::load::advice::capacity;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::variants::{VariedLimit, overrides, plans};
use crate::policy::load::limits::{Defaults, Written, period};
use crate::policy::load::overload::per_cent;
use crate::policy::model::allowance::Allowance;
use crate::policy::model::limit::{PolicyLimit, ReservedPart};
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
pub(in crate::policy::load) fn read(
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
        let why = format!(
            "a request takes {cost} places, more than the limit has: every request is denied"
        );
        findings.push(node.warning(why).at(fields.at("cost")));
    }
    let reserve = reserve(written, &limit, findings);
    if findings.errors() > before {
        return None;
    }
    // A default of the domain for rates, such as `tier: leased`, does not apply.
    let choices =
        Defaults { cost: Some(cost), tier: Tier::Exact, refund_staleness: None, ..choices };
    let base = VariedLimit::InFlight(ttl?);
    let limit = PolicyLimit {
        algorithm: None,
        allowance: Allowance::Limited { limit, scope: Scope::new(&id, &limit) },
        enforce: written.share(findings),
        plans: plans(&base, &id, fields, written.trail, findings),
        overrides: overrides(&base, &id, fields, written.trail, findings),
        sheds: written.sheds(if reserve.is_some() { 503 } else { 429 }, findings),
        reserve,
        ..written.unlimited(choices)
    };
    check_reserve(&limit, fields, findings);
    Some(limit)
}

/// `reserve: 20%`.
fn reserve(written: &Written<'_>, limit: &Limit, findings: &mut Findings) -> Option<ReservedPart> {
    let (fields, trail) = (written.fields, written.trail);
    let node = fields.node("reserve")?;
    if !trail.has_classes {
        let why = "`reserve` keeps places for the first of the `classes`, and the file has none";
        findings.push(node.error(why).at(fields.at("reserve")));
    }
    let percent = per_cent(fields, "reserve", (1, 99), findings)?;
    let percent = u8::try_from(percent).ok()?;
    if let Err(nothing_left) = Reserve::new(capacity(limit), percent) {
        findings.push(node.error(nothing_left.to_string()).at(fields.at("reserve")));
    }
    let name = written.name.unwrap_or(&trail.name);
    Some(ReservedPart { percent, name: format!("{name}~other").into() })
}

/// Reports plans and overrides that leave nothing beside the reserve.
fn check_reserve(limit: &PolicyLimit, fields: &Fields<'_>, findings: &mut Findings) {
    let (Some(node), Some(percent)) = (fields.node("reserve"), limit.reserve()) else { return };
    let plans = limit.plans();
    let overrides = limit.overrides().map(|(value, special)| (value, special.allowance()));
    for (name, allowance) in plans.chain(overrides) {
        let Allowance::Limited { limit, .. } = allowance else { continue };
        if let Err(nothing_left) = Reserve::new(capacity(limit), percent) {
            let why = format!("for {}: {nothing_left}", quoted(name));
            findings.push(node.error(why).at(fields.at("reserve")));
        }
    }
}

/// `ttl: 60s`.
fn ttl(fields: &Fields<'_>, findings: &mut Findings) -> Option<Span> {
    let Some(node) = fields.node("ttl") else { return Some(DEFAULT_TTL) };
    let span = period(fields.text("ttl", findings)?);
    let span = span.filter(|ttl| (MIN_TTL..=InFlight::MAX_SHARED_TTL).contains(ttl));
    if span.is_none() {
        findings.push(node.mismatch("a period from 1s to 1d, such as 60s").at(fields.at("ttl")));
    }
    span
}
