//! The fields `classes`, `class_header` and `protect`.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Span;
use tidegate_core::shed::{Class, QueueTimeout, Shares, UtilisationLevels};

use super::fields::Fields;
use super::limits::period;
use crate::policy::document::Node;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::http::UNPROTECTED;
use crate::policy::language;
use crate::policy::matching::network::Network;
use crate::policy::model::limit::Mode;
use crate::policy::model::overload::{
    ClassHeader, ClassRule, Classes, EstimatorKind, HoldUntil, PRIORITY, Protection,
    ProtectionNumbers,
};

/// The most concurrency limiters of a domain.
const MAX_PROTECTED: usize = 16;

/// The bounds of `queue_timeout`, and the shortest `slow_after`.
const MIN_WAIT: Span = Span::from_millis(1);
const MAX_WAIT: Span = Span::from_secs(600);

/// Loads the fields of a domain that protect its servers.
pub(super) fn read(file: &Fields<'_>, findings: &mut Findings) -> (Classes, Vec<Protection>) {
    let mut classes = classes(file, findings);
    if let Some(node) = file.node("class_header") {
        classes.header = header(node, &classes, findings);
    }
    let mut protections: Vec<Protection> = Vec::new();
    let list = file.list("protect", findings);
    if let Some(node) = list.get(MAX_PROTECTED) {
        let why = format!("a domain has at most {MAX_PROTECTED} concurrency limiters");
        findings.push(node.error(why).at("protect"));
    }
    for (number, node) in list.iter().enumerate() {
        let path = format!("protect[{number}]");
        let Some(fields) = Fields::of(node, &path, &language::PROTECT, findings) else { continue };
        let Some(protection) = protection(node, &fields, classes.shares, findings) else {
            continue;
        };
        if protections.iter().any(|known| known.name == protection.name) {
            let why =
                format!("two concurrency limiters have the name {}", quoted(&protection.name));
            findings.push(node.error(why).at(fields.at("name")));
        }
        protections.push(protection);
    }
    (classes, protections)
}

fn classes(file: &Fields<'_>, findings: &mut Findings) -> Classes {
    let list = file.list("classes", findings);
    if let Some(node) = list.get(Class::MAX) {
        let why = format!("there are at most {} classes", Class::MAX);
        findings.push(node.error(why).at("classes"));
        return Classes::default();
    }
    if list.is_empty() {
        return Classes::default();
    }
    let (mut classes, mut default) = (Vec::new(), None);
    let graded = Shares::graded(list.len()).percent();
    let mut percent = Vec::new();
    for (number, node) in list.iter().enumerate() {
        let path = format!("classes[{number}]");
        let Some(fields) = Fields::of(node, &path, &language::CLASS, findings) else { continue };
        let Some(name) = name(node, &fields, findings) else { continue };
        if classes.iter().any(|known: &ClassRule| *known.name == *name) {
            let why = format!("two classes have the name {}", quoted(name));
            findings.push(node.error(why).at(fields.at("name")));
        }
        let share = per_cent(&fields, "max_share", (1, 100), findings);
        let share = share.and_then(|share| u8::try_from(share).ok());
        // Without a share of its own, a class has at most the share of the class before.
        let before = percent.last().copied().unwrap_or(100);
        let share = share.unwrap_or_else(|| graded[number].min(before));
        percent.push(share);
        if share > before {
            let node = fields.node("max_share").unwrap_or(node);
            let why = "larger than the share of a more important class";
            findings.push(node.error(why).at(fields.at("max_share")));
        }
        if fields.flag("default", findings) && default.replace(number).is_some() {
            let why = "another class is the default already";
            findings.push(node.error(why).at(fields.at("default")));
        }
        let plans = fields.texts("plans", findings).into_iter().map(Into::into).collect();
        classes.push(ClassRule { name: name.into(), plans });
    }
    let default = default.unwrap_or(list.len() - 1);
    let default = Class::new(u8::try_from(default).unwrap_or(u8::MAX));
    // Errors in the shares have been reported already.
    let shares = Shares::new(&percent).unwrap_or_default();
    Classes { classes, shares, default, header: None }
}

fn header(node: &Node, classes: &Classes, findings: &mut Findings) -> Option<ClassHeader> {
    if classes.classes.is_empty() {
        let why = "`class_header` needs `classes`, which it can name";
        findings.push(node.error(why).at("class_header"));
    }
    let fields = Fields::of(node, "class_header", &language::CLASS_HEADER, findings)?;
    let name = name(node, &fields, findings)?;
    if !super::requests::is_token(name) {
        findings.push(node.mismatch("the name of a header").at(fields.at("name")));
    }
    if let (true, Some(trusted)) = (name.eq_ignore_ascii_case(PRIORITY), fields.node("trusted")) {
        let why = "the header `priority` only lowers a class, whatever the peer";
        findings.push(trusted.error(why).at(fields.at("trusted")));
    }
    let mut trusted = Vec::new();
    for (number, text) in fields.texts("trusted", findings).into_iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("trusted"));
        match Network::parse(text) {
            Ok(network) => {
                if network.is_everything() {
                    let why = "every client may raise its class";
                    findings.push(node.warning(why).at(path));
                }
                trusted.push(network);
            }
            Err(expected) => findings.push(node.mismatch(expected).at(path)),
        }
    }
    Some(ClassHeader { name: name.to_ascii_lowercase().into(), trusted: trusted.into() })
}

