//! Finds the rule that applies to a descriptor, and builds the key of its state.

use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;

use tidegate_core::shed::Class;

use crate::policy::http::Described;
use crate::policy::matching::level::RuleId;
use crate::policy::model::descriptor::Entry;
use crate::policy::model::rule::{Domain, Rule};

/// The rule that matches a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Match<'p, 'a> {
    /// The rule's number in the domain.
    pub(in crate::policy) id: RuleId,
    /// The rule.
    pub rule: &'p Rule,
    /// The value of the last entry.
    pub value: &'a str,
    /// The plan of the request.
    pub plan: Option<&'a str>,
    /// Range of the key text that keeps the keys of one tenant together (the hash tag).
    pub(in crate::policy) tag: (usize, usize),
}

impl Domain {
    /// The rule that matches exactly these entries, neither fewer nor more. Appends the key of its
    /// state to `text`.
    ///
    /// Values are separated by a comma, and a comma or a backslash within a value is escaped, so
    /// that no two descriptors share a key.
    pub fn resolve<'p: 'a, 'a>(
        &'p self,
        entries: &[Entry<'a>],
        text: &mut Vec<u8>,
    ) -> Option<Match<'p, 'a>> {
        let (mut level, mut found) = (&self.first, None::<Match<'p, 'a>>);
        let (mut plan, mut member, mut tag) = (None, None, None);
        for entry in entries {
            if self.plans.entry.as_deref() == Some(entry.key) {
                plan = Some(entry.value);
                continue;
            }
            if self.plans.key.as_deref() == Some(entry.key) {
                member = self.plans.members.get(entry.value).map(|plan| &**plan);
            }
            let id = level.find(entry.key, entry.value)?;
            let rule = self.rule(id);
            if found.is_some() {
                text.push(b',');
            }
            let start = text.len();
            match &rule.shared_as {
                Some(shared) => escape(shared, text),
                None if rule.prefixes.is_some_and(|it| it.write(entry.value, text)) => {}
                None => escape(entry.value, text),
            }
            // The tag is the value as kept in the key, so that values that share a state also share
            // its hash slot.
            let kept = (start, text.len());
            if tag.is_none() && self.tag.as_deref().is_none_or(|key| key == entry.key) {
                tag = Some(kept);
            }
            let first = found.map_or(kept, |found| found.tag);
            found = Some(Match { id, rule, value: entry.value, plan: None, tag: first });
            level = &rule.next;
        }
        let found = found?;
        Some(Match { plan: plan.or(member), tag: tag.unwrap_or(found.tag), ..found })
    }

    /// The class of a request: that of its rule, or else of its plan, or else the default; changed by the
    /// values of the header that names a class.
    pub fn class_of_request<'v>(
        &self,
        described: &Described<'_>,
        header: impl Iterator<Item = &'v [u8]>,
        peer: Option<IpAddr>,
    ) -> Class {
        let classes = self.classes();
        let of_plan = || described.descriptors().find_map(|entries| self.class_of_plan(entries));
        let class = described.class().or_else(of_plan).unwrap_or(classes.default_class());
        classes.by_header(class, header, peer)
    }

    /// The class of the plan that some entries of a request name.
    fn class_of_plan(&self, entries: &[(&str, Cow<'_, str>)]) -> Option<Class> {
        let value_of = |key: Option<&str>| {
            entries.iter().find(|(known, _)| Some(*known) == key).map(|(_, value)| &**value)
        };
        let member =
            || self.plans.members.get(value_of(self.plans.key.as_deref())?).map(|it| &**it);
        let plan = value_of(self.plans.entry.as_deref()).or_else(member)?;
        self.classes().of_plan(plan)
    }

    /// Number of leading entries that match, to explain why no rule applies.
    pub fn depth(&self, entries: &[Entry<'_>]) -> usize {
        let mut level = &self.first;
        let leads = |entry: &&Entry<'_>| {
            if self.plans.entry.as_deref() == Some(entry.key) {
                return true;
            }
            let found = level.find(entry.key, entry.value);
            if let Some(id) = found {
                level = &self.rule(id).next;
            }
            found.is_some()
        };
        entries.iter().take_while(leads).count()
    }
}

/// The key of a state whose limit came with the request: all entries, keys included.
pub(in crate::policy) fn whole_text(entries: &[Entry<'_>], text: &mut Vec<u8>) {
    for entry in entries {
        escape(entry.key, text);
        text.push(b',');
        escape(entry.value, text);
        text.push(b',');
    }
}

pub(in crate::policy) fn escape(value: &str, text: &mut Vec<u8>) {
    if !value.bytes().any(|byte| matches!(byte, b',' | b'\\')) {
        text.extend_from_slice(value.as_bytes());
        return;
    }
    for byte in value.bytes() {
        if matches!(byte, b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
}

impl crate::policy::matching::network::Prefixes {
    /// Appends the network of an address; returns false and appends nothing if the value is no
    /// address. The backslash before a digit, which no escaped value has, distinguishes it from
    /// values that look like a network.
    fn write(self, value: &str, text: &mut Vec<u8>) -> bool {
        match self.of(value) {
            Some(network) => write!(text, "\\{network}").is_ok(),
            None => false,
        }
    }
}
