//! The field `requests`: rules that turn HTTP requests into descriptors.

pub(super) mod bypass;

use tidegate_core::shed::Class;

use super::fields::Fields;
use crate::policy::document::Node;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::http::{
    EntryRule, HostPattern, MAX_DESCRIBED, RequestRule, RequestRules, Source, Template, UNPROTECTED,
};
use crate::policy::language;
use crate::policy::model::overload::{Classes, Protection};

/// Sources without an argument.
const FLAGS: &[&str] = &["api_key", "client_ip", "host", "method", "path", "path_template"];
/// Sources that take a name or a text.
const NAMED: &[&str] = &["cookie", "header", "path_parameter", "query", "value"];
/// The most entries of a descriptor; each is copied for every request.
const MAX_ENTRIES: usize = 16;

/// Loads the field `requests` of a domain.
pub(super) fn read(
    node: &Node,
    path: &str,
    names: &Names<'_>,
    findings: &mut Findings,
) -> RequestRules {
    let errors = findings.errors();
    let Some(fields) = Fields::of(node, path, &language::REQUESTS, findings) else {
        return RequestRules::default();
    };
    let proxies = fields.number("trusted_proxies", findings).unwrap_or(0);
    let (mut rules, mut places) = (Vec::new(), Vec::new());
    for (number, node) in fields.list("rules", findings).iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("rules"));
        if let Some(rule) = rule(node, &path, names, findings) {
            rules.push(rule);
            places.push((node, path));
        }
    }
    let proxies = usize::try_from(proxies).unwrap_or(0);
    let rules = RequestRules::new(proxies, rules);
    // A rule whose path or host has an error would look like one for all paths or hosts.
    let is_whole = findings.errors() == errors;
    if let Some(number) = is_whole.then(|| rules.rule_above_max()).flatten() {
        let (node, path) = &places[number];
        findings.push(node.error(too_many_descriptors("this one")).at(&**path));
    }
    rules
}

/// Reports a rule that leads to too many descriptors, for the rules of several files together.
pub(super) fn check_descriptor_count(rules: &RequestRules, node: &Node, findings: &mut Findings) {
    if rules.rule_above_max().is_some() {
        findings.push(node.error(too_many_descriptors("a rule of another file")).at("requests"));
    }
}

fn too_many_descriptors(which: &str) -> String {
    format!(
        "together with the other rules that match, a request for {which} yields more than \
         {MAX_DESCRIBED} descriptors and is refused"
    )
}

/// The names that rules may use.
pub(super) struct Names<'a> {
    pub(super) classes: &'a Classes,
    pub(super) protections: &'a [Protection],
}

/// The class of a rule.
fn class(fields: &Fields<'_>, names: &Names<'_>, findings: &mut Findings) -> Option<Class> {
    let node = fields.node("class")?;
    let text = fields.text("class", findings)?;
    let class = names.classes.named(text);
    if class.is_none() {
        let known: Vec<&str> = names.classes.names().collect();
        let finding = match known[..] {
            [] => node.error("the file has no `classes`"),
            _ => node.mismatch(&format!("one of {}", known.join(", "))).suggesting(text, &known),
        };
        findings.push(finding.at(fields.at("class")));
    }
    class
}

/// The concurrency limiter of a rule.
fn protect(fields: &Fields<'_>, names: &Names<'_>, findings: &mut Findings) -> Option<Box<str>> {
    let node = fields.node("protect")?;
    let text = fields.text("protect", findings)?;
    let known: Vec<&str> = names.protections.iter().map(Protection::name).collect();
    if text != UNPROTECTED && !known.contains(&text) {
        let finding = match known[..] {
            [] => node.error("the file has no `protect` at its top level"),
            _ => node.mismatch(&format!("one of {}", known.join(", "))).suggesting(text, &known),
        };
        findings.push(finding.at(fields.at("protect")));
    }
    Some(text.into())
}

