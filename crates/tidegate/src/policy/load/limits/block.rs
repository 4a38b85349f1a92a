//! `block_for: 10m`: how long a denial blocks its key.

use tidegate_core::algorithm::blocking::Blocking;
use tidegate_core::{Rate, Span};

use crate::policy::document::finding::Findings;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::Defaults;
use crate::policy::load::limits::numbers::Numbers;
use crate::store::Tier;

/// The shortest block: a shorter one ends before a client notices.
const MIN_BLOCK: Span = Span::from_secs(1);

/// Fields that a limit with a block does not have: it is decided in one step with its block, in the
/// store.
const MEANINGLESS: &[&str] = &["calendar", "refund_staleness", "shards", "tier"];

/// The duration of a block, if the limit has one.
pub(in crate::policy::load) fn read(fields: &Fields<'_>, findings: &mut Findings) -> Option<Span> {
    let node = fields.node("block_for")?;
    for field in MEANINGLESS {
        if let Some(node) = fields.node(field) {
            let why = format!("`{field}` has no meaning beside `block_for`, which is always exact");
            findings.push(node.error(why).at(fields.at(field)));
        }
    }
    let rate = format!("1/{}", fields.text("block_for", findings)?).parse::<Rate>();
    let span = rate.ok().map(|rate| rate.per);
    let span = span.filter(|span| (MIN_BLOCK..=Blocking::MAX_BLOCK).contains(span));
    if span.is_none() {
        let expected = "a period from 1s to 30d, such as 10m";
        findings.push(node.mismatch(expected).at(fields.at("block_for")));
    }
    span
}

/// The choices of a limit, which is exact if it has a block, whatever the domain's defaults.
pub(in crate::policy::load) fn exact(numbers: &Numbers, choices: Defaults) -> Defaults {
    match numbers.block_for {
        Some(_) => Defaults { tier: Tier::Exact, refund_staleness: Some(Span::ZERO), ..choices },
        None => choices,
    }
}
