//! Rules that turn an HTTP request into descriptors.
//!
//! # Meaning
//! Every rule whose path, method and host match applies, in the order of the file. Each of its
//! descriptors is yielded if the request has all that its entries ask for; an entry that is absent (or
//! empty) and has no default drops its whole descriptor, as in Envoy. Two rules that yield the same
//! descriptor charge it twice.
//!
//! Paths are compared byte by byte, as they came: neither percent-encoding nor `..` is resolved. Where
//! what stands behind resolves them, one page has many paths, so a rule without a path has to hold
//! those who try.
//!
//! # Bounds
//! [`MAX_DESCRIBED`] for one request. Values are as long as the door allows a header to be.

mod client;
mod host;
mod source;
mod template;
mod tree;

use std::borrow::Cow;
use std::net::IpAddr;

pub(crate) use self::host::HostPattern;
pub(crate) use self::source::Source;
pub(crate) use self::template::Template;

use self::source::Facts;
use self::tree::Tree;

/// How many descriptors one request yields at most.
pub const MAX_DESCRIBED: usize = 16;

/// What is asked for where a rule takes every method, to see how many rules meet.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// What a door knows of an HTTP request.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// In capitals, as it came.
    pub method: &'a str,
    /// From the first slash on. What follows a `?` is the query.
    pub path: &'a str,
    /// Whom the request is for, perhaps with a port; the header `host` if this is none.
    pub host: Option<&'a str>,
    /// Names, in any case, and values, in the order they came.
    pub headers: &'a [(&'a str, &'a str)],
    /// Who opened the connection.
    pub peer: Option<IpAddr>,
}

/// The descriptors of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described<'a> {
    entries: Vec<(&'a str, Cow<'a, str>)>,
    /// Where each descriptor ends in the list of entries.
    ends: Vec<usize>,
    left_out: usize,
}

/// The rules of one domain.
#[derive(Clone, Debug, Default)]
pub struct RequestRules {
    trusted_proxies: usize,
    rules: Vec<RequestRule>,
    tree: Tree,
}

/// One rule, as read.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestRule {
    /// None: every path.
    pub(crate) template: Option<Template>,
    /// Empty: every method.
    pub(crate) methods: Vec<Box<str>>,
    /// Empty: every host, known or not.
    pub(crate) hosts: Vec<HostPattern>,
    /// Each a list of entries.
    pub(crate) descriptors: Vec<Vec<EntryRule>>,
}

/// Where an entry's value comes from.
#[derive(Clone, Debug)]
pub(crate) struct EntryRule {
    pub(crate) key: Box<str>,
    pub(crate) source: Source,
    pub(crate) default: Option<Box<str>>,
}

impl<'a> Described<'a> {
    /// The descriptors, each a list of keys and values.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = &[(&'a str, Cow<'a, str>)]> {
        self.ends.iter().enumerate().map(|(number, end)| {
            let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.entries[start..*end]
        })
    }

    /// How many descriptors of rules that apply were not looked at, because [`MAX_DESCRIBED`] others
    /// came before.
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    fn add(&mut self, descriptor: &'a [EntryRule], facts: &Facts<'a>) {
        if self.ends.len() == MAX_DESCRIBED {
            self.left_out += 1;
            return;
        }
        let start = self.entries.len();
        for entry in descriptor {
            let value = entry.source.value(facts).filter(|value| !value.is_empty());
            let Some(value) = value.or_else(|| entry.default.as_deref().map(Cow::Borrowed)) else {
                self.entries.truncate(start);
                return;
            };
            self.entries.push((&entry.key, value));
        }
        self.ends.push(self.entries.len());
    }
}

impl RequestRules {
    /// Rules in the order of the file. With `trusted_proxies` of our own between clients and the door,
    /// a client's address is the one that the farthest of them saw.
    pub(crate) fn new(trusted_proxies: usize, rules: Vec<RequestRule>) -> Self {
        let mut tree = Tree::default();
        for (number, rule) in rules.iter().enumerate() {
            tree.add(&rule.hosts, rule.template.as_ref(), number);
        }
        Self { trusted_proxies, rules, tree }
    }

    /// Adds the rules of another file; the longer chain of proxies counts.
    pub(super) fn extend(&mut self, other: Self) {
        if other.rules.is_empty() && other.trusted_proxies == 0 {
            return;
        }
        let proxies = self.trusted_proxies.max(other.trusted_proxies);
        let mut rules = std::mem::take(&mut self.rules);
        rules.extend(other.rules);
        *self = Self::new(proxies, rules);
    }

    /// Whether there is no rule, so that no request yields anything.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What the rules say of a request.
    pub fn describe<'a>(&'a self, request: &HttpRequest<'a>) -> Described<'a> {
        let facts = Facts::of(request, self.trusted_proxies);
        let mut described = Described::default();
        for rule in self.matching(facts.host.as_deref(), facts.path, facts.method) {
            for descriptor in &rule.descriptors {
                described.add(descriptor, &facts);
            }
        }
        described
    }

    /// A rule such that a request can be made for which it and others ask for more than
    /// [`MAX_DESCRIBED`]. Not every such request is thought of: of the rules that a path leads to,
    /// only those that the paths of the file lead to.
    pub(crate) fn crowded(&self) -> Option<usize> {
        self.rules.iter().position(|rule| {
            // No literal segment has braces, so a template is a path that only parameters match.
            let path = rule.template.as_ref().map_or("/", Template::text);
            let hosts: Vec<Option<&str>> = match rule.hosts.is_empty() {
                true => vec![None],
                false => rule.hosts.iter().map(|host| Some(host.example())).collect(),
            };
            let methods: Vec<&str> = match rule.methods.is_empty() {
                true => METHODS.to_vec(),
                false => rule.methods.iter().map(|method| &**method).collect(),
            };
            let mut requests =
                hosts.iter().flat_map(|host| methods.iter().map(|method| (*host, *method)));
            requests.any(|(host, method)| {
                let rules = self.matching(host, path, method);
                let descriptors = rules.flat_map(|rule| &rule.descriptors);
                descriptors.take(MAX_DESCRIBED + 1).count() > MAX_DESCRIBED
            })
        })
    }

    fn matching(
        &self,
        host: Option<&str>,
        path: &str,
        method: &str,
    ) -> impl Iterator<Item = &RequestRule> {
        let found = self.tree.find(host, path).into_iter().map(|number| &self.rules[number]);
        found.filter(move |rule| {
            rule.methods.is_empty() || rule.methods.iter().any(|known| **known == *method)
        })
    }
}