fn rule(
    node: &Node,
    path: &str,
    names: &Names<'_>,
    findings: &mut Findings,
) -> Option<RequestRule> {
    let fields = Fields::of(node, path, &language::REQUEST_RULE, findings)?;
    let template = fields.text("path", findings).and_then(|text| {
        let at = fields.node("path").unwrap_or(node);
        Template::parse(text).map_err(|why| findings.push(at.error(why).at(fields.at("path")))).ok()
    });
    let methods = texts(&fields, "methods", method, findings);
    if let Some((why, node)) = bypass::of_methods(&methods).zip(fields.node("methods")) {
        findings.push(node.warning(why).at(fields.at("methods")));
    }
    let hosts = texts(&fields, "hosts", HostPattern::parse, findings);
    let rule_path = RulePath {
        template: template.as_ref(),
        // A path with an error needs only one message.
        is_unread: template.is_none() && fields.node("path").is_some(),
    };
    let mut descriptors = Vec::new();
    let class = class(&fields, names, findings);
    let protect = protect(&fields, names, findings);
    let list = match class.is_some() || protect.is_some() {
        true => fields.list("descriptors", findings),
        false => not_empty(node, &fields, "descriptors", findings),
    };
    for (number, node) in list.iter().enumerate() {
        let path = format!("{}[{number}]", fields.at("descriptors"));
        let table = &language::REQUEST_DESCRIPTOR;
        let Some(fields) = Fields::of(node, &path, table, findings) else { continue };
        descriptors.push(entries(node, &fields, &rule_path, findings));
    }
    warn_of_shared_addresses(&descriptors, findings);
    let places: Vec<_> =
        descriptors.iter().map(|it| it.first().map(|it| (it.node, it.path.clone()))).collect();
    let bare = |entries: Vec<Written<'_>>| entries.into_iter().map(|entry| entry.rule).collect();
    let descriptors: Vec<Vec<EntryRule>> = descriptors.into_iter().map(bare).collect();
    for (entries, place) in descriptors.iter().zip(places) {
        if let Some((why, (node, path))) = bypass::of_descriptor(entries, &descriptors).zip(place) {
            findings.push(node.warning(why).at(path));
        }
    }
    Some(RequestRule { template, methods, hosts, descriptors, class, protect })
}

/// The path of a rule, whose parameters its entries may use.
struct RulePath<'a> {
    template: Option<&'a Template>,
    is_unread: bool,
}

/// An entry and its position in the file.
struct Written<'d> {
    rule: EntryRule,
    node: &'d Node,
    path: String,
}

fn entries<'d>(
    node: &'d Node,
    descriptor: &Fields<'d>,
    rule_path: &RulePath<'_>,
    findings: &mut Findings,
) -> Vec<Written<'d>> {
    let list = not_empty(node, descriptor, "entries", findings);
    if let Some(node) = list.get(MAX_ENTRIES) {
        let why = format!("a descriptor has at most {MAX_ENTRIES} entries");
        findings.push(node.error(why).at(descriptor.at("entries")));
    }
    let mut entries = Vec::new();
    for (number, node) in list.iter().enumerate() {
        let path = format!("{}[{number}]", descriptor.at("entries"));
        let table = &language::REQUEST_ENTRY;
        let Some(fields) = Fields::of(node, &path, table, findings) else { continue };
        let key = text(node, &fields, "key", findings);
        let default = fields.node("default").and_then(|_| text(node, &fields, "default", findings));
        let source = source((node, &path), &fields, rule_path, findings);
        if let (Some(key), Some(source)) = (key, source) {
            if let Some(why) = bypass::of_entry(&source) {
                findings.push(node.warning(why).at(&*path));
            }
            let rule = EntryRule { key: key.into(), source, default: default.map(Into::into) };
            entries.push(Written { rule, node, path });
        }
    }
    entries
}

/// The source of an entry; exactly one must be given.
fn source(
    (entry, path): (&Node, &str),
    fields: &Fields<'_>,
    rule_path: &RulePath<'_>,
    findings: &mut Findings,
) -> Option<Source> {
    let sources = FLAGS.iter().chain(NAMED).copied();
    let given: Vec<&str> = sources.filter(|source| fields.node(source).is_some()).collect();
    let [source] = given[..] else {
        let found = if given.is_empty() { "none".to_owned() } else { given.join(" and ") };
        let known = [FLAGS, NAMED].concat().join(", ");
        let why = format!("expected exactly one source, found {found}; sources are {known}");
        findings.push(entry.error(why).at(path));
        return None;
    };
    let node = fields.node(source).unwrap_or(entry);
    if FLAGS.contains(&source) {
        let is_mentioned = node.as_bool().is_ok_and(|flag| flag);
        if !is_mentioned {
            findings.push(node.mismatch("true").at(fields.at(source)));
            return None;
        }
        return flag(source, node, fields, rule_path, findings);
    }
    let name = text(entry, fields, source, findings)?;
    match source {
        "cookie" | "header" if !is_token(name) => {
            findings.push(node.mismatch(&format!("the name of a {source}")).at(fields.at(source)));
            None
        }
        "cookie" => Some(Source::Cookie(name.into())),
        "header" => Some(Source::Header(name.into())),
        "query" => Some(Source::Query(name.into())),
        "path_parameter" => {
            let parameter = rule_path.template.and_then(|template| template.parameter(name));
            if parameter.is_none() && !rule_path.is_unread {
                let why = format!("the rule's `path` has no parameter {}", quoted(name));
                findings.push(node.error(why).at(fields.at(source)));
            }
            parameter.map(Source::PathParameter)
        }
        _ => Some(Source::Value(name.into())),
    }
}

