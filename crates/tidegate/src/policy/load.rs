//! From documents to a policy: every field is checked once, and everything that is wrong is told.

mod advice;
mod fields;
mod limits;

use std::sync::Arc;

use self::fields::Fields;
use self::limits::Defaults;
use super::document::{Document, Kind, Node};
use super::finding::Findings;
use super::level::{Level, Matcher, RuleId};
use super::network::Network;
use super::rule::{Charging, Domain, Metadata, MetricDetail, Rule};
use super::{Merging, Policy};

/// What may stand at the top of a file.
const DOMAIN: &[&str] = &["$schema", "charge", "defaults", "descriptors", "domain", "tag"];
/// What may stand in a descriptor beside the fields of a limit.
const DESCRIPTOR: &[&str] = &[
    "descriptors",
    "detailed_metric",
    "key",
    "limits",
    "match",
    "metadata",
    "quota_mode",
    "rate_limit",
    "shadow_mode",
    "share_threshold",
    "value",
    "value_to_metric",
];
/// The ways to match a value.
const MATCH: &[&str] = &["cidr", "glob", "one_of", "prefix"];

/// Puts the documents of all files together into one policy.
pub(super) fn load(documents: &[Document], merging: Merging, findings: &mut Findings) -> Policy {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for document in documents {
        let Some(head) = Head::read(document, findings) else { continue };
        let known = drafts.iter().position(|draft| draft.name == head.name);
        let number = match (known, merging) {
            (Some(number), Merging::Refuse) => {
                let why = format!("{} has this domain already", drafts[number].file);
                findings.push(head.node.error(why).at("domain"));
                continue;
            }
            (Some(number), Merging::Allow) => number,
            (None, _) => {
                drafts.push(Draft::new(&head, document));
                drafts.len() - 1
            }
        };
        let draft = &mut drafts[number];
        let trail = Trail { domain: head.name.clone(), ..Trail::default() };
        let mut loader = Loader { findings, rules: &mut draft.rules };
        let level = loader.descriptors(&head.fields, &trail, &head.defaults);
        draft.level.extend(level);
        draft.charging = head.charging.unwrap_or(draft.charging);
        draft.tag = head.tag.map(Into::into).or(draft.tag.take());
    }
    let domains = drafts.into_iter().map(|draft| draft.build(findings));
    Policy { domains: domains.map(|domain| (domain.name.clone(), domain)).collect() }
}

/// The top of one file.
struct Head<'d> {
    fields: Fields<'d>,
    name: String,
    node: &'d Node,
    charging: Option<Charging>,
    tag: Option<&'d str>,
    defaults: Defaults,
}

impl<'d> Head<'d> {
    fn read(document: &'d Document, findings: &mut Findings) -> Option<Self> {
        let fields = Fields::of(&document.root, "", DOMAIN, findings)?;
        let charging = fields
            .choice("charge", &["together", "each"], findings)
            .map(|charge| if charge == "each" { Charging::Each } else { Charging::Together });
        let tag = fields.text("tag", findings);
        let defaults = match fields.node("defaults") {
            Some(node) => Defaults::read(node, findings),
            None => Defaults::default(),
        };
        let node = fields.node("domain").unwrap_or(&document.root);
        let name = fields.text("domain", findings).unwrap_or_default().to_owned();
        if name.is_empty() {
            findings.push(node.error("expected the name of a domain").at("domain"));
            return None;
        }
        Some(Self { fields, name, node, charging, tag, defaults })
    }
}

/// A domain while its files are read.
struct Draft<'d> {
    name: String,
    file: Arc<str>,
    charging: Charging,
    tag: Option<Box<str>>,
    rules: Vec<Rule>,
    level: Vec<Drafted<'d>>,
}

/// A descriptor of a level that is not complete yet.
struct Drafted<'d> {
    key: String,
    matcher: Matcher,
    rule: RuleId,
    node: &'d Node,
    path: String,
}

impl<'d> Draft<'d> {
    fn new(head: &Head<'d>, document: &Document) -> Self {
        Self {
            name: head.name.clone(),
            file: Arc::clone(&document.file),
            charging: Charging::AsWritten,
            tag: None,
            rules: Vec::new(),
            level: Vec::new(),
        }
    }

    fn build(self, findings: &mut Findings) -> Domain {
        let first = complete(&self.level, findings);
        let Self { name, charging, tag, rules, .. } = self;
        Domain { name: name.into(), charging, tag, first, rules }
    }
}

/// The level of these descriptors; two that want the same are told.
fn complete(level: &[Drafted<'_>], findings: &mut Findings) -> Level {
    let rules: Vec<_> = level.iter().map(|d| (d.key.clone(), d.matcher.clone(), d.rule)).collect();
    let (built, twice) = Level::build(&rules);
    for place in twice {
        let why = "an earlier descriptor of this level has the same key and value";
        findings.push(level[place].node.error(why).at(&*level[place].path));
    }
    built
}

struct Loader<'a> {
    findings: &'a mut Findings,
    rules: &'a mut Vec<Rule>,
}

/// Where a descriptor is: for people, and as a part of its limits' names.
#[derive(Clone, Default)]
struct Trail {
    /// As in `descriptors[2].descriptors[0]`.
    path: String,
    /// As in `api_key=foo.path`, with what separates escaped.
    name: String,
    domain: String,
}

