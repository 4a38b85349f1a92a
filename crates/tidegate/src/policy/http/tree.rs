//! Finds the rules for a host and a path in time independent of the number of rules.
//!
//! There is one tree of segments for each exact host, one for each wildcard name, and one for all
//! hosts. A step in a tree is a lookup of the segment, and a second one where a parameter is
//! possible; each branch is entered at most once.

use std::collections::HashMap;

use foldhash::quality::RandomState;

use super::host::HostPattern;
use super::template::{Segment, Template};

/// Rule numbers by host and path.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    exact: HashMap<Box<str>, Branch, RandomState>,
    /// By the name after `*.`.
    below: HashMap<Box<str>, Branch, RandomState>,
    every: Branch,
}

/// A node of the tree: what may follow some segments.
#[derive(Clone, Debug, Default)]
struct Branch {
    literals: HashMap<Box<str>, Self, RandomState>,
    /// The empty segment, with which every path begins. Looking it up would compare texts without a byte,
    /// which takes some processors as long as all the rest.
    empty: Option<Box<Self>>,
    parameter: Option<Box<Self>>,
    /// Rules whose path ends here.
    ends: Vec<usize>,
    /// Rules with a `{name...}` here.
    rest: Vec<usize>,
}

impl Tree {
    /// Adds a rule for these hosts and this path; without hosts it applies to every host, without a
    /// path to every path.
    pub(super) fn add(&mut self, hosts: &[HostPattern], path: Option<&Template>, rule: usize) {
        if hosts.is_empty() {
            self.every.add(path, rule);
        }
        for host in hosts {
            let branch = match host {
                HostPattern::Exact(name) => self.exact.entry(name.clone()),
                HostPattern::Below(text) => {
                    self.below.entry(text.strip_prefix("*.").unwrap_or(text).into())
                }
            };
            branch.or_default().add(path, rule);
        }
    }

    /// The rules that match, in order, without duplicates. The caller bounds the length of the
    /// host.
    pub(super) fn find(&self, host: Option<&str>, path: &str) -> RuleNumbers {
        let mut found = RuleNumbers::default();
        self.every.find(Some(path), &mut found);
        if let Some(host) = host {
            let exact = self.exact.get(host).into_iter();
            let dots = host.match_indices('.').filter(|_| !self.below.is_empty());
            let below = dots.filter_map(|(dot, _)| self.below.get(&host[dot + 1..]));
            exact.chain(below).for_each(|branch| branch.find(Some(path), &mut found));
        }
        found.sort();
        found
    }
}

/// Numbers of rules. A few, which are all that most requests match, are kept without an allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct RuleNumbers {
    few: [usize; 8],
    count: usize,
    /// All of them, if they are more.
    many: Vec<usize>,
}

impl RuleNumbers {
    fn extend(&mut self, numbers: &[usize]) {
        let count = self.count + numbers.len();
        match self.few.get_mut(self.count..count).filter(|_| self.many.is_empty()) {
            Some(room) => room.copy_from_slice(numbers),
            None => {
                if self.many.is_empty() {
                    self.many.extend(&self.few[..self.count]);
                }
                self.many.extend(numbers);
            }
        }
        self.count = count;
    }

    /// In order and without duplicates.
    fn sort(&mut self) {
        if self.many.is_empty() {
            let few = &mut self.few[..self.count];
            few.sort_unstable();
            let mut kept = 0;
            for place in 0..few.len() {
                if place == 0 || few[place] != few[kept - 1] {
                    few[kept] = few[place];
                    kept += 1;
                }
            }
            self.count = kept;
        } else {
            self.many.sort_unstable();
            self.many.dedup();
            self.count = self.many.len();
        }
    }

    pub(super) fn into_iter(self) -> impl Iterator<Item = usize> {
        let few = if self.many.is_empty() { self.count } else { 0 };
        self.few.into_iter().take(few).chain(self.many)
    }
}

impl Branch {
    fn add(&mut self, path: Option<&Template>, rule: usize) {
        let mut branch = self;
        for segment in path.map(Template::segments).unwrap_or_default() {
            branch = match segment {
                Segment::Literal(text) if text.is_empty() => branch.empty.get_or_insert_default(),
                Segment::Literal(text) => branch.literals.entry(text.clone()).or_default(),
                Segment::One(_) => branch.parameter.get_or_insert_default(),
                Segment::Rest(_) => return branch.rest.push(rule),
            };
        }
        let rules = if path.is_some() { &mut branch.ends } else { &mut branch.rest };
        rules.push(rule);
    }

