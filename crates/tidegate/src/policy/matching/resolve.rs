//! Which rule applies to a descriptor, and what its state is kept under.

use std::io::Write;

use crate::policy::matching::level::RuleId;
use crate::policy::model::descriptor::Entry;
use crate::policy::model::rule::{Domain, Rule};

/// The rule that a descriptor leads to.
#[derive(Clone, Copy, Debug)]
pub struct Match<'p, 'a> {
    /// Its number in the domain.
    pub(in crate::policy) id: RuleId,
    /// The rule.
    pub rule: &'p Rule,
    /// The value of the last entry.
    pub value: &'a str,
    /// The plan of whoever asks.
    pub plan: Option<&'a str>,
    /// Which part of the text keeps the keys of one tenant together, from and to.
    pub(in crate::policy) tag: (usize, usize),
}

impl Domain {
    /// The rule that these entries lead to: at exactly the last of them, neither before nor beyond.
    /// Appends to `text` what a state of it is kept under.
    ///
    /// Values are told apart by a comma, and a comma or a backslash within one is escaped, so that no
    /// two descriptors share a text.
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
            // What is kept of a value, for values that share a state must share its place as well.
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

    /// How many entries lead somewhere, for whoever wonders why no rule applies.
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

/// What a state is kept under where the limit came with the request: all entries, keys included.
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
    /// Appends the network of an address; false, and nothing, if the value is none. A backslash, which before a digit no escaped value has, keeps it apart from values
    /// that only look like a network.
    fn write(self, value: &str, text: &mut Vec<u8>) -> bool {
        match self.of(value) {
            Some(network) => write!(text, "\\{network}").is_ok(),
            None => false,
        }
    }
}
