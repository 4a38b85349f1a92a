//! How values of keys are shown to operators.

use std::borrow::Cow;
use std::fmt::Write as _;

use rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
use tidegate::policy::Entry;

use crate::settings::KeyValues;

/// The most characters that [`KeyValues::Short`] shows of a value.
const SHOWN: usize = 4;

/// Bytes of a hash that are shown: instead of a value, and after the first characters of one, to distinguish
/// values.
const HASH: usize = 8;
const SUFFIX: usize = 4;

impl KeyValues {
    /// The value as it is shown.
    pub(crate) fn show(self, value: &[u8]) -> Cow<'_, [u8]> {
        match self {
            Self::Plain => value.into(),
            Self::Short => {
                let text = String::from_utf8_lossy(value);
                let shown = SHOWN.min(text.chars().count() / 2);
                let mut short: String = text.chars().take(shown).collect();
                short.push('…');
                short.push_str(&hash(value, SUFFIX));
                short.into_bytes().into()
            }
            Self::Hash => hash(value, HASH).into_bytes().into(),
        }
    }

    /// The same for a value that is text.
    pub(crate) fn show_text(self, value: &str) -> String {
        String::from_utf8_lossy(&self.show(value.as_bytes())).into_owned()
    }

    /// A descriptor as `key=value,key=value`.
    pub(crate) fn show_entries(self, entries: &[Entry<'_>]) -> String {
        let show = |entry: &Entry<'_>| format!("{}={}", entry.key, self.show_text(entry.value));
        entries.iter().map(show).collect::<Vec<_>>().join(",")
    }
}

/// The first bytes of the SHA-256, in hexadecimal: what `sha256sum` prints, so that an operator who has
/// a key can find it.
fn hash(value: &[u8], bytes: usize) -> String {
    let mut text = String::with_capacity(2 * bytes);
    let suite = TLS13_AES_128_GCM_SHA256.tls13();
    let digest = suite.map(|suite| suite.common.hash_provider.hash(value));
    for byte in digest.iter().flat_map(|digest| digest.as_ref()).take(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf s3cret-key | sha256sum`
    #[test]
    fn a_hash_is_the_one_that_sha256sum_prints() {
        assert_eq!(KeyValues::Hash.show_text("s3cret-key"), "817b823905cc7853");
    }

    #[test]
    fn at_most_half_of_a_value_is_shown() {
        for (value, shown) in [("", "…"), ("k", "…"), ("abc", "a…"), ("élan", "él…")] {
            assert!(KeyValues::Short.show_text(value).starts_with(shown), "{value}");
        }
        let short = |value: &str| KeyValues::Short.show_text(value);
        assert_eq!(short("s3cret-key"), "s3cr…817b8239");
        assert_ne!(short("s3cret-key"), short("s3cret-kez"), "different hashes");
        assert_eq!(KeyValues::Plain.show(b"s3\xff"), &b"s3\xff"[..]);
    }
}