    /// `path` is the remaining path; `None` after the last segment.
    fn find(&self, path: Option<&str>, found: &mut RuleNumbers) {
        found.extend(&self.rest);
        let Some(path) = path else { return found.extend(&self.ends) };
        let (segment, after) = match path.split_once('/') {
            Some((segment, after)) => (segment, Some(after)),
            None => (path, None),
        };
        if segment.is_empty() {
            return self.empty.iter().for_each(|branch| branch.find(after, found));
        }
        if let Some(branch) = self.literals.get(segment) {
            branch.find(after, found);
        }
        if let Some(branch) = &self.parameter {
            branch.find(after, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented meaning of templates, segment by segment.
    fn matches(template: &[&str], path: &[&str]) -> bool {
        match (template, path) {
            ([], []) => true,
            ([rest], _) if rest.ends_with("...}") => true,
            ([first, template @ ..], [segment, path @ ..]) => {
                let is_parameter = first.starts_with('{') && !segment.is_empty();
                (is_parameter || first == segment) && matches(template, path)
            }
            _ => false,
        }
    }

    fn found(tree: &Tree, host: Option<&str>, path: &str) -> Vec<usize> {
        tree.find(host, path).into_iter().collect()
    }

    fn split(path: &str) -> Vec<&str> {
        path.split('/').collect()
    }

    #[test]
    fn a_tree_finds_what_a_scan_finds() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut text = |pieces: &[&str]| -> String {
            let count = rng.usize(1..5);
            (0..count).map(|_| format!("/{}", rng.choice(pieces).unwrap())).collect()
        };
        for round in 0..3_000 {
            let mut tree = Tree::default();
            let mut templates = Vec::new();
            while templates.len() < 12 {
                let text = text(&["a", "b", "a b", "", "..", "{x}", "{y}", "{z}", "{r...}"]);
                let Ok(template) = Template::parse(&text) else { continue };
                tree.add(&[], Some(&template), templates.len());
                templates.push(text);
            }
            for _ in 0..8 {
                let path = text(&["a", "b", "a b", "", "..", "ä"]);
                let path = if round % 9 == 0 { &path[1..] } else { &path };
                let scan: Vec<usize> = (0..templates.len())
                    .filter(|number| matches(&split(&templates[*number]), &split(path)))
                    .collect();
                assert_eq!(found(&tree, None, path), scan, "{templates:?} {path}");
            }
        }
    }

    #[test]
    fn hosts_are_found_exactly_and_below_a_name() {
        let mut tree = Tree::default();
        let lists: [&[&str]; 6] = [
            &["api.example.com"],
            &["*.example.com"],
            &["*.com", "api.example.com"],
            &[],
            &["Example.COM"],
            &["[::1]"],
        ];
        for (number, hosts) in lists.iter().enumerate() {
            let hosts: Vec<HostPattern> =
                hosts.iter().map(|host| HostPattern::parse(host).unwrap()).collect();
            tree.add(&hosts, None, number);
        }
        for (host, rules) in [
            (Some("api.example.com"), vec![0, 1, 2, 3]),
            (Some("v1.api.example.com"), vec![1, 2, 3]),
            (Some("example.com"), vec![2, 3, 4]),
            (Some("badexample.com"), vec![2, 3]),
            (Some("com"), vec![3]),
            (Some("[::1]"), vec![3, 5]),
            (Some(""), vec![3]),
            (None, vec![3]),
        ] {
            assert_eq!(found(&tree, host, "/"), rules, "{host:?}");
        }
    }

    /// More rules than are kept without an allocation, several of them twice.
    #[test]
    fn any_number_of_rules_is_found_once_and_in_order() {
        for count in 1..40 {
            let hosts = [HostPattern::parse("a.b").unwrap(), HostPattern::parse("*.b").unwrap()];
            let mut tree = Tree::default();
            (0..count).rev().for_each(|rule| tree.add(&hosts, None, rule));
            assert_eq!(found(&tree, Some("a.b"), "/"), (0..count).collect::<Vec<_>>());
        }
    }

    /// The work per path must not grow with the number of rules.
    #[test]
    fn ten_thousand_rules_share_their_branches() {
        let mut tree = Tree::default();
        for number in 0..10_000 {
            let template = Template::parse(&format!("/v1/{number}/{{id}}")).unwrap();
            tree.add(&[], Some(&template), number);
        }
        let first = &tree.every.empty.as_ref().unwrap().literals["v1"];
        assert_eq!(first.literals.len(), 10_000);
        assert!((0..10_000).all(|n| found(&tree, None, &format!("/v1/{n}/x")) == [n]));
    }
}
