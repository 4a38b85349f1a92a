//! Rules that turn an HTTP request into descriptors.
//!
//! # Meaning
//! Every rule whose path, method and host match applies, in the order of the file. A rule yields
//! each of its descriptors for which the request has all entries; an entry that is absent (or
//! empty) and has no default drops its whole descriptor, as in Envoy. Two rules that yield the same
//! descriptor charge it twice.
//!
//! A path is normalised before it is compared ([`RequestTarget`]). A request that common servers
//! would read in different ways is refused ([`RequestError`]): an ambiguous path, or two different
//! values of a header, cookie or query field that a matching rule uses. Empty values are skipped.
//!
//! # Bounds
//! One request yields at most [`MAX_DESCRIBED`] descriptors; a request that would yield more is
//! refused. Values are as long as the listener allows a header to be.

mod client;
#[cfg(feature = "http")]
mod headers;
mod host;
#[cfg(feature = "http")]
mod identity;
mod source;
mod target;
mod template;
mod tree;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use tidegate_core::shed::Class;

#[cfg(feature = "http")]
#[doc(hidden)]
pub use self::headers::HeaderTexts;
pub(crate) use self::host::HostPattern;
#[doc(hidden)]
pub use self::host::normal_host;
#[cfg(feature = "http")]
#[doc(hidden)]
pub use self::identity::{api_key, client_ip, header_value, peer};
pub(crate) use self::source::Source;
#[doc(hidden)]
pub use self::target::{RequestTarget, TargetError};
pub(crate) use self::template::Template;

use self::host::MAX_HOST;
use self::source::{Facts, Headers};
use self::tree::Tree;

/// The most descriptors that one request may yield.
pub const MAX_DESCRIBED: usize = 16;

/// In place of the name of a concurrency limiter: none.
#[doc(hidden)]
pub const UNPROTECTED: &str = "none";

/// Methods tried for a rule without `methods`, to find how many rules match one request.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

/// An HTTP request as seen by a transport.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequest<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The request target as received, such as `/path?query`.
    pub path: &'a str,
    /// The host, perhaps with a port; if `None`, the header `host` is used.
    pub host: Option<&'a str>,
    /// Header names, in any case, and values, in the order received.
    pub headers: &'a [(&'a str, &'a str)],
    /// The address of the peer that opened the connection.
    pub peer: Option<IpAddr>,
}

/// The descriptors of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Described<'a> {
    entries: Vec<(&'a str, Cow<'a, str>)>,
    /// Index of the end of each descriptor in the list of entries.
    ends: Vec<usize>,
    /// Index of the first entry that tells users apart.
    user: Option<usize>,
    /// The class that a rule names.
    class: Option<Class>,
    /// The concurrency limiter that a rule names.
    protect: Option<&'a str>,
}

/// Why a request is refused before any limit is looked up. A client error (400), not a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestError {
    /// The path can be read in several ways.
    Target(TargetError),
    /// The request has several values of this header, cookie or query field, or one that can be read
    /// in several ways.
    Conflict(String),
    /// `Authorization` has more than a scheme and one word, or its `Basic` is not base64 of a user,
    /// a colon and a password.
    Credentials,
    /// The host is longer than any host name.
    Host,
    /// The rules yield more than [`MAX_DESCRIBED`] descriptors.
    TooManyDescriptors,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(error) => error.fmt(f),
            Self::Conflict(what) => {
                write!(
                    f,
                    "{what} has several values, or one that servers read differently; send one"
                )
            }
            Self::Credentials => f.write_str(
                "header authorization is not a scheme, a space and one word of ASCII, which for \
                 Basic \
                 is user:password in padded base64",
            ),
            Self::Host => write!(f, "the host has more than {MAX_HOST} bytes"),
            Self::TooManyDescriptors => {
                write!(f, "the rules yield more than {MAX_DESCRIBED} descriptors for this request")
            }
        }
    }
}

impl std::error::Error for RequestError {}

impl From<TargetError> for RequestError {
    fn from(error: TargetError) -> Self {
        Self::Target(error)
    }
}

/// The rules of one domain.
#[derive(Clone, Debug, Default)]
pub struct RequestRules {
    trusted_proxies: usize,
    rules: Vec<RequestRule>,
    tree: Tree,
}

/// One rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestRule {
    /// `None`: every path.
    pub(crate) template: Option<Template>,
    /// Empty: every method.
    pub(crate) methods: Vec<Box<str>>,
    /// Empty: every host, also an unknown one.
    pub(crate) hosts: Vec<HostPattern>,
    /// The descriptors, each a list of entries.
    pub(crate) descriptors: Vec<Vec<EntryRule>>,
    pub(crate) class: Option<Class>,
    /// The name of the concurrency limiter, or [`UNPROTECTED`].
    pub(crate) protect: Option<Box<str>>,
}

/// One entry of a descriptor and the source of its value.
#[derive(Clone, Debug)]
pub(crate) struct EntryRule {
    pub(crate) key: Box<str>,
    pub(crate) source: Source,
    pub(crate) default: Option<Box<str>>,
}

impl<'a> Described<'a> {
    /// The value that tells users apart, if the request has one.
    #[doc(hidden)]
    pub fn user(&self) -> Option<&str> {
        self.entries.get(self.user?).map(|(_, value)| &**value)
    }

    /// The class that a rule names.
    #[doc(hidden)]
    pub const fn class(&self) -> Option<Class> {
        self.class
    }

