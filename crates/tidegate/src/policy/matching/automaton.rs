//! Finds many pieces of text in one pass over a value (Aho–Corasick).
//!
//! The time is linear in the value's length, however many pieces there are; a piece that is a
//! suffix of another one is reported with it.

use std::collections::HashMap;

use foldhash::quality::RandomState;

/// The number of a piece.
pub(in crate::policy) type Piece = u32;

const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

/// An Aho–Corasick automaton.
#[derive(Clone, Debug)]
pub(in crate::policy) struct Automaton {
    nodes: Vec<Node>,
    /// Edges of all nodes, grouped by node: the next byte, and the node it leads to.
    edges: Vec<(u8, u32)>,
    /// The root's edges by byte; the root has the most edges and is visited most.
    first: Vec<u32>,
    lengths: Vec<usize>,
}

/// A node: a prefix of some piece that matches the last bytes read.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// The range of its edges.
    edges: (u32, u32),
    /// The node of the longest proper suffix.
    suffix: u32,
    /// The piece that ends here, or [`NONE`].
    piece: Piece,
    /// The node of the longest proper suffix that is a piece, or [`NONE`].
    shorter: u32,
}

impl Node {
    const NEW: Self = Self { edges: (0, 0), suffix: ROOT, piece: NONE, shorter: NONE };
}

/// Edges while nodes are added.
type Edges = HashMap<(u32, u8), u32, RandomState>;

impl Automaton {
    /// An automaton for these pieces, numbered by their index. Pieces are unique and not empty.
    pub(in crate::policy) fn new(pieces: &[&str]) -> Self {
        let (mut nodes, mut edges) = (vec![Node::NEW], Edges::default());
        // Nodes are processed by depth, because suffixes are shorter.
        let mut depths: Vec<Vec<(u32, u8, u32)>> = Vec::new();
        for (number, piece) in (0..).zip(pieces) {
            let mut node = ROOT;
            for (depth, byte) in piece.bytes().enumerate() {
                let next = nodes.len() as u32;
                let found = *edges.entry((node, byte)).or_insert(next);
                if found == next {
                    nodes.push(Node::NEW);
                    if depths.len() == depth {
                        depths.push(Vec::new());
                    }
                    depths[depth].push((node, byte, next));
                }
                node = found;
            }
            nodes[node as usize].piece = number;
        }
        for (parent, byte, node) in depths.into_iter().skip(1).flatten() {
            let mut suffix = nodes[parent as usize].suffix;
            let suffix = loop {
                match edges.get(&(suffix, byte)) {
                    Some(next) => break *next,
                    None if suffix == ROOT => break ROOT,
                    None => suffix = nodes[suffix as usize].suffix,
                }
            };
            let ends = nodes[suffix as usize];
            let shorter = if ends.piece == NONE { ends.shorter } else { suffix };
            (nodes[node as usize].suffix, nodes[node as usize].shorter) = (suffix, shorter);
        }
        let lengths = pieces.iter().map(|piece| piece.len()).collect();
        Self::flat(nodes, edges, lengths)
    }

    /// Builds the automaton with each node's edges side by side.
    fn flat(mut nodes: Vec<Node>, edges: Edges, lengths: Vec<usize>) -> Self {
        let mut sorted: Vec<((u32, u8), u32)> = edges.into_iter().collect();
        sorted.sort_unstable();
        let mut first = vec![ROOT; 256];
        for (place, ((node, byte), next)) in (0..).zip(&sorted) {
            if *node == ROOT {
                first[usize::from(*byte)] = *next;
            }
            let range = &mut nodes[*node as usize].edges;
            *range = if range.1 == 0 { (place, place + 1) } else { (range.0, place + 1) };
        }
        let edges = sorted.into_iter().map(|((_, byte), next)| (byte, next)).collect();
        Self { nodes, edges, first, lengths }
    }

    /// Length of a piece in bytes.
    pub(in crate::policy) fn length(&self, piece: Piece) -> usize {
        self.lengths[piece as usize]
    }

    /// The node after one more byte.
    fn step(&self, mut node: u32, byte: u8) -> u32 {
        while node != ROOT {
            let Node { edges: (start, end), suffix, .. } = self.nodes[node as usize];
            let edges = &self.edges[start as usize..end as usize];
            // Most nodes have one edge.
            let found = match edges {
                [(only, next)] => (*only == byte).then_some(*next),
                many => many.binary_search_by_key(&byte, |edge| edge.0).ok().map(|at| many[at].1),
            };
            match found {
                Some(next) => return next,
                None => node = suffix,
            }
        }
        self.first[usize::from(byte)]
    }

    /// Calls `found` for every occurrence, in the order of their ends: the piece, and where it ends.
    pub(in crate::policy) fn scan(&self, value: &str, mut found: impl FnMut(Piece, usize)) {
        let mut node = ROOT;
        for (at, byte) in value.bytes().enumerate() {
            node = self.step(node, byte);
            let mut ends = node;
            while ends != NONE {
                let Node { piece, shorter, .. } = self.nodes[ends as usize];
                if piece != NONE {
                    found(piece, at + 1);
                }
                ends = shorter;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_occurrence_is_found() {
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let mut text = |most: usize| -> String {
                (0..rng.usize(1..=most)).map(|_| rng.char('a'..='c')).collect()
            };
            let mut pieces: Vec<String> = (0..8).map(|_| text(4)).collect();
            pieces.sort();
            pieces.dedup();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let value = text(12);
            let mut found = Vec::new();
            let automaton = Automaton::new(&pieces);
            automaton.scan(&value, |piece, end| found.push((end, piece)));
            let mut expected = Vec::new();
            for end in 1..=value.len() {
                for (number, piece) in (0..).zip(&pieces) {
                    if value[..end].ends_with(piece) {
                        expected.push((end, number));
                    }
                }
            }
            found.sort_unstable();
            assert_eq!(found, expected, "{pieces:?} in {value}");
        }
    }
}