fn protection(
    node: &Node,
    fields: &Fields<'_>,
    shares: Shares,
    findings: &mut Findings,
) -> Option<Protection> {
    let name = name(node, fields, findings)?;
    if name == UNPROTECTED {
        let why = "`none` is the name for routes without a limiter";
        findings.push(node.error(why).at(fields.at("name")));
    }
    let estimator = fields.choice("estimator", findings).unwrap_or("adaptive");
    let mut refuse = |field: &str, why: String| {
        if let Some(node) = fields.node(field) {
            findings.push(node.error(why).at(fields.at(field)));
        }
    };
    if estimator != "fixed" {
        refuse("limit", format!("`limit` belongs to `fixed`; {estimator} estimates the limit"));
    } else {
        for field in ["min_limit", "max_limit"] {
            refuse(field, format!("`{field}` has no meaning for a `fixed` limit"));
        }
    }
    if estimator != "adaptive" {
        refuse("tolerance", "`tolerance` belongs to `adaptive`".into());
    }
    let mut number =
        |field: &str| fields.number(field, findings).and_then(|number| u32::try_from(number).ok());
    let (limit, min_limit, max_limit) = (number("limit"), number("min_limit"), number("max_limit"));
    let estimator = match estimator {
        "fixed" => {
            if fields.node("limit").is_none() {
                let why = "`fixed` needs a `limit`";
                findings.push(node.error(why).at(fields.at("limit")));
            }
            EstimatorKind::Fixed(limit.unwrap_or(1))
        }
        "aimd" => EstimatorKind::Aimd,
        "gradient2" => {
            let why = "the limit of gradient2 drifts to its maximum under sustained overload: use \
                       adaptive";
            let node = fields.node("estimator").unwrap_or(node);
            findings.push(node.warning(why).at(fields.at("estimator")));
            EstimatorKind::Gradient2
        }
        _ => EstimatorKind::Adaptive,
    };
    if let (Some(node), true) =
        (fields.node("max_limit"), max_limit.unwrap_or(1_000) < min_limit.unwrap_or(4))
    {
        findings.push(node.error("smaller than `min_limit`").at(fields.at("max_limit")));
    }
    let queue_timeout = wait(fields, "queue_timeout", findings);
    let hold = match fields.choice("hold", findings) {
        Some("head") => HoldUntil::Head,
        _ => HoldUntil::Body,
    };
    let numbers = ProtectionNumbers {
        estimator,
        min_limit,
        max_limit,
        tolerance: per_cent(fields, "tolerance", (110, 1_000), findings),
        queue: per_cent(fields, "queue", (0, 1_000), findings).unwrap_or(100),
        queue_timeout: queue_timeout.unwrap_or(QueueTimeout::TIMEOUT.into()),
        hold,
        slow_after: wait(fields, "slow_after", findings),
        utilisation: utilisation(fields, shares, findings),
        mode: fields.choice("mode", findings).map_or(Mode::Enforce, Mode::of),
        shares,
    };
    Some(Protection { name: name.into(), numbers, limiter: Arc::default(), before: None })
}

fn utilisation(
    protection: &Fields<'_>,
    shares: Shares,
    findings: &mut Findings,
) -> Option<UtilisationLevels> {
    let node = protection.node("utilisation")?;
    let path = protection.at("utilisation");
    if shares.classes() < 2 {
        let why = "`utilisation` sheds by class, and the file has no `classes`";
        findings.push(node.error(why).at(&*path));
    }
    let fields = Fields::of(node, &path, &language::UTILISATION, findings)?;
    let default = UtilisationLevels::default();
    let mut read = |field, bounds| per_cent(&fields, field, bounds, findings);
    let levels = UtilisationLevels {
        busy: read("busy", (1, 1_000)).unwrap_or(default.busy),
        calm: read("calm", (1, 1_000)).unwrap_or(default.calm),
        up: read("up", (1, 100)).unwrap_or(default.up),
        down: read("down", (1, 100)).unwrap_or(default.down),
    };
    if levels.calm >= levels.busy {
        let why = format!("`calm` must be lower than `busy`, which is {}%", levels.busy);
        findings.push(node.error(why).at(fields.at("calm")));
    }
    Some(levels)
}

/// A required name.
fn name<'d>(node: &Node, fields: &Fields<'d>, findings: &mut Findings) -> Option<&'d str> {
    let name = fields.text("name", findings).filter(|name| !name.is_empty());
    if name.is_none() {
        findings.push(node.error("expected a `name`").at(fields.at("name")));
    }
    name
}

/// A whole number of per cent, as in `25%`.
pub(super) fn per_cent(
    fields: &Fields<'_>,
    field: &str,
    (least, most): (u32, u32),
    findings: &mut Findings,
) -> Option<u32> {
    let node = fields.node(field)?;
    let text = fields.text(field, findings)?;
    let digits = text.strip_suffix('%').filter(|it| it.bytes().all(|it| it.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse().ok());
    let number = number.filter(|number| (least..=most).contains(number));
    if number.is_none() {
        let expected = format!("a whole percentage from {least}% to {most}%");
        findings.push(node.mismatch(&expected).at(fields.at(field)));
    }
    number
}

fn wait(fields: &Fields<'_>, field: &str, findings: &mut Findings) -> Option<Duration> {
    let node = fields.node(field)?;
    let span = period(fields.text(field, findings)?);
    let span = span.filter(|span| (MIN_WAIT..=MAX_WAIT).contains(span));
    if span.is_none() {
        let expected = "a period from 1ms to 10min, such as 100ms";
        findings.push(node.mismatch(expected).at(fields.at(field)));
    }
    span.map(Into::into)
}

#[cfg(test)]
#[path = "overload_tests.rs"]
mod tests;