    /// The concurrency limiter that a rule names, or [`UNPROTECTED`].
    #[doc(hidden)]
    pub const fn protect(&self) -> Option<&'a str> {
        self.protect
    }

    /// The descriptors, each a list of keys and values.
    pub fn descriptors(&self) -> impl ExactSizeIterator<Item = &[(&'a str, Cow<'a, str>)]> {
        self.ends.iter().enumerate().map(|(number, end)| {
            let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.entries[start..*end]
        })
    }

    /// Adds a descriptor, once for each API key if it uses one.
    fn add(&mut self, descriptor: &'a [EntryRule], facts: &Facts<'a>) -> Result<(), RequestError> {
        let keys = match has_api_key(descriptor) {
            true => facts.api_keys()?,
            false => Vec::new(),
        };
        self.add_for(descriptor, facts, keys.first())?;
        keys.iter().skip(1).try_for_each(|key| self.add_for(descriptor, facts, Some(key)))
    }

    fn add_for(
        &mut self,
        descriptor: &'a [EntryRule],
        facts: &Facts<'a>,
        key: Option<&Cow<'a, str>>,
    ) -> Result<(), RequestError> {
        let start = self.entries.len();
        for entry in descriptor {
            let value = entry.source.value(facts, key)?;
            let Some(value) = value.or_else(|| entry.default.as_deref().map(Cow::Borrowed)) else {
                self.entries.truncate(start);
                return Ok(());
            };
            self.entries.push((&entry.key, value));
        }
        if self.ends.len() == MAX_DESCRIBED {
            return Err(RequestError::TooManyDescriptors);
        }
        self.ends.push(self.entries.len());
        let user = || descriptor.iter().position(|entry| entry.source.is_of_user());
        self.user = self.user.or_else(|| Some(start + user()?));
        Ok(())
    }
}

fn has_api_key(descriptor: &[EntryRule]) -> bool {
    descriptor.iter().any(|entry| entry.source == Source::ApiKey)
}

impl RequestRules {
    /// Rules in the order of the file. `trusted_proxies` is the number of our own proxies between
    /// clients and the listener; the client's address is the one that the outermost of them saw.
    pub(crate) fn new(trusted_proxies: usize, rules: Vec<RequestRule>) -> Self {
        let mut tree = Tree::default();
        for (number, rule) in rules.iter().enumerate() {
            tree.add(&rule.hosts, rule.template.as_ref(), number);
        }
        Self { trusted_proxies, rules, tree }
    }

    /// Adds the rules of another file; the larger number of trusted proxies applies.
    pub(super) fn extend(&mut self, other: Self) {
        if other.rules.is_empty() && other.trusted_proxies == 0 {
            return;
        }
        let proxies = self.trusted_proxies.max(other.trusted_proxies);
        let mut rules = std::mem::take(&mut self.rules);
        rules.extend(other.rules);
        *self = Self::new(proxies, rules);
    }

    pub(crate) fn rules(&self) -> &[RequestRule] {
        &self.rules
    }

    /// Whether any rule reads the path or the query.
    pub fn needs_target(&self) -> bool {
        self.rules.iter().any(|rule| {
            let mut entries = rule.descriptors.iter().flatten();
            rule.template.is_some() || entries.any(|entry| entry.source.is_of_target())
        })
    }

    /// Whether any rule reads the method.
    pub fn needs_method(&self) -> bool {
        self.rules.iter().any(|rule| {
            let mut entries = rule.descriptors.iter().flatten();
            !rule.methods.is_empty() || entries.any(|entry| entry.source.is_method())
        })
    }

    /// Whether any rule reads the address of the client.
    pub fn needs_peer(&self) -> bool {
        let entries = self.rules.iter().flat_map(|rule| rule.descriptors.iter().flatten());
        entries.into_iter().any(|entry| entry.source == Source::ClientIp)
    }

    /// Whether there is no rule, so that no request yields anything.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The descriptors of a request.
    ///
    /// # Errors
    /// If servers would read the request in different ways.
    pub fn describe<'a>(
        &'a self,
        request: &HttpRequest<'a>,
    ) -> Result<Described<'a>, RequestError> {
        self.describe_with(request, Headers::Pairs(request.headers))
    }

    /// The descriptors of a request with these headers in place of its own.
    #[cfg(feature = "http")]
    pub(in crate::policy) fn describe_texts<'a>(
        &'a self,
        request: &HttpRequest<'a>,
        headers: &'a HeaderTexts<'a>,
    ) -> Result<Described<'a>, RequestError> {
        self.describe_with(request, Headers::Map(headers))
    }

    fn describe_with<'a>(
        &'a self,
        request: &HttpRequest<'a>,
        headers: Headers<'a>,
    ) -> Result<Described<'a>, RequestError> {
        let facts = Facts::of(request, headers, self.trusted_proxies)?;
        let mut described = Described::default();
        for rule in self.matching(facts.host.as_deref(), &facts.path, facts.method) {
            described.class = described.class.or(rule.class);
            described.protect = described.protect.or(rule.protect.as_deref());
            for descriptor in &rule.descriptors {
                described.add(descriptor, &facts)?;
            }
        }
        Ok(described)
    }

    /// A rule for which some request exceeds [`MAX_DESCRIBED`] together with the other rules. Tries
    /// only paths that occur in the file, so it does not find every such request.
    pub(crate) fn rule_above_max(&self) -> Option<usize> {
        self.rules.iter().position(|rule| {
            // Literal segments have no braces, so a template's text is a path that only parameters
            // match.
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
                let count = |entries: &Vec<EntryRule>| 1 + usize::from(has_api_key(entries));
                descriptors.take(MAX_DESCRIBED + 1).map(count).sum::<usize>() > MAX_DESCRIBED
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
