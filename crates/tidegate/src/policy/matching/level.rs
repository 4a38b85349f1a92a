//! The rules of one level of descriptors, found by an entry's key and value.
//!
//! # Order
//! 1. The exact value, alone or in a list.
//! 2. Tidegate's matchers, the most specific first: the longest network; then the prefix or glob
//!    with the most characters that are not stars.
//! 3. Values with stars as in envoyproxy/ratelimit: the first in the file.
//! 4. The key without a value.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use crate::policy::matching::network::{Network, Networks, address};
use crate::policy::matching::pattern::Patterns;

/// The number of a rule in its domain.
pub(crate) type RuleId = u32;

/// Rules by key.
#[derive(Clone, Debug, Default)]
pub(in crate::policy) struct Level {
    keys: HashMap<Box<str>, Values, RandomState>,
}

/// Which values of a key a rule matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Matcher {
    /// Every value that no other rule matches.
    Any,
    /// One of these values.
    OneOf(Vec<String>),
    /// A pattern with stars; the first in the file wins.
    Stars(String),
    /// Values that begin with this text.
    Prefix(String),
    /// A pattern with stars; the most specific wins.
    Glob(String),
    /// Addresses within this network.
    Within(Network),
}

impl Matcher {
    /// A description for `explain`.
    pub(in crate::policy) fn in_words(&self) -> String {
        match self {
            Self::Any => "any value without a more specific rule".into(),
            Self::OneOf(values) => match &values[..] {
                [value] => format!("the value {value}"),
                values => format!("one of {}", values.join(", ")),
            },
            Self::Stars(pattern) | Self::Glob(pattern) => format!("values like {pattern}"),
            Self::Prefix(prefix) => format!("values that begin with {prefix}"),
            Self::Within(network) => format!("addresses of {network}"),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Values {
    exact: HashMap<Box<str>, RuleId, RandomState>,
    networks: Networks<RuleId>,
    prefixes: HashMap<Box<str>, RuleId, RandomState>,
    /// Lengths of the prefixes, longest first.
    lengths: Vec<usize>,
    /// Sorted by specificity, so the first match is the most specific.
    globs: Patterns<(usize, RuleId)>,
    stars: Patterns<RuleId>,
    any: Option<RuleId>,
}

impl Level {
    /// Builds a level. Also returns the indexes of the rules whose values an earlier rule already
    /// matches.
    pub(in crate::policy) fn build(rules: &[(String, Matcher, RuleId)]) -> (Self, Vec<usize>) {
        let mut level = Self::default();
        let mut twice = Vec::new();
        for (place, (key, matcher, rule)) in rules.iter().enumerate() {
            let values = level.keys.entry(key.as_str().into()).or_default();
            if !values.add(matcher, *rule) {
                twice.push(place);
            }
        }
        let literal = |glob: &str| glob.chars().filter(|c| *c != '*').count();
        let mut globs: Vec<_> = rules
            .iter()
            .enumerate()
            .filter_map(|(place, (key, matcher, rule))| match matcher {
                Matcher::Glob(glob) => {
                    Some((std::cmp::Reverse(literal(glob)), glob, key, *rule, place))
                }
                _ => None,
            })
            .collect();
        globs.sort_by_key(|(specific, ..)| *specific);
        for (specific, glob, key, rule, place) in globs {
            let globs = &mut level.keys.entry(key.as_str().into()).or_default().globs;
            if !globs.add(glob, (specific.0, rule)) {
                twice.push(place);
            }
        }
        for values in level.keys.values_mut() {
            values.globs.finish();
            values.stars.finish();
        }
        (level, twice)
    }

    /// The rule for an entry.
    pub(in crate::policy) fn find(&self, key: &str, value: &str) -> Option<RuleId> {
        self.keys.get(key)?.find(value)
    }
}

impl Values {
    fn add(&mut self, matcher: &Matcher, rule: RuleId) -> bool {
        match matcher {
            Matcher::Any => self.any.replace(rule).is_none(),
            Matcher::OneOf(values) => {
                let known =
                    |value: &&String| self.exact.insert(value.as_str().into(), rule).is_some();
                values.iter().filter(known).count() == 0
            }
            Matcher::Stars(text) => {
                // A value that equals the pattern itself is an exact match.
                self.exact.entry(text.as_str().into()).or_insert(rule);
                self.stars.add(text, rule)
            }
            Matcher::Prefix(prefix) => {
                if !self.lengths.contains(&prefix.len()) {
                    self.lengths.push(prefix.len());
                    self.lengths.sort_unstable_by(|a, b| b.cmp(a));
                }
                self.prefixes.insert(prefix.as_str().into(), rule).is_none()
            }
            // Globs are added once all are known, because they are sorted by specificity.
            Matcher::Glob(_) => true,
            Matcher::Within(network) => self.networks.add(*network, rule),
        }
    }

    fn find(&self, value: &str) -> Option<RuleId> {
        let exact = self.exact.get(value).copied();
        let found = exact.or_else(|| self.find_specific(value));
        found.or_else(|| self.stars.first(value)).or(self.any)
    }

    fn find_specific(&self, value: &str) -> Option<RuleId> {
        let network = match self.networks.is_empty() {
            true => None,
            false => address(value).and_then(|address| self.networks.longest(address)),
        };
        network.or_else(|| {
            let prefixes = self.lengths.iter().filter_map(|length| value.get(..*length));
            let found = |prefix: &str| {
                self.prefixes.get(prefix).map(|rule| (prefix.chars().count(), *rule))
            };
            let prefix = prefixes.filter_map(found).next();
            match (prefix, self.globs.first(value)) {
                (Some((longer, rule)), Some((shorter, _))) if longer >= shorter => Some(rule),
                (prefix, glob) => glob.or(prefix).map(|(_, rule)| rule),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(rules: &[(&str, Matcher)]) -> (Level, Vec<usize>) {
        let number = |n: usize| RuleId::try_from(n).unwrap();
        let rules: Vec<_> = rules
            .iter()
            .enumerate()
            .map(|(n, (key, matcher))| ((*key).to_owned(), matcher.clone(), number(n)))
            .collect();
        Level::build(&rules)
    }

    fn text(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn the_most_specific_rule_applies() {
        let (level, twice) = level(&[
            ("ip", Matcher::Any),
            ("ip", Matcher::Within(Network::parse("10.0.0.0/8").unwrap())),
            ("ip", Matcher::OneOf(vec![text("10.0.0.1"), text("10.0.0.2")])),
            ("path", Matcher::Glob(text("/v1/*"))),
            ("path", Matcher::Glob(text("/v1/*/items"))),
            ("path", Matcher::Prefix(text("/v1/a"))),
            ("path", Matcher::Prefix(text("/v1/ab"))),
            ("path", Matcher::Stars(text("*z"))),
            ("path", Matcher::Stars(text("*"))),
        ]);
        assert_eq!(twice, [0; 0]);
        for (key, value, rule) in [
            ("ip", "10.0.0.2", Some(2)),
            ("ip", "10.0.0.3", Some(1)),
            ("ip", "11.0.0.3", Some(0)),
            ("ip", "not an address", Some(0)),
            ("path", "/v1/x", Some(3)),
            ("path", "/v1/x/items", Some(4)),
            ("path", "/v1/abc", Some(6)),
            ("path", "/v1/acz", Some(5)),
            ("path", "/v2/z", Some(7)),
            ("path", "", Some(8)),
            ("other", "x", None),
        ] {
            assert_eq!(level.find(key, value), rule, "{key} {value}");
        }
    }

    #[test]
    fn values_that_two_rules_match_are_reported() {
        let twice = |a: Matcher, b: Matcher| level(&[("k", a), ("k", b)]).1;
        let one = |value: &str| Matcher::OneOf(vec![text(value)]);
        assert_eq!(twice(one("a"), one("a")), [1]);
        assert_eq!(twice(one("a"), one("b")), [0; 0]);
        assert_eq!(twice(Matcher::Any, Matcher::Any), [1]);
        assert_eq!(twice(Matcher::Prefix(text("a")), Matcher::Prefix(text("a"))), [1]);
        assert_eq!(twice(Matcher::Stars(text("a*")), Matcher::Stars(text("a*"))), [1]);
        assert_eq!(twice(Matcher::Glob(text("a*")), Matcher::Glob(text("a*"))), [1]);
        assert_eq!(twice(Matcher::Stars(text("a*")), Matcher::Stars(text("*a"))), [0; 0]);
    }
}
