//! Loads a policy from documents: checks every field once and reports every error.

mod advice;
mod domain;
mod fields;
mod limits;
mod overload;
mod requests;
mod revision;

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher13;
use tidegate_core::Timestamp;

use self::domain::Head;
use self::fields::Fields;
use self::limits::Defaults;
use crate::policy::document::finding::Findings;
use crate::policy::document::{Document, Kind, Node};
use crate::policy::http::RequestRules;
use crate::policy::language;
use crate::policy::matching::level::{Level, Matcher, RuleId};
use crate::policy::matching::network::{Network, Prefixes};
use crate::policy::model::limit::Mode;
use crate::policy::model::overload::{Classes, Protection};
use crate::policy::model::rule::{Charging, Domain, Metadata, MetricDetail, Plans, Rule};
use crate::policy::{Merging, Policy};

/// The longest name of a limit. Each name is kept, so without a bound a small file could fill
/// memory.
const MAX_NAME: usize = 2_048;

/// Combines the documents of all files into one policy.
pub(super) fn load(
    documents: &[Document],
    merging: Merging,
    now: Timestamp,
    findings: &mut Findings,
) -> Policy {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    let mut names: HashMap<String, usize> = HashMap::new();
    for (place, document) in documents.iter().enumerate() {
        // A `---` at the end starts an empty document, which is ignored.
        let before = place.checked_sub(1).map(|before| &documents[before]);
        if document.root.is_null() && before.is_some_and(|it| it.file == document.file) {
            continue;
        }
        let Some(head) = Head::read(document, findings) else { continue };
        let known = names.get(&head.name).copied();
        let number = match (known, merging) {
            (Some(number), Merging::Refuse) => {
                let why = format!("{} already defines this domain", drafts[number].file);
                findings.push(head.node.error(why).at("domain"));
                continue;
            }
            (Some(number), Merging::Allow) => number,
            (None, _) => {
                names.insert(head.name.clone(), drafts.len());
                drafts.push(Draft::new(&head, document));
                drafts.len() - 1
            }
        };
        let draft = &mut drafts[number];
        // Another file may assign the plans.
        let has_plans = head.fields.node("plans").is_some() || merging == Merging::Allow;
        let plan_entry = head.plans.entry.as_deref().map(Into::into);
        let domain = head.name.clone();
        let charging = head.charging.unwrap_or_default();
        let has_classes = head.classes.names().next().is_some();
        let trail =
            Trail { domain, now, has_plans, has_classes, plan_entry, charging, ..Trail::default() };
        let mut loader = Loader { findings, rules: &mut draft.rules };
        let level = loader.descriptors(&head.fields, &trail, &head.defaults);
        draft.level.extend(level);
        draft.take(head, findings);
        revision::write(&document.root, &mut draft.revision);
    }
    let domains = drafts.into_iter().map(|draft| draft.build(findings));
    Policy { domains: domains.map(|domain| (domain.name.clone(), Arc::new(domain))).collect() }
}

/// A domain that is still being loaded.
struct Draft<'d> {
    name: String,
    file: Arc<str>,
    charging: Charging,
    tag: Option<Box<str>>,
    mode: Option<Mode>,
    plans: Plans,
    classes: Option<Classes>,
    protections: Vec<Protection>,
    requests: RequestRules,
    /// Position of the last `requests`.
    requests_node: Option<&'d Node>,
    charge_node: Option<&'d Node>,
    rules: Vec<Rule>,
    level: Vec<Drafted<'d>>,
    revision: SipHasher13,
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
            mode: None,
            plans: Plans::default(),
            classes: None,
            protections: Vec::new(),
            requests: RequestRules::default(),
            requests_node: None,
            charge_node: None,
            rules: Vec::new(),
            level: Vec::new(),
            revision: revision::hasher(),
        }
    }

    /// Adds the top-level fields of another file; the last value of a field wins.
    fn take(&mut self, head: Head<'d>, findings: &mut Findings) {
        self.take_overload(&head, findings);
        self.charging = head.charging.unwrap_or(self.charging);
        self.tag = head.tag.map(Into::into).or(self.tag.take());
        self.mode = head.mode.or(self.mode);
        self.plans.entry = head.plans.entry.or(self.plans.entry.take());
        self.plans.key = head.plans.key.or(self.plans.key.take());
        self.plans.members.extend(head.plans.members);
        self.requests_node = head.fields.node("requests").or(self.requests_node);
        self.charge_node = head.fields.node("charge").or(self.charge_node);
        self.requests.extend(head.requests);
    }

    /// Adds the classes and concurrency limiters of another file. Rules name classes by their rank, so all
    /// files of a domain that have classes must have the same.
    fn take_overload(&mut self, head: &Head<'d>, findings: &mut Findings) {
        if head.classes.names().next().is_some() {
            if self.classes.as_ref().is_some_and(|known| *known != head.classes) {
                let why = "another file of the domain has other classes";
                let node = head.fields.node("classes").unwrap_or(head.node);
                findings.push(node.error(why).at("classes"));
            }
            self.classes = Some(head.classes.clone());
        }
        for protection in &head.protections {
            if self.protections.iter().any(|known| known.name() == protection.name()) {
                let why = "another file of the domain has a concurrency limiter of this name";
                let node = head.fields.node("protect").unwrap_or(head.node);
                findings.push(node.error(why).at("protect"));
            }
            self.protections.push(protection.clone());
        }
    }

    fn build(self, findings: &mut Findings) -> Domain {
        let first = complete(&self.level, findings);
        if let Some(node) = self.requests_node
            && findings.errors() == 0
        {
            requests::check_descriptor_count(&self.requests, node, findings);
            requests::bypass::check(&self.requests, node, findings);
        }
        if let Some(node) = self.charge_node
            && findings.errors() == 0
        {
            limits::hot::check_charge(&self.rules, self.charging, node, findings);
        }
        let revision = self.revision.finish();
        let Self { name, charging, tag, mode, plans, mut protections, requests, rules, .. } = self;
        let (name, classes) = (name.into(), self.classes.unwrap_or_default());
        for protection in &mut protections {
            // Another file may have the classes.
            protection.numbers.shares = classes.shares;
        }
        Domain {
            name,
            charging,
            tag,
            mode,
            plans,
            classes,
            protections,
            requests,
            first,
            rules,
            revision,
        }
    }
}

