//! `rate_limit`: a limit in the form of envoyproxy/ratelimit.

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{AlgorithmName, Rate, Span};

use crate::policy::document::Node;
use crate::policy::document::finding::Findings;
use crate::policy::language;
use crate::policy::load::Trail;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::numbers::Numbers;
use crate::policy::load::limits::{Defaults, Written};
use crate::policy::model::limit::{Form, Mode, PolicyLimit, Unit};

/// Loads `rate_limit`. The descriptor may have fields of Tidegate beside it, such as an algorithm.
pub(in crate::policy::load) fn read(
    node: &Node,
    descriptor: &Fields<'_>,
    trail: &Trail,
    defaults: &Defaults,
    findings: &mut Findings,
) -> Option<PolicyLimit> {
    let fields = Fields::of(node, &descriptor.at("rate_limit"), &language::RATE_LIMIT, findings)?;
    let choices = defaults.overlaid(descriptor, findings);
    let shadow = descriptor.flag("shadow_mode", findings);
    let choices = if shadow { Defaults { mode: Mode::Shadow, ..choices } } else { choices };
    let (name, replaces) = (fields.text("name", findings), replaces(&fields, findings));
    let unlimited = fields.flag("unlimited", findings);
    let meaningless: &[&str] = match unlimited {
        false => {
            &["actual", "block_for", "calendar", "count", "count_denied", "name", "refund", "ttl"]
        }
        true => &[
            "actual",
            "block_for",
            "burst",
            "calendar",
            "count",
            "count_denied",
            "enforce",
            "local",
            "name",
            "overrides",
            "plans",
            "queue",
            "refund",
            "shadow",
            "shards",
            "ttl",
        ],
    };
    if let Some((field, node)) = descriptor.first(meaningless) {
        let why = format!("`{field}` has no meaning beside this `rate_limit`");
        let finding = match field {
            // envoyproxy/ratelimit accepts it anywhere.
            "name" => node.warning(why),
            _ => node.error(why),
        };
        findings.push(finding.at(descriptor.at(field)));
    }
    let unit = unit(&fields, node, unlimited, findings)?;
    let requests_per_unit = fields.number("requests_per_unit", findings).unwrap_or(0);
    // The number was checked against its bounds.
    let requests_per_unit = u32::try_from(requests_per_unit).ok()?;
    let form = Form::Envoy { unit, requests_per_unit };
    let written = Written { fields: descriptor, trail, name, form };
    let limit = if unlimited {
        written.unlimited(choices)
    } else {
        let algorithm = choices.algorithm.unwrap_or(AlgorithmName::FixedWindow);
        let denied = match algorithm {
            AlgorithmName::FixedWindow => Denied::Counted,
            _ => Denied::Ignored,
        };
        let numbers = Numbers {
            algorithm,
            rate: Rate::new(requests_per_unit.into(), Span::from_secs(unit.seconds())),
            burst: descriptor.number("burst", findings),
            queue: descriptor.number("queue", findings),
            denied,
            calendar: None,
            block_for: None,
            tier: choices.tier,
        };
        written.finish(&numbers, choices, findings)?
    };
    Some(PolicyLimit { replaces, ..limit })
}

/// The unit, which is required unless the limit is unlimited.
fn unit(
    fields: &Fields<'_>,
    node: &Node,
    unlimited: bool,
    findings: &mut Findings,
) -> Option<Unit> {
    let text = fields.text("unit", findings);
    let known = text.and_then(|text| {
        Unit::ALL.into_iter().find(|unit| unit.as_str().eq_ignore_ascii_case(text))
    });
    match (known, unlimited) {
        (Some(_), true) => {
            let at = fields.node("unit").unwrap_or(node);
            findings.push(at.error("`unlimited` has no unit").at(fields.at("unit")));
            None
        }
        (None, true) => Some(Unit::Second),
        (Some(unit), false) => Some(unit),
        (None, false) => {
            let expected = format!("one of {}", Unit::ALL.map(Unit::as_str).join(", "));
            let at = fields.node("unit").unwrap_or(node);
            let finding = match text {
                Some(text) => at.mismatch(&expected).suggesting(text, &Unit::ALL.map(Unit::as_str)),
                None => at.error(format!("expected a `unit`, {expected}")),
            };
            findings.push(finding.at(fields.at("unit")));
            None
        }
    }
}

/// The names of the limits that this limit replaces.
fn replaces(fields: &Fields<'_>, findings: &mut Findings) -> Box<[Box<str>]> {
    let own = fields.text("name", findings);
    let mut names: Vec<Box<str>> = Vec::new();
    for (number, node) in fields.list("replaces", findings).iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("replaces"));
        let Some(fields) = Fields::of(node, &path, &language::REPLACES, findings) else { continue };
        match fields.text("name", findings) {
            Some(name) if name.is_empty() || Some(name) == own => {
                findings.push(node.error("expected the name of another limit").at(path));
            }
            Some(name) => names.push(name.into()),
            None => findings.push(node.error("expected a `name`").at(path)),
        }
    }
    names.into()
}
