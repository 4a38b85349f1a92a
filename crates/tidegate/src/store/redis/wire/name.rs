//! What a key is called in Redis, and which slot of a cluster it lies in.

use std::hash::Hasher;
use std::io::Write;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::key::Key;

/// Longer texts are kept as a hash: it is 32 characters long and names nobody.
const LONGEST_TEXT: usize = 64;

/// Slots of a cluster.
pub(in crate::store::redis) const SLOTS: u16 = 16_384;

/// Names keys: `namespace:scope:{text}`, or `namespace:scope:{tag}text` where the tag is not the
/// text. What is in braces decides the slot, so a text lies where all that is tagged with it does.
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

    /// A text as it is, or its hash. The tag must not end before its brace, nor be empty, for then
    /// it would be none.
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

/// The same on every node and in every release, so its key is no secret. Texts that were not chosen
/// to collide do not: of a thousand million, two share a hash with a chance below 10^-20. It does not
/// promise that nobody can search for two that do, nor that nobody can find a text by trying all.
/// Whoever finds two texts of one hash makes those two share a state, and no others.
fn hash(text: &[u8]) -> (u64, u64) {
    let mut hasher = SipHasher13::new_with_keys(0x7469_6465, 0x6761_7465);
    hasher.write(text);
    hasher.finish128().as_u64()
}

/// The slot of a key: of what its first braces hold, or of all of it if they hold nothing.
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

    /// A name must be the same on every node and in every release: changing it forgets every state.
    #[test]
    fn names_are_what_they_always_were() {
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
