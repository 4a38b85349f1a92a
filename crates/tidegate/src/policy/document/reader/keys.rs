//! The keys of a map: unique, and merged with those of `<<`.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::{Kind, Node};
use super::Reader;
use crate::policy::document::finding::{Location, quoted};

impl Reader<'_> {
    /// Keys and values; reports duplicate keys and merges those of `<<`.
    pub(super) fn pairs(&mut self, children: Vec<Node>) -> Vec<(Node, Node)> {
        let mut pairs = Vec::with_capacity(children.len() / 2);
        let mut merged = Vec::new();
        let mut seen: HashMap<Arc<str>, Location> = HashMap::new();
        let mut children = children.into_iter();
        while let (Some(key), Some(value)) = (children.next(), children.next()) {
            let Kind::Scalar { text, plain } = &key.kind else {
                self.findings.push(key.mismatch("text as a key").at(self.path()));
                continue;
            };
            if let Some(first) = seen.get(text) {
                let message =
                    format!("the key {} was already given on line {}", quoted(text), first.line);
                self.findings.push(key.error(message).at(self.path()));
                continue;
            }
            seen.insert(Arc::clone(text), key.place);
            if *plain && &**text == "<<" {
                merged.push(value);
            } else {
                pairs.push((key, value));
            }
        }
        for source in merged {
            self.merge(&source, &mut pairs, &mut seen);
        }
        pairs
    }

    /// Merges `<<`. Keys of the map itself win over merged ones, an earlier source over a later
    /// one.
    fn merge(
        &mut self,
        source: &Node,
        pairs: &mut Vec<(Node, Node)>,
        seen: &mut HashMap<Arc<str>, Location>,
    ) {
        let maps = match &source.kind {
            Kind::List(maps) => maps.as_slice(),
            Kind::Scalar { .. } | Kind::Map(_) | Kind::Null => std::slice::from_ref(source),
        };
        for map in maps {
            let Kind::Map(brought) = &map.kind else {
                let finding = map.mismatch("a map, or a list of maps, to merge with <<");
                self.findings.push(finding.at(self.path()));
                continue;
            };
            for (key, value) in brought.iter() {
                let Kind::Scalar { text, .. } = &key.kind else { continue };
                if !seen.contains_key(text) {
                    seen.insert(Arc::clone(text), key.place);
                    pairs.push((key.clone(), value.clone()));
                }
            }
        }
    }
}
