//! Builds the tree from the parser's events with an explicit stack, so that deep nesting cannot
//! overflow the call stack.
//!
//! All bounds apply to the document with aliases expanded, so that a small file cannot produce a
//! large tree or an endless walk.

mod keys;

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use super::extent::{DOCUMENT_START, Extent, bracketed_root};
use super::syntax::sentence;
use super::{Document, Kind, Node};
use crate::policy::document::finding::{Finding, Findings, Location, quoted};

pub(super) const MAX_TEXT_BYTES: usize = 16 << 20;
pub(super) const MAX_SCALAR_BYTES: usize = 64 << 10;
pub(super) const MAX_DEPTH: usize = 64;
pub(super) const MAX_NODES: usize = 1_000_000;
/// The most characters of a list in brackets. The parser holds all its tokens until it knows that
/// no `:` follows, 150 bytes for each character at worst.
pub(super) const MAX_AHEAD: usize = 512 << 10;

/// Parses until the end, or until an error that makes the rest meaningless.
pub(super) fn read(file: Arc<str>, text: &str, findings: &mut Findings) -> Vec<Document> {
    if text.len() > MAX_TEXT_BYTES {
        let message = format!("the file has {} bytes; the maximum is {MAX_TEXT_BYTES}", text.len());
        findings.push(Finding::error(&file, Location::START, message));
        return Vec::new();
    }
    let root = bracketed_root(text);
    let (before, after) = text.split_at(root.unwrap_or(0));
    let inserted = if root.is_some() { DOCUMENT_START } else { "" };
    let ahead = Cell::new(MAX_AHEAD);
    // Ends the text where the parser would read too far; `ahead` tells this from the real end.
    let characters = before.chars().chain(inserted.chars()).chain(after.chars()).map_while(|c| {
        ahead.set(ahead.get().checked_sub(1)?);
        Some(c)
    });
    let mut reader = Reader {
        extent: Extent::new(text, root),
        file,
        findings,
        documents: Vec::new(),
        open: Vec::new(),
        anchors: HashMap::new(),
        nodes: 0,
        latest: Location::START,
    };
    let mut parser = Parser::new_from_iter(characters);
    while let Some(event) = parser.next_event() {
        let step = match event {
            _ if ahead.get() == 0 => Err(reader.too_far_ahead()),
            Ok((event, span)) => reader.take(event, span.start),
            Err(error) => Err(reader.syntax_error(&error)),
        };
        if let Err(finding) = step {
            reader.findings.push(finding);
            break;
        }
        ahead.set(MAX_AHEAD);
    }
    reader.documents
}

struct Reader<'run> {
    extent: Extent,
    file: Arc<str>,
    findings: &'run mut Findings,
    documents: Vec<Document>,
    open: Vec<Open>,
    anchors: HashMap<usize, Subtree>,
    /// Nodes of all documents, with aliases expanded.
    nodes: usize,
    /// Position of the last event.
    latest: Location,
}

/// A node, with its size and depth when aliases are expanded.
#[derive(Clone)]
struct Subtree {
    node: Node,
    nodes: usize,
    /// Levels of nested lists and maps; 0 for a scalar.
    depth: usize,
}

/// A list or map whose end has not been parsed.
struct Open {
    is_map: bool,
    anchor: usize,
    place: Location,
    /// For a map: key, value, key, value.
    children: Vec<Node>,
    nodes: usize,
    depth: usize,
}