fn flag(
    source: &str,
    node: &Node,
    fields: &Fields<'_>,
    rule_path: &RulePath<'_>,
    findings: &mut Findings,
) -> Option<Source> {
    match source {
        "api_key" => Some(Source::ApiKey),
        "client_ip" => Some(Source::ClientIp),
        "host" => Some(Source::Host),
        "method" => Some(Source::Method),
        "path" => Some(Source::Path),
        _ => {
            if rule_path.template.is_none() && !rule_path.is_unread {
                let why = "the rule has no `path` to take the template from";
                findings.push(node.error(why).at(fields.at(source)));
            }
            rule_path.template.map(|template| Source::Value(template.text().into()))
        }
    }
}

/// A required, non-empty text.
fn text<'d>(
    parent: &'d Node,
    fields: &Fields<'d>,
    field: &str,
    findings: &mut Findings,
) -> Option<&'d str> {
    let Some(node) = fields.node(field) else {
        findings.push(parent.error(format!("expected a `{field}`")).at(fields.at(field)));
        return None;
    };
    let text = fields.text(field, findings)?;
    if text.is_empty() {
        findings.push(node.mismatch("a text that is not empty").at(fields.at(field)));
    }
    Some(text).filter(|text| !text.is_empty())
}

/// A required, non-empty list.
fn not_empty<'d>(
    parent: &'d Node,
    fields: &Fields<'d>,
    field: &str,
    findings: &mut Findings,
) -> &'d [Node] {
    let list = fields.list(field, findings);
    let node = fields.node(field);
    // A value that is no list has been reported already.
    if node.is_none_or(|node| node.as_list().is_ok_and(<[Node]>::is_empty)) {
        let why = format!("`{field}` must not be empty");
        findings.push(node.unwrap_or(parent).error(why).at(fields.at(field)));
    }
    list
}

/// A list of texts, each parsed by `parse`, which returns what it expected on error. Empty if
/// absent.
fn texts<T>(
    fields: &Fields<'_>,
    field: &str,
    parse: impl Fn(&str) -> Result<T, &'static str>,
    findings: &mut Findings,
) -> Vec<T> {
    let Some(node) = fields.node(field) else { return Vec::new() };
    let mut read = Vec::new();
    for (number, node) in not_empty(node, fields, field, findings).iter().enumerate() {
        let parsed = node.as_text().and_then(|text| parse(text).map_err(|e| node.mismatch(e)));
        match parsed {
            Ok(value) => read.push(value),
            Err(finding) => findings.push(finding.at(format!("{}[{number}]", fields.at(field)))),
        }
    }
    read
}

/// Parses a method. Methods are case-sensitive, so `get` would match no request.
fn method(text: &str) -> Result<Box<str>, &'static str> {
    let is_method = is_token(text) && !text.bytes().any(|byte| byte.is_ascii_lowercase());
    if is_method { Ok(text.into()) } else { Err("a method in capitals, such as GET") }
}

/// Whether the text is a token as in HTTP: the names of headers, cookies and methods are.
pub(super) fn is_token(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token)
}

/// Warns about a limit by address alone where clients are also identified by other means.
fn warn_of_shared_addresses(descriptors: &[Vec<Written<'_>>], findings: &mut Findings) {
    let mut entries = descriptors.iter().flatten();
    if !entries.any(|entry| entry.rule.source.is_credential()) {
        return;
    }
    for entries in descriptors {
        let mut identities = entries.iter().filter(|entry| entry.rule.source.is_identity());
        let (first, second) = (identities.next(), identities.next());
        if let (Some(only), None) = (first, second)
            && only.rule.source == Source::ClientIp
        {
            let why = "a limit by address although clients have keys: all clients behind one \
                       address, such as a company's gateway, share the limit";
            findings.push(only.node.warning(why).at(&*only.path));
        }
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