/// Builds the level of these descriptors; reports descriptors that match the same values.
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

/// Context of a descriptor: its path in the file, and what its limits inherit from above.
#[derive(Clone, Default)]
struct Trail {
    /// Path in the file, as in `descriptors[2].descriptors[0]`.
    path: String,
    /// Part of the names of its limits, as in `api_key=foo.path`, with separators escaped.
    name: String,
    /// Name of its counters, as in `api_key_foo.path`.
    stat: String,
    /// Whether some level up to here puts its value into the counter's name (`value_to_metric`).
    varies: bool,
    domain: String,
    /// When the policy is loaded, to find expired overrides.
    now: Timestamp,
    /// Whether the file assigns plans.
    has_plans: bool,
    /// Whether the file has classes.
    has_classes: bool,
    /// The key of the entry that names the plan.
    plan_entry: Option<Arc<str>>,
    /// Whether several values of the descriptor share one state.
    shares_state: bool,
    /// Whether this file's limits are charged all or nothing.
    charging: Charging,
}

impl Trail {
    fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.into() } else { format!("{}.{field}", self.path) }
    }

    fn into(&self, number: usize, key: &str, value: &str) -> Self {
        let path = format!("{}[{number}]", self.at("descriptors"));
        let escaped = |text| escaped(text, ".=#");
        let step = if value.is_empty() {
            escaped(key)
        } else {
            format!("{}={}", escaped(key), escaped(value))
        };
        let name = if self.name.is_empty() { step } else { format!("{}.{step}", self.name) };
        let own = step_of(key, value);
        let stat = if self.stat.is_empty() { own } else { format!("{}.{own}", self.stat) };
        Self { path, name, stat, ..self.clone() }
    }
}

