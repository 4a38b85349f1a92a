//! The top-level fields of a file, which belong to its domain.

use super::fields::Fields;
use super::limits::Defaults;
use super::overload;
use super::requests::Names;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::document::{Document, Node};
use crate::policy::http::RequestRules;
use crate::policy::language;
use crate::policy::model::limit::Mode;
use crate::policy::model::overload::{Classes, Protection};
use crate::policy::model::rule::{Charging, Plans};

/// The top-level fields of one file.
pub(super) struct Head<'d> {
    pub(super) fields: Fields<'d>,
    pub(super) name: String,
    pub(super) node: &'d Node,
    pub(super) charging: Option<Charging>,
    pub(super) tag: Option<&'d str>,
    pub(super) mode: Option<Mode>,
    pub(super) plans: Plans,
    pub(super) classes: Classes,
    pub(super) protections: Vec<Protection>,
    pub(super) requests: RequestRules,
    pub(super) defaults: Defaults,
}

impl<'d> Head<'d> {
    pub(super) fn read(document: &'d Document, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(&document.root, "", &language::FILE, findings)?;
        let charging = fields
            .choice("charge", findings)
            .map(|charge| if charge == "each" { Charging::Each } else { Charging::Together });
        let tag = fields.text("tag", findings);
        let mode = fields.choice("mode", findings).map(Mode::of);
        let defaults = match fields.node("defaults") {
            Some(node) => Defaults::read(node, findings),
            None => Defaults::default(),
        };
        let plans = fields.node("plans").map_or_else(Plans::default, |node| plans(node, findings));
        let (classes, protections) = overload::read(&fields, findings);
        let requests = match fields.node("requests") {
            Some(node) => {
                let names = Names { classes: &classes, protections: &protections };
                super::requests::read(node, "requests", &names, findings)
            }
            None => RequestRules::default(),
        };
        let node = fields.node("domain").unwrap_or(&document.root);
        let name = fields.text("domain", findings).unwrap_or_default().to_owned();
        if name.is_empty() {
            findings.push(node.error("expected the name of a domain").at("domain"));
            return None;
        }
        Some(Self {
            fields,
            name,
            node,
            charging,
            tag,
            mode,
            plans,
            classes,
            protections,
            requests,
            defaults,
        })
    }
}

fn plans(node: &Node, findings: &mut Findings) -> Plans {
    let Some(fields) = Fields::of(node, "plans", &language::PLANS, findings) else {
        return Plans::default();
    };
    let mut plans = Plans {
        entry: fields.text("entry", findings).map(Into::into),
        key: fields.text("key", findings).map(Into::into),
        ..Plans::default()
    };
    if let (Some(node), None) = (fields.node("members"), &plans.key) {
        let why = "`members` needs `key`, the key of the entry that has these values";
        findings.push(node.error(why).at("plans.members"));
    }
    for (plan, node) in fields.named("members", findings) {
        let path = format!("plans.members.{plan}");
        let Ok(values) = node.as_list().map_err(|finding| findings.push(finding.at(&*path))) else {
            continue;
        };
        for value in values {
            let Ok(text) = value.as_text().map_err(|finding| findings.push(finding.at(&*path)))
            else {
                continue;
            };
            if plans.members.insert(text.into(), plan.into()).is_some() {
                let why = format!("{} already has another plan", quoted(text));
                findings.push(value.error(why).at(&*path));
            }
        }
    }
    plans
}
