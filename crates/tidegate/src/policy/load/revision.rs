//! A hash of a document's content, which shows whether two nodes have the same policy.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::policy::document::{Kind, Node};

/// A hasher with public keys: an attacker who could make two policies collide could write the
/// policy anyway.
pub(super) fn hasher() -> SipHasher13 {
    SipHasher13::new_with_keys(0x646f_6d61, 0x696e)
}

/// Hashes a node and all nodes below. Positions, comments and layout do not count; quotes do,
/// because they distinguish texts from numbers.
pub(super) fn write(node: &Node, hasher: &mut impl Hasher) {
    let mut head = |kind: u8, length: usize| {
        hasher.write(&[kind]);
        hasher.write(&(length as u64).to_le_bytes());
    };
    match &node.kind {
        Kind::Null => head(0, 0),
        Kind::Scalar { text, plain } => {
            head(if *plain { 1 } else { 2 }, text.len());
            hasher.write(text.as_bytes());
        }
        Kind::List(items) => {
            head(3, items.len());
            items.iter().for_each(|item| write(item, hasher));
        }
        Kind::Map(entries) => {
            head(4, entries.len());
            for (key, value) in &**entries {
                write(key, hasher);
                write(value, hasher);
            }
        }
    }
}
