//! Redis key names and their cluster slots.

use std::hash::Hasher;
use std::io::Write;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::key::Key;

/// The longest text that is stored; longer ones are replaced by a hash of 32 characters.
const LONGEST_TEXT: usize = 64;

/// Number of slots of a cluster.
pub(in crate::store::redis) const SLOTS: u16 = 16_384;

/// Builds key names: `namespace:scope:{text}`, or `namespace:scope:{tag}text` if the tag is not the
/// text. The part in braces determines the slot, so a text is in the same slot as all keys tagged
/// with it.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct Namer {
    namespace: Box<str>,
    hashes_texts: bool,
}

impl Namer {
    pub(in crate::store::redis) fn new(namespace: &str, hashes_texts: bool) -> Self {
        Self { namespace: namespace.into(), hashes_texts }
    }

    pub(in crate::store::redis) fn name(&self, key: Key<'_>) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.namespace.len() + key.text.len() + 50);
        name.extend_from_slice(self.namespace.as_bytes());
        name.push(b':');
        name.extend_from_slice(&key.scope.letters());
        name.extend_from_slice(b":{");
        self.append(&mut name, key.tag);
        name.push(b'}');
        if key.tag != key.text {
            self.append(&mut name, key.text);
        }
        name
    }

    /// Appends a text or its hash. A tag must not contain a closing brace or be empty, or it would
    /// not be a tag.
    fn append(&self, name: &mut Vec<u8>, text: &[u8]) {
        let plain = !self.hashes_texts
            && (1..=LONGEST_TEXT).contains(&text.len())
            && !text.contains(&b'}')
            && !text.starts_with(b"#");
        if plain {
            name.extend_from_slice(text);
        } else {
            let (high, low) = hash(text);
            write!(name, "#{high:016x}{low:016x}").expect("a vector grows");
        }
    }
}

/// A 128-bit hash with a public key, so that it is the same on every node and in every release.
/// Texts do not collide by accident: among 10^9 of them, the chance that two share a hash is below
/// 10^-20. The hash does not protect against a search for collisions or for the text of a hash; two
/// texts that collide share a state, and no other key is affected.
fn hash(text: &[u8]) -> (u64, u64) {
    let mut hasher = SipHasher13::new_with_keys(0x7469_6465, 0x6761_7465);
    hasher.write(text);
    hasher.finish128().as_u64()
}

/// The slot of a key: that of the text in its first braces, or of the whole key if they are empty.
pub(in crate::store::redis) fn slot(name: &[u8]) -> u16 {
    let tagged = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
    });
    crc16(tagged.filter(|tag| !tag.is_empty()).unwrap_or(name)) % SLOTS
}

/// CRC-16/XMODEM, as the cluster's specification asks.
fn crc16(bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = (byte as u16) << 8;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(0, |crc, byte| (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Limit, Rate};

    use super::*;
    use crate::key::Scope;

    fn scope(name: &str) -> Scope {
        Scope::new(name, &Limit::gcra(Rate::per_second(1)).build().unwrap())
    }

    fn name(text: &[u8]) -> Vec<u8> {
        Namer::new("tg", false).name(Key::new(scope("default"), text))
    }

    /// A name must be the same on every node and in every release: a change loses every state.
    #[test]
    fn names_never_change() {
        let text = |name: Vec<u8>| String::from_utf8(name).unwrap();
        assert_eq!(text(name(b"user:17")), "tg:zKTTwuhZsk5:{user:17}");
        let tagged = Key::new(scope("default"), b"user:17").tagged(b"acme");
        assert_eq!(text(Namer::new("tg", false).name(tagged)), "tg:zKTTwuhZsk5:{acme}user:17");
    }

    /// The vectors of the cluster's specification.
    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot(b"foo{bar}{zap}"), crc16(b"bar") % SLOTS);
    }

    /// All limits of one text share a slot, and so do all keys of one tag.
    #[test]
    fn limits_of_one_tenant_share_a_slot() {
        let namer = Namer::new("tg", false);
        for text in [&b"user:17"[..], b"", b"}", b"{}", b"a}b", b"{", b"#1", &[b'x'; 300]] {
            let slots =
                ["a", "b", "c"].map(|limit| slot(&namer.name(Key::new(scope(limit), text))));
            assert!(slots.iter().all(|slot| *slot == slots[0]), "{text:?}");
            let tagged = Key::new(scope("a"), b"user:1").tagged(text);
            assert_eq!(slot(&namer.name(tagged)), slots[0], "{text:?} is a tag too");
        }
    }

    #[test]
    fn no_two_texts_share_a_name() {
        let long = [b'x'; 65];
        let hashed = name(&long);
        assert!(hashed.len() < 60 && hashed != name(&[b'x'; 66]));
        let inner = hashed[hashed.iter().position(|b| *b == b'{').unwrap() + 1..].to_vec();
        assert_ne!(name(&inner[..inner.len() - 1]), hashed, "a text that looks like a hash");
        let namer = Namer::new("tg", true);
        assert_ne!(namer.name(Key::new(scope("a"), b"a")), namer.name(Key::new(scope("a"), b"b")));
        let tagged = |tag: &'static str, text: &'static str| {
            let key = Key::new(scope("a"), text.as_bytes()).tagged(tag.as_bytes());
            Namer::new("tg", false).name(key)
        };
        assert_ne!(tagged("a}b", "c"), tagged("a", "b}c"), "a text does not say where a tag ends");
    }
}
