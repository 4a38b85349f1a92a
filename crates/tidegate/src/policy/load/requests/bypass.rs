//! Warnings about rules of `requests` that a client can bypass.

use crate::policy::document::Node;
use crate::policy::document::finding::Findings;
use crate::policy::http::{EntryRule, RequestRule, RequestRules, Source, Template};

/// Headers in which proxies report the client's address, and which clients can send too.
const ADDRESSES: &[&str] = &[
    "cf-connecting-ip",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "true-client-ip",
    "x-client-ip",
    "x-forwarded-for",
    "x-real-ip",
];

const ADDRESS: &str = "clients can send this header with any address: use `client_ip: true` with \
                       `trusted_proxies`";
const CREDENTIALS: &str = "the same credentials can be written in several ways, each with its own \
                           quota: use `api_key: true`";
const CHOSEN: &str = "clients choose this value, and a new value gets a new quota: add a \
                      descriptor with `client_ip: true` or `api_key: true` to the rule";
const CHOSEN_HEADER: &str = "clients choose this value unless a proxy overwrites the header, and a \
                             new value, also two lines that a proxy joins with a comma, gets a new \
                             quota: add a descriptor with `client_ip: true` or `api_key: true` to \
                             the rule";
const HEAD: &str =
    "servers answer HEAD as GET without a body, and HEAD matches no rule for GET: add HEAD";
const OTHER_PATHS: &str = "a path that no rule lists has no limit, but servers that ignore case or \
                           a final slash serve /Login and /login/ as /login: add a rule without \
                           `path`";
const ABSENT: &str = "a request without any of the headers, cookies and query fields of these \
                      rules has no limit: add a `default` to an entry, or a descriptor with \
                      `client_ip: true`";

/// Why a client can bypass a limit on this entry.
pub(in crate::policy::load) fn of_entry(source: &Source) -> Option<&'static str> {
    let Source::Header(name) = source else { return None };
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    if ADDRESSES.iter().any(|known| is(known)) {
        return Some(ADDRESS);
    }
    is("authorization").then_some(CREDENTIALS)
}

/// Why this list of methods misses one.
pub(in crate::policy::load) fn of_methods(methods: &[Box<str>]) -> Option<&'static str> {
    let has = |method: &str| methods.iter().any(|known| **known == *method);
    (has("GET") && !has("HEAD")).then_some(HEAD)
}

/// Why a client can bypass this descriptor, unless another one of the rule applies: its identity is
/// a cookie, a query field or a header without credentials.
pub(in crate::policy::load) fn of_descriptor(
    entries: &[EntryRule],
    rule: &[Vec<EntryRule>],
) -> Option<&'static str> {
    let held = |entry: &EntryRule| entry.source == Source::ClientIp || entry.source.is_credential();
    if rule.iter().flatten().any(held) {
        return None;
    }
    entries.iter().find_map(|entry| match &entry.source {
        Source::Cookie(_) | Source::Query(_) => Some(CHOSEN),
        // Headers that `of_entry` warns about need no second warning.
        source @ Source::Header(_) if of_entry(source).is_none() => Some(CHOSEN_HEADER),
        _ => None,
    })
}

/// Warns about requests that no rule of the domain limits.
pub(in crate::policy::load) fn check(rules: &RequestRules, node: &Node, findings: &mut Findings) {
    let rules = rules.rules();
    let is_for_all = |rule: &RequestRule| {
        let has_every_path = rule.template.as_ref().is_none_or(Template::matches_every_path);
        has_every_path && rule.methods.is_empty() && rule.hosts.is_empty()
    };
    if rules.iter().any(|rule| rule.template.is_some()) && !rules.iter().any(is_for_all) {
        findings.push(node.warning(OTHER_PATHS).at("requests"));
    }
    let is_absent = |entry: &EntryRule| {
        let may_lack = matches!(
            entry.source,
            Source::ApiKey | Source::Cookie(_) | Source::Header(_) | Source::Query(_)
        );
        may_lack && entry.default.is_none()
    };
    let always = |entries: &Vec<EntryRule>| !entries.iter().any(is_absent);
    if !rules.is_empty() && !rules.iter().any(|rule| rule.descriptors.iter().any(always)) {
        findings.push(node.warning(ABSENT).at("requests"));
    }
}