/// The name of one level in the names of counters.
fn step_of(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

impl Loader<'_> {
    /// Loads the rules of one level and all levels below.
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
        let fields = Fields::of(node, &path, &language::DESCRIPTOR, self.findings)?;
        let key = fields.text("key", self.findings).unwrap_or_default().to_owned();
        if key.is_empty() {
            let at = fields.node("key").unwrap_or(node);
            self.findings.push(at.error("expected a key").at(format!("{path}.key")));
        }
        if Some(&*key) == trail.plan_entry.as_deref() {
            let at = fields.node("key").unwrap_or(node);
            let why = "`plans.entry` removes this key from descriptors: no request matches";
            self.findings.push(at.error(why).at(format!("{path}.key")));
        }
        let (matcher, written) = self.matcher(&fields);
        let mut trail = trail.into(number, &key, &written);
        if trail.name.len() > MAX_NAME {
            let why = format!("keys and values down to here are longer than {MAX_NAME} bytes");
            self.findings.push(node.error(why).at(&*path));
            return None;
        }
        let shares = fields.flag("share_threshold", self.findings);
        if shares && !matches!(matcher, Matcher::Stars(_)) {
            let at = fields.node("share_threshold").unwrap_or(node);
            let why = "only values with a * can share a threshold";
            self.findings.push(at.error(why).at(format!("{path}.share_threshold")));
        }
        let prefixes = self.prefixes(&fields, &matcher);
        trail.shares_state = shares || prefixes.is_some_and(|it| it != Prefixes::WHOLE);
        let metric = self.metric(&fields);
        trail.varies |= metric == MetricDetail::Value;
        let limits = limits::read(&fields, &trail, defaults, self.findings);
        let quota = fields.flag("quota_mode", self.findings);
        limits::hot::check_local(&limits, quota, &trail, (node, &path), self.findings);
        let below = self.descriptors(&fields, &trail, defaults);
        let next = complete(&below, self.findings);
        let rule = RuleId::try_from(self.rules.len()).ok()?;
        let wants = matcher.in_words().into();
        let step = step_of(&key, &written).into();
        let shared_as = shares.then(|| written.into());
        let metadata = fields.node("metadata").and_then(|node| {
            let map = node.as_map().map_err(|it| self.findings.push(it.at(fields.at("metadata"))));
            map.ok().map(|_| metadata(node))
        });
        let (path_name, limits) = (trail.name.into(), limits.into());
        self.rules.push(Rule {
            path: path_name,
            wants,
            limits,
            next,
            shared_as,
            prefixes,
            quota,
            metric,
            step,
            stat: trail.stat.into(),
            varies: trail.varies,
            metadata,
        });
        Some(Drafted { key, matcher, rule, node, path })
    }

    fn metric(&mut self, fields: &Fields<'_>) -> MetricDetail {
        let mut flag = |field| fields.flag(field, self.findings);
        match (flag("detailed_metric"), flag("value_to_metric")) {
            (true, _) => MetricDetail::Everything,
            (false, true) => MetricDetail::Value,
            (false, false) => MetricDetail::Names,
        }
    }

    /// The prefix lengths of addresses; `None` if values are not addresses.
    fn prefixes(&mut self, fields: &Fields<'_>, matcher: &Matcher) -> Option<Prefixes> {
        let mut read = |field| fields.number(field, self.findings);
        let bits = |bits: Option<u64>, all: u8| {
            bits.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(all)
        };
        let whole = Prefixes::WHOLE;
        let (v4, v6) = (read("ipv4_prefix"), read("ipv6_prefix"));
        let counts = v4.is_some() || v6.is_some() || matches!(matcher, Matcher::Within(_));
        counts.then(|| Prefixes { v4: bits(v4, whole.v4), v6: bits(v6, whole.v6) })
    }

    /// Which values a descriptor matches, and how that was written.
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
            self.findings
                .push(node.error("`value` is given as well: remove one of the two").at(&*path));
        }
        self.native_matcher(node, &path).unwrap_or((Matcher::Any, value))
    }

    fn native_matcher(&mut self, node: &Node, path: &str) -> Option<(Matcher, String)> {
        let fields = Fields::of(node, path, &language::MATCH, self.findings)?;
        let ways: Vec<&str> = language::MATCH.all().map(|field| field.name).collect();
        let given: Vec<&str> =
            ways.iter().copied().filter(|way| fields.node(way).is_some()).collect();
        let [way] = given[..] else {
            let why = format!("expected exactly one of {}", ways.join(", "));
            self.findings.push(node.error(why).at(path));
            return None;
        };
        if way == "one_of" {
            let texts = fields.texts(way, self.findings);
            let mut texts: Vec<String> = texts.into_iter().map(str::to_owned).collect();
            texts.sort_unstable();
            let count = texts.len();
            texts.dedup();
            if texts.is_empty() || texts.len() < count {
                let why = "expected at least one value, and each once";
                self.findings.push(node.error(why).at(fields.at(way)));
                return None;
            }
            let written = format!("one_of:{}", texts.join("|"));
            return Some((Matcher::OneOf(texts), written));
        }
        let text = fields.text(way, self.findings)?.to_owned();
        let written = format!("{way}:{text}");
        let matcher = match way {
            "prefix" if text.is_empty() => {
                self.findings.push(
                    node.error("an empty prefix matches every value: leave out `match`").at(path),
                );
                return None;
            }
            "prefix" => Matcher::Prefix(text),
            "glob" if !text.contains('*') => {
                let why = "a glob contains a `*`; use `value` for a single value";
                self.findings.push(node.error(why).at(fields.at(way)));
                return None;
            }
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
        Kind::Scalar { text, .. } => match node.as_bool() {
            Ok(flag) => Metadata::Bool(flag),
            Err(_) if node.is_number() => Metadata::Number((&**text).into()),
            Err(_) => Metadata::Text((&**text).into()),
        },
        Kind::List(items) => Metadata::List(items.iter().map(metadata).collect()),
        Kind::Map(pairs) => {
            let pair = |(key, value): &(Node, Node)| {
                (key.as_text().unwrap_or_default().into(), metadata(value))
            };
            Metadata::Map(pairs.iter().map(pair).collect())
        }
    }
}

/// The text with a backslash before every backslash and every separator in `marks`.
fn escaped(text: &str, marks: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || marks.contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
