//! The values of a YAML file as a flat list, for readers of settings. Uses the bounded parser of
//! policies, which refuses duplicate keys and knows every position.

use crate::policy::document::finding::Findings;
use crate::policy::document::{Document, Kind, Node};

/// The deepest nesting of settings.
const MAX_DEPTH: usize = 16;

/// One value of a file and its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The keys on its path, outermost first.
    pub steps: Vec<Step>,
    /// The value; a list may be empty, and `None` means null.
    pub value: Option<LeafValue>,
    /// Its position, as `file:line:column`.
    pub at: String,
}

/// One key on the path to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The key.
    pub key: String,
    /// Its position, as `file:line:column`.
    pub at: String,
}

/// A scalar or a list of scalars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeafValue {
    /// A scalar as text, also for a number or a bool.
    Text(String),
    /// A list of scalars.
    List(Vec<String>),
}

/// All values of a file that is one map, in the order written; on errors, all of them, one
/// `file:line:column: message` per line. An empty file has no values.
pub fn leaves(file: &str, text: &str) -> Result<Vec<Leaf>, String> {
    let mut findings = Findings::default();
    let documents = Document::parse(file, text, &mut findings);
    let mut leaves = Vec::new();
    if let [document] = &*documents {
        if !document.root.is_null() {
            gather(&document.root, &mut Vec::new(), &mut leaves, &mut findings);
        }
    } else if let Some(second) = documents.get(1) {
        findings.push(second.root.error("a second document: a settings file has only one"));
    }
    if findings.errors() == 0 { Ok(leaves) } else { Err(findings.to_string()) }
}

fn gather(node: &Node, steps: &mut Vec<Step>, leaves: &mut Vec<Leaf>, findings: &mut Findings) {
    let path = |steps: &[Step]| steps.iter().map(|step| &*step.key).collect::<Vec<_>>().join(".");
    let map = match (&node.kind, steps.is_empty()) {
        (Kind::Map(map), _) => map,
        (_, true) => return findings.push(node.mismatch("a map")),
        (_, false) => {
            match value(node) {
                Ok(value) => leaves.push(Leaf { steps: steps.clone(), value, at: node.at() }),
                Err(finding) => findings.push(finding.at(path(steps))),
            }
            return;
        }
    };
    if steps.len() == MAX_DEPTH {
        let why = format!("maps are nested deeper than {MAX_DEPTH} levels");
        return findings.push(node.error(why).at(path(steps)));
    }
    for (key, below) in &**map {
        match key.as_text() {
            Ok(name) => {
                steps.push(Step { key: name.to_owned(), at: key.at() });
                gather(below, steps, leaves, findings);
                steps.pop();
            }
            Err(finding) => findings.push(finding.at(path(steps))),
        }
    }
}

fn value(node: &Node) -> Result<Option<LeafValue>, crate::policy::document::finding::Finding> {
    match &node.kind {
        Kind::Null => Ok(None),
        Kind::List(items) => {
            let texts = items.iter().map(|item| item.as_text().map(ToOwned::to_owned));
            Ok(Some(LeafValue::List(texts.collect::<Result<_, _>>()?)))
        }
        Kind::Scalar { .. } | Kind::Map(_) => Ok(Some(LeafValue::Text(node.as_text()?.to_owned()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_positions() {
        let text = "store:\n  url: memory\n  nodes: 3\nfiles: [a, b]\nnone:\n";
        let found = leaves("s.yaml", text).unwrap();
        let lines: Vec<String> = found
            .iter()
            .map(|leaf| {
                let steps: Vec<_> =
                    leaf.steps.iter().map(|step| format!("{}@{}", step.key, step.at)).collect();
                format!("{} {:?} {}", steps.join(" "), leaf.value, leaf.at)
            })
            .collect();
        let expected = [
            "store@s.yaml:1:1 url@s.yaml:2:3 Some(Text(\"memory\")) s.yaml:2:8",
            "store@s.yaml:1:1 nodes@s.yaml:3:3 Some(Text(\"3\")) s.yaml:3:10",
            "files@s.yaml:4:1 Some(List([\"a\", \"b\"])) s.yaml:4:8",
        ];
        assert_eq!(lines[..3], expected);
        assert_eq!(found[3].value, None);
    }

    #[test]
    fn a_file_that_is_no_map_of_values_is_refused() {
        assert_eq!(leaves("s", ""), Ok(Vec::new()));
        for (text, says) in [
            ("7", "s:1:1: expected a map, found the number 7"),
            ("a: [{b: 1}]", "expected text, found a map (at a)"),
            ("a: 1\na: 2", "s:2:1: "),
            ("a: 1\n---\nb: 2", "a second document"),
        ] {
            let why = leaves("s", text).unwrap_err();
            assert!(why.contains(says), "{text:?}: {why}");
        }
        let deep: String = (0..20).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(leaves("s", &deep).unwrap_err().contains("nested deeper"));
    }
}