impl Reader<'_> {
    fn take(&mut self, event: Event<'_>, start: Marker) -> Result<(), Finding> {
        let place = self.extent.place(start);
        self.latest = place;
        match event {
            // The parser lets an alias refer to an earlier document.
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, place)?;
                let kind = self.scalar(&text, style, tag.as_deref(), place)?;
                self.add(Subtree { node: self.node(kind, place), nodes: 1, depth: 0 }, anchor);
            }
            Event::SequenceStart(anchor, tag) => {
                self.expect_tag(tag.as_deref(), "seq", place);
                self.begin(false, anchor, place)?;
            }
            Event::MappingStart(anchor, tag) => {
                self.expect_tag(tag.as_deref(), "map", place);
                self.begin(true, anchor, place)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let mut subtree = self.aliased(anchor, place)?;
                self.count(subtree.nodes, place)?;
                if self.open.len() + subtree.depth > MAX_DEPTH {
                    return Err(self.too_deep(place));
                }
                subtree.node.place = place;
                self.add(subtree, 0);
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin(&mut self, is_map: bool, anchor: usize, place: Location) -> Result<(), Finding> {
        self.count(1, place)?;
        if self.open.len() == MAX_DEPTH {
            return Err(self.too_deep(place));
        }
        self.open.push(Open { is_map, anchor, place, children: Vec::new(), nodes: 1, depth: 1 });
        Ok(())
    }

    fn end(&mut self) {
        let Some(Open { is_map, anchor, place, children, nodes, depth }) = self.open.pop() else {
            return;
        };
        let kind = if is_map {
            Kind::Map(Arc::new(self.pairs(children)))
        } else {
            Kind::List(Arc::new(children))
        };
        self.add(Subtree { node: self.node(kind, place), nodes, depth }, anchor);
    }

    fn add(&mut self, subtree: Subtree, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, subtree.clone());
        }
        let Subtree { node, nodes, depth } = subtree;
        if let Some(parent) = self.open.last_mut() {
            parent.children.push(node);
            parent.nodes += nodes;
            parent.depth = parent.depth.max(depth + 1);
        } else {
            self.documents.push(Document { file: Arc::clone(&self.file), root: node });
        }
    }

    fn aliased(&self, anchor: usize, place: Location) -> Result<Subtree, Finding> {
        self.anchors.get(&anchor).cloned().ok_or_else(|| {
            let holds_itself = self.open.iter().any(|open| open.anchor == anchor);
            self.error(
                place,
                if holds_itself {
                    "the alias is inside the node that it refers to"
                } else {
                    "the alias refers to an anchor of an earlier document"
                },
            )
        })
    }

    fn count(&mut self, nodes: usize, place: Location) -> Result<(), Finding> {
        self.nodes += nodes;
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message =
            format!("more than {MAX_NODES} texts, lists and maps, counted with aliases expanded");
        Err(self.error(place, message))
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        place: Location,
    ) -> Result<Kind, Finding> {
        if text.len() > MAX_SCALAR_BYTES {
            let message =
                format!("a text of {} bytes; the maximum is {MAX_SCALAR_BYTES}", text.len());
            return Err(self.error(place, message));
        }
        let tag = tag.map(tag_name);
        let plain = match tag.as_deref() {
            None => style == ScalarStyle::Plain,
            Some("!" | "!!str") => false,
            Some("!!int" | "!!float" | "!!bool" | "!!null" | "!!merge") => true,
            Some(other) => {
                self.findings.push(self.unknown_tag(other, place));
                style == ScalarStyle::Plain
            }
        };
        let is_null = plain && matches!(text, "" | "~" | "null" | "Null" | "NULL");
        Ok(if is_null { Kind::Null } else { Kind::Scalar { text: text.into(), plain } })
    }

    fn expect_tag(&mut self, tag: Option<&Tag>, own: &str, place: Location) {
        let Some(name) = tag.map(tag_name) else { return };
        if name != "!" && name.strip_prefix("!!") != Some(own) {
            self.findings.push(self.unknown_tag(&name, place));
        }
    }

    fn node(&self, kind: Kind, place: Location) -> Node {
        Node { kind, place, file: Arc::clone(&self.file) }
    }

    fn error(&self, place: Location, message: impl Into<String>) -> Finding {
        Finding::error(&self.file, place, message).at(self.path())
    }

    fn too_deep(&self, place: Location) -> Finding {
        self.error(place, format!("lists and maps are nested deeper than {MAX_DEPTH} levels"))
    }

    fn too_far_ahead(&self) -> Finding {
        let message = format!(
            "a text, a comment or a list in brackets has more than {MAX_AHEAD} characters: shorten \
             the text or comment, or write the list without brackets, one item per line"
        );
        self.error(self.latest, message)
    }

    fn unknown_tag(&self, name: &str, place: Location) -> Finding {
        self.error(place, format!("the tag {} is not supported: remove it", quoted(name)))
    }

    fn syntax_error(&self, error: &ScanError) -> Finding {
        self.error(self.extent.place(*error.marker()), sentence(error.info()))
    }

    /// The path of the next child of the open lists and maps.
    fn path(&self) -> String {
        let mut path = String::new();
        for open in &self.open {
            if !open.is_map {
                path.push_str(&format!("[{}]", open.children.len()));
            } else if open.children.len() % 2 == 1
                && let Some(Node { kind: Kind::Scalar { text, .. }, .. }) = open.children.last()
            {
                path.push_str(if path.is_empty() { "" } else { "." });
                let is_word = text.len() <= 40 && !text.contains(char::is_control);
                path.push_str(if is_word { text } else { "…" });
            }
        }
        path
    }
}

/// The tag, with YAML's own prefix shortened to `!!`.
fn tag_name(tag: &Tag) -> String {
    let name = format!("{}{}", tag.handle, tag.suffix);
    match name.strip_prefix("tag:yaml.org,2002:") {
        Some(own) => format!("!!{own}"),
        None => name,
    }
}
