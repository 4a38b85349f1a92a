//! Keys of states.

pub(crate) mod to_key;

use std::fmt::{self, Write};
use std::hash::{BuildHasher, Hasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use tidegate_core::Limit;

/// The part of a key that identifies the limit and its kind of state. Numbers are not part of the
/// scope, so a changed rate, burst or limit keeps the state of all keys. The state family is part
/// of the scope, and so are length and offset of aligned windows, because the counts of one window
/// have no meaning in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(u64);

impl Scope {
    /// The scope of the limit `name`.
    pub fn new(name: &str, limit: &Limit) -> Self {
        let (length, offset) = match &limit.without_block() {
            Limit::FixedWindow(window) => (window.length(), window.offset()),
            Limit::SlidingWindow(window) => (window.length(), Default::default()),
            _ => Default::default(),
        };
        let lengths = [limit.family(), name].map(|field| field.len() as u64);
        let numbers = [lengths[0], lengths[1], length.as_micros(), offset.as_micros()];
        let numbers = numbers.iter().flat_map(|number| number.to_le_bytes());
        let fields = limit.family().bytes().chain(name.bytes()).chain(numbers);
        // The hash is not secret; the memory store mixes it with a secret.
        Self(fnv(0xcbf2_9ce4_8422_2325, fields))
    }

    /// The scope of one shard of the keys of this scope.
    pub(crate) fn shard(self, number: u32, of: u32) -> Self {
        let fields = [number, of].into_iter().flat_map(u32::to_le_bytes);
        Self(fnv(self.0, b"shard".iter().copied().chain(fields)))
    }

    /// The scope of the part of a limit that classes other than the first share.
    #[cfg(feature = "policy")]
    pub(crate) fn of_other_classes(self) -> Self {
        Self(fnv(self.0, b"other".iter().copied()))
    }

    /// The scope as a number, for texts that leave the process.
    #[cfg(feature = "policy")]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    /// The scope of [`Scope::number`].
    #[cfg(feature = "policy")]
    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// The scope as eleven letters and digits.
    #[inline]
    pub(crate) fn letters(self) -> [u8; 11] {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut rest = self.0;
        std::array::from_fn(|_| {
            let digit = DIGITS[(rest % 62) as usize];
            rest /= 62;
            digit
        })
    }
}

/// FNV-1a: the same on every node and in every release.
fn fnv(start: u64, bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The scope in the keys of a shared store: eleven letters and digits.
impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.letters().into_iter().try_for_each(|letter| f.write_char(char::from(letter)))
    }
}

/// One key of one limit.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The scope of the limit.
    pub scope: Scope,
    /// The value that the limit counts, such as a user or an address.
    pub text: &'a [u8],
    /// The tenant of this key. A cluster keeps all keys of one tag in one slot, so that it can
    /// decide them together. The text itself by default.
    pub tag: &'a [u8],
}

impl<'a> Key<'a> {
    /// The key of `text`, with `text` as its tag.
    #[inline(always)]
    pub const fn new(scope: Scope, text: &'a [u8]) -> Self {
        Self { scope, text, tag: text }
    }

    /// The same key with another tag.
    pub const fn tagged(self, tag: &'a [u8]) -> Self {
        Self { tag, ..self }
    }

    /// A number derived from the key, the same on every node. Different keys may have the same
    /// number.
    pub fn number(&self) -> u64 {
        fnv(self.scope.0, self.text.iter().copied())
    }
}

/// A key with its own text and tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OwnedKey {
    scope: Scope,
    text: Box<[u8]>,
    tag: Box<[u8]>,
}

impl OwnedKey {
    pub(crate) fn of(Key { scope, text, tag }: Key<'_>) -> Self {
        Self { scope, text: text.into(), tag: tag.into() }
    }

    pub(crate) fn key(&self) -> Key<'_> {
        Key::new(self.scope, &self.text).tagged(&self.tag)
    }

    /// Number of bytes of text and tag.
    pub(crate) fn bytes(&self) -> usize {
        self.text.len() + self.tag.len()
    }
}

/// How a store turns keys into fingerprints. Both use a secret drawn at the start, so that no
/// client can choose keys that collide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Hashing {
    /// A fast keyed hash.
    #[default]
    Fast,
    /// SipHash-1-3, for keys that adversaries choose and whose timing they observe.
    Strong,
}

/// The hash secret of a store.
#[derive(Debug)]
pub(crate) struct Secret {
    fast: SharedSeed,
    salt: u64,
    strong: Option<RandomState>,
}

impl Secret {
    /// The secret is the same in every run, so that a schedule can be replayed.
    #[cfg(tidegate_shuttle)]
    pub(crate) fn new(_hashing: Hashing) -> Self {
        Self::known()
    }

    /// A constant instead of a secret, for simulations that must be repeatable.
    pub(crate) fn known() -> Self {
        Self { fast: SharedSeed::from_u64(1), salt: 2, strong: None }
    }

    #[cfg(not(tidegate_shuttle))]
    pub(crate) fn new(hashing: Hashing) -> Self {
        let random = RandomState::new();
        Self {
            fast: SharedSeed::from_u64(random.hash_one(1_u64)),
            salt: random.hash_one(2_u64),
            strong: (hashing == Hashing::Strong).then_some(random),
        }
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: Key<'_>) -> u64 {
        match &self.strong {
            None => self.hash_with(key.scope.0 ^ self.salt, key.text),
            Some(strong) => {
                let mut hasher = strong.build_hasher();
                hasher.write_u64(key.scope.0);
                hasher.write(key.text);
                hasher.finish()
            }
        }
    }

    /// The salt of a scope for [`Secret::hash_with`], with fast hashing.
    pub(crate) fn salt(&self, scope: Scope) -> Option<u64> {
        self.strong.is_none().then_some(scope.0 ^ self.salt)
    }

    #[inline(always)]
    pub(crate) fn hash_with(&self, salt: u64, text: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(salt, &self.fast);
        hasher.write(text);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Rate, Span};

    use super::*;

    fn scope(name: &str, limit: tidegate_core::Builder) -> Scope {
        Scope::new(name, &limit.build().unwrap())
    }

    #[test]
    fn numbers_are_not_part_of_a_key_but_windows_are() {
        let bucket = |count| scope("a", Limit::token_bucket(Rate::per_second(count)));
        assert_eq!(bucket(1), bucket(2));
        assert_eq!(bucket(1), scope("a", Limit::gcra(Rate::per_hour(5))));
        let window = |rate| scope("a", Limit::fixed_window(rate));
        assert_eq!(window(Rate::per_second(1)), window(Rate::per_second(2)));
        assert_ne!(window(Rate::per_second(1)), window(Rate::per_minute(1)));
        let shifted = Limit::fixed_window(Rate::per_second(1)).offset(Span::from_millis(1));
        assert_ne!(window(Rate::per_second(1)), scope("a", shifted));
        assert_ne!(bucket(1), window(Rate::per_second(1)));
        assert_ne!(bucket(1), scope("b", Limit::token_bucket(Rate::per_second(1))));
    }

    /// Keys that collide in one store do not collide in another.
    #[test]
    fn every_store_hashes_with_its_own_secret() {
        let key = Key::new(scope("a", Limit::gcra(Rate::per_second(1))), b"user:1");
        for hashing in [Hashing::Fast, Hashing::Strong] {
            let hashes: std::collections::HashSet<u64> =
                (0..64).map(|_| Secret::new(hashing).hash(key)).collect();
            assert_eq!(hashes.len(), 64, "{hashing:?}");
        }
    }
}
