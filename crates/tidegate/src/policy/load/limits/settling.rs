//! `count`, `refund` and `actual`: limits that are settled after the response.

use std::sync::Arc;

use tidegate_core::algorithm::fixed_window::Denied;
use tidegate_core::{AlgorithmName, Span};

use crate::policy::document::finding::Findings;
use crate::policy::language;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::Defaults;
use crate::policy::load::limits::numbers::Numbers;
use crate::policy::model::settling::{ActualSource, ByStatus, Settling, Statuses};
use crate::store::Tier;

/// The fields that make a limit one that is settled.
pub(in crate::policy::load) const FIELDS: &[&str] = &["count", "refund", "actual"];

/// Fields that such a limit does not have: it is always exact, and its reservations are in the store.
const MEANINGLESS: &[&str] = &["local", "refund_staleness", "shards", "tier"];

/// How the limit is settled, if it is.
pub(in crate::policy::load) fn read(
    fields: &Fields<'_>,
    numbers: &Numbers,
    choices: &Defaults,
    findings: &mut Findings,
) -> Option<Arc<Settling>> {
    let (first, node) = fields.first(FIELDS)?;
    let before = findings.errors();
    for field in MEANINGLESS {
        if let Some(node) = fields.node(field) {
            let why = format!("`{field}` has no meaning beside `{first}`, which is always exact");
            findings.push(node.error(why).at(fields.at(field)));
        }
    }
    let mut refuse = |why: String| findings.push(node.error(why).at(fields.at(first)));
    if fields.node("count").is_some() && fields.node("refund").is_some() {
        refuse("a limit has `count` or `refund`, not both".into());
    }
    if numbers.denied == Denied::Counted {
        refuse(format!("`{first}` returns units, and `count_denied` never does"));
    }
    if numbers.algorithm == AlgorithmName::LeakyBucket {
        refuse(format!(
            "`{first}` returns units, and a leaky bucket cannot give a slot back once later requests \
             have theirs"
        ));
    }
    if choices.cost == Some(0) {
        refuse(format!("a request that costs 0 takes nothing that `{first}` could settle"));
    }
    let by_status = match (fields.node("count"), fields.node("refund")) {
        (Some(_), _) => statuses("count", fields, findings).map(ByStatus::Count),
        (None, Some(_)) => statuses("refund", fields, findings).map(ByStatus::Refund),
        (None, None) => None,
    };
    let actual = actual(fields, findings);
    (findings.errors() == before).then(|| Arc::new(Settling { by_status, actual }))
}

/// The choices of a limit, which is exact if it is settled, whatever the domain's defaults.
pub(in crate::policy::load) fn exact(fields: &Fields<'_>, choices: Defaults) -> Defaults {
    match fields.first(FIELDS) {
        Some(_) => Defaults { tier: Tier::Exact, refund_staleness: Some(Span::ZERO), ..choices },
        None => choices,
    }
}

/// `[401, 403, 5xx, UNAUTHENTICATED]`.
fn statuses(field: &str, fields: &Fields<'_>, findings: &mut Findings) -> Option<Statuses> {
    let list = fields.list(field, findings);
    let expected = "a status from 100 to 599, such as 401, a class such as 5xx, or a gRPC code such as \
                    UNAUTHENTICATED";
    if list.is_empty() || list.len() > Statuses::MOST {
        let why = format!("expected 1 to {} statuses", Statuses::MOST);
        if let Some(node) = fields.node(field) {
            findings.push(node.error(why).at(fields.at(field)));
        }
        return None;
    }
    let mut ranges = Vec::with_capacity(list.len());
    for (number, node) in list.iter().enumerate() {
        match node.as_text().ok().and_then(Statuses::range) {
            Some(range) => ranges.push(range),
            None => {
                let at = format!("{}[{number}]", fields.at(field));
                findings.push(node.mismatch(expected).at(at));
            }
        }
    }
    Some(Statuses(ranges.into()))
}

/// `actual: {header: x-tokens}`.
fn actual(fields: &Fields<'_>, findings: &mut Findings) -> Option<ActualSource> {
    let (node, path) = (fields.node("actual")?, fields.at("actual"));
    let fields = Fields::of(node, &path, &language::ACTUAL, findings)?;
    let sources = ["header", "trailer", "application"].map(|field| fields.node(field).is_some());
    if sources.iter().filter(|is_given| **is_given).count() != 1 {
        let why = "expected one of `header`, `trailer` and `application: true`";
        findings.push(node.error(why).at(path));
        return None;
    }
    let mut name = |field: &str| {
        let text = fields.text(field, findings)?;
        let is_letter =
            |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if text.is_empty() || text.len() > 256 || !text.bytes().all(is_letter) {
            let node = fields.node(field)?;
            findings.push(node.error("expected the name of a header").at(fields.at(field)));
            return None;
        }
        Some(Box::from(text.to_ascii_lowercase()))
    };
    match sources {
        [true, ..] => name("header").map(ActualSource::Header),
        [_, true, _] => name("trailer").map(ActualSource::Trailer),
        _ => {
            if !fields.flag("application", findings) {
                findings.push(node.error("expected `application: true`").at(path));
            }
            Some(ActualSource::Application)
        }
    }
}
