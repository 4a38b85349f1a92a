//! Typed access to the fields of a map; reports each field that has an unexpected type or value.

use crate::policy::document::Node;
use crate::policy::document::finding::{Findings, quoted};
use crate::policy::document::nearest::nearest;
use crate::policy::language::{self, Kind, Table};

/// Keys of envoyproxy/ratelimit, which it accepts in any map and ignores where they have no
/// meaning.
const ENVOY_KEYS: &[&str] = &[
    "descriptors",
    "detailed_metric",
    "domain",
    "key",
    "metadata",
    "name",
    "quota_mode",
    "rate_limit",
    "replaces",
    "requests_per_unit",
    "shadow_mode",
    "share_threshold",
    "unit",
    "unlimited",
    "value",
    "value_to_metric",
];
/// The longest text of a field, because keys, values and names are stored many times.
const MAX_TEXT: usize = 1_024;

/// A map whose keys are all known.
pub(super) struct Fields<'d> {
    table: &'static Table,
    pairs: Vec<(&'d str, &'d Node)>,
    path: String,
}

impl<'d> Fields<'d> {
    /// The fields of `node`, if it is a map; reports keys that are not in the table.
    pub(super) fn of(
        node: &'d Node,
        path: &str,
        table: &'static Table,
        findings: &mut Findings,
    ) -> Option<Self> {
        let map = node.as_map().map_err(|finding| findings.push(finding.at(path))).ok()?;
        let mut fields = Self { table, pairs: Vec::with_capacity(map.len()), path: path.into() };
        for (key, value) in map {
            let Ok(name) = key.as_text() else {
                findings.push(key.mismatch("the name of a field").at(path));
                continue;
            };
            if table.field(name).is_some() {
                fields.pairs.push((name, value));
            } else if ENVOY_KEYS.contains(&name) && is_envoy_map(table) {
                let why = format!("`{name}` has no meaning here and is ignored");
                findings.push(key.warning(why).at(fields.at(name)));
            } else {
                let known: Vec<&str> = table.all().map(|field| field.name).collect();
                let advice = match nearest(name, &known) {
                    Some(meant) => format!("; did you mean `{meant}`?"),
                    None => format!("; expected one of {}", known.join(", ")),
                };
                let why = format!("unknown field {}{advice}", quoted(name));
                findings.push(key.error(why).at(fields.at(name)));
            }
        }
        Some(fields)
    }

    /// The path of a field, for messages.
    pub(super) fn at(&self, field: &str) -> String {
        if self.path.is_empty() { field.into() } else { format!("{}.{field}", self.path) }
    }

    pub(super) fn node(&self, field: &str) -> Option<&'d Node> {
        let found = self.pairs.iter().find(|(name, _)| *name == field).map(|(_, node)| *node);
        found.filter(|node| !node.is_null())
    }

    /// The first of these fields that is present.
    pub(super) fn first<'f>(&self, fields: &[&'f str]) -> Option<(&'f str, &'d Node)> {
        fields.iter().find_map(|field| Some((*field, self.node(field)?)))
    }

    pub(super) fn text(&self, field: &str, findings: &mut Findings) -> Option<&'d str> {
        let node = self.node(field)?;
        let read = node.as_text();
        let text = read.map_err(|finding| findings.push(finding.at(self.at(field)))).ok()?;
        if text.len() > MAX_TEXT {
            let why = format!("longer than {MAX_TEXT} bytes");
            findings.push(node.error(why).at(self.at(field)));
            return None;
        }
        Some(text)
    }

    /// The value of a flag; false if absent.
    pub(super) fn flag(&self, field: &str, findings: &mut Findings) -> bool {
        let Some(read) = self.node(field).map(Node::as_bool) else { return false };
        read.map_err(|finding| findings.push(finding.at(self.at(field)))).unwrap_or(false)
    }

    /// An integer within the bounds of the field.
    pub(super) fn number(&self, field: &str, findings: &mut Findings) -> Option<u64> {
        let node = self.node(field)?;
        let read = node.as_u64();
        let read = read.map_err(|finding| findings.push(finding.at(self.at(field)))).ok()?;
        let Some(Kind::Number(least, most)) = self.table.field(field).map(|field| &field.kind)
        else {
            return Some(read);
        };
        if !(*least..=*most).contains(&read) {
            let expected = format!("a number from {least} to {most}");
            findings.push(node.mismatch(&expected).at(self.at(field)));
            return None;
        }
        Some(read)
    }

    /// The texts of a list; empty if absent.
    pub(super) fn texts(&self, field: &str, findings: &mut Findings) -> Vec<&'d str> {
        let mut texts = Vec::new();
        for (number, node) in self.list(field, findings).iter().enumerate() {
            let at = || format!("{}[{number}]", self.at(field));
            match node.as_text() {
                Ok(text) => texts.push(text),
                Err(finding) => findings.push(finding.at(at())),
            }
        }
        texts
    }

    /// A map with names that the author chose; empty if absent.
    pub(super) fn named(&self, field: &str, findings: &mut Findings) -> Vec<(&'d str, &'d Node)> {
        let Some(node) = self.node(field) else { return Vec::new() };
        let path = self.at(field);
        let Ok(map) = node.as_map().map_err(|finding| findings.push(finding.at(&*path))) else {
            return Vec::new();
        };
        let mut named = Vec::new();
        for (key, value) in map {
            match key.as_text() {
                Ok(name) => named.push((name, value)),
                Err(finding) => findings.push(finding.at(&*path)),
            }
        }
        named
    }

    /// The list; empty if absent or not a list.
    pub(super) fn list(&self, field: &str, findings: &mut Findings) -> &'d [Node] {
        let Some(read) = self.node(field).map(Node::as_list) else { return &[] };
        read.map_err(|finding| findings.push(finding.at(self.at(field)))).unwrap_or(&[])
    }

    /// One of the field's allowed values.
    pub(super) fn choice(&self, field: &str, findings: &mut Findings) -> Option<&'static str> {
        let node = self.node(field)?;
        let Some(Kind::Choice(words)) = self.table.field(field).map(|field| &field.kind) else {
            return None;
        };
        let text = self.text(field, findings)?;
        let word = words.iter().copied().find(|word| *word == text);
        if word.is_none() {
            let expected = format!("one of {}", words.join(", "));
            let finding = node.mismatch(&expected).suggesting(text, words);
            findings.push(finding.at(self.at(field)));
        }
        word
    }
}

/// Whether files of envoyproxy/ratelimit have such maps.
fn is_envoy_map(table: &'static Table) -> bool {
    let tables =
        [&language::FILE, &language::DESCRIPTOR, &language::RATE_LIMIT, &language::REPLACES];
    tables.iter().any(|theirs| std::ptr::eq(*theirs, table))
}