impl Trail {
    fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.into() } else { format!("{}.{field}", self.path) }
    }

    fn into(&self, number: usize, key: &str, value: &str) -> Self {
        let path = format!("{}[{number}]", self.at("descriptors"));
        let step = if value.is_empty() {
            escaped(key)
        } else {
            format!("{}={}", escaped(key), escaped(value))
        };
        let name = if self.name.is_empty() { step } else { format!("{}.{step}", self.name) };
        Self { path, name, domain: self.domain.clone() }
    }
}

impl Loader<'_> {
    /// The rules of one level, and all below them.
    fn descriptors<'d>(
        &mut self,
        parent: &Fields<'d>,
        trail: &Trail,
        defaults: &Defaults,
    ) -> Vec<Drafted<'d>> {
        let mut level = Vec::new();
        for (number, node) in parent.list("descriptors", self.findings).iter().enumerate() {
            level.extend(self.descriptor(node, number, trail, defaults));
        }
        level
    }

    fn descriptor<'d>(
        &mut self,
        node: &'d Node,
        number: usize,
        trail: &Trail,
        defaults: &Defaults,
    ) -> Option<Drafted<'d>> {
        let path = format!("{}[{number}]", trail.at("descriptors"));
        let allowed = [DESCRIPTOR, limits::FIELDS].concat();
        let fields = Fields::of(node, &path, &allowed, self.findings)?;
        let key = fields.text("key", self.findings).unwrap_or_default().to_owned();
        if key.is_empty() {
            let at = fields.node("key").unwrap_or(node);
            self.findings.push(at.error("expected a key").at(format!("{path}.key")));
        }
        let (matcher, written) = self.matcher(&fields);
        let trail = trail.into(number, &key, &written);
        let shares = fields.flag("share_threshold", self.findings);
        if shares && !matches!(matcher, Matcher::Stars(_)) {
            let at = fields.node("share_threshold").unwrap_or(node);
            let why = "only values with a * can share a threshold";
            self.findings.push(at.error(why).at(format!("{path}.share_threshold")));
        }
        let limits = limits::read(&fields, &trail, defaults, self.findings);
        let below = self.descriptors(&fields, &trail, defaults);
        let next = complete(&below, self.findings);
        let rule = RuleId::try_from(self.rules.len()).ok()?;
        let shared_as = shares.then(|| written.into());
        let metric = match (
            fields.flag("detailed_metric", self.findings),
            fields.flag("value_to_metric", self.findings),
        ) {
            (true, _) => MetricDetail::Everything,
            (false, true) => MetricDetail::Value,
            (false, false) => MetricDetail::Names,
        };
        let quota = fields.flag("quota_mode", self.findings);
        let metadata = fields.node("metadata").map(metadata);
        let (path_name, limits) = (trail.name.into(), limits.into());
        self.rules.push(Rule { path: path_name, limits, next, shared_as, quota, metric, metadata });
        Some(Drafted { key, matcher, rule, node, path })
    }

    /// What a descriptor applies to, and how that was written.
    fn matcher(&mut self, fields: &Fields<'_>) -> (Matcher, String) {
        let value = fields.text("value", self.findings).unwrap_or_default().to_owned();
        let Some(node) = fields.node("match") else {
            let matcher = match value.as_str() {
                "" => Matcher::Any,
                stars if stars.contains('*') => Matcher::Stars(value.clone()),
                _ => Matcher::OneOf(vec![value.clone()]),
            };
            return (matcher, value);
        };
        let path = fields.at("match");
        if !value.is_empty() {
            self.findings.push(node.error("`value` is given as well: one of the two").at(&*path));
        }
        self.our_matcher(node, &path).unwrap_or((Matcher::Any, value))
    }

    fn our_matcher(&mut self, node: &Node, path: &str) -> Option<(Matcher, String)> {
        let fields = Fields::of(node, path, MATCH, self.findings)?;
        let given: Vec<&str> = MATCH.iter().copied().filter(|m| fields.node(m).is_some()).collect();
        let [way] = given[..] else {
            let why = format!("expected exactly one of {}", MATCH.join(", "));
            self.findings.push(node.error(why).at(path));
            return None;
        };
        if way == "one_of" {
            let values = fields.list(way, self.findings);
            let texts = values.iter().filter_map(|value| value.as_text().ok().map(str::to_owned));
            let texts: Vec<String> = texts.collect();
            let written = format!("one_of:{}", texts.join("|"));
            return Some((Matcher::OneOf(texts), written));
        }
        let text = fields.text(way, self.findings)?.to_owned();
        let written = format!("{way}:{text}");
        let matcher = match way {
            "prefix" => Matcher::Prefix(text),
            "glob" => Matcher::Glob(text),
            _ => match Network::parse(&text) {
                Ok(network) => Matcher::Within(network),
                Err(expected) => {
                    let at = fields.node(way).unwrap_or(node);
                    self.findings.push(at.mismatch(expected).at(fields.at(way)));
                    return None;
                }
            },
        };
        Some((matcher, written))
    }
}

fn metadata(node: &Node) -> Metadata {
    match &node.kind {
        Kind::Null => Metadata::Null,
        Kind::Scalar { text, .. } => Metadata::Scalar((&**text).into()),
        Kind::List(items) => Metadata::List(items.iter().map(metadata).collect()),
        Kind::Map(pairs) => {
            let pair = |(key, value): &(Node, Node)| {
                (key.as_text().unwrap_or_default().into(), metadata(value))
            };
            Metadata::Map(pairs.iter().map(pair).collect())
        }
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '.' | '=' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
