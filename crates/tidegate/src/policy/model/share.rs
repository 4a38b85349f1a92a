//! A share of all keys, the same keys on every node.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher13};

/// A share in hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

/// The secret that decides which keys `enforce: 25%` covers. All nodes need the same one.
///
/// Without it the hash is public: a client can choose keys that are not enforced.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EnforceSecret(u64, u64);

impl EnforceSecret {
    /// The fewest bytes of a secret.
    pub const MIN_BYTES: usize = 16;

    /// The secret made from this text; `None` if it has fewer than [`MIN_BYTES`](Self::MIN_BYTES)
    /// bytes.
    pub fn new(text: &str) -> Option<Self> {
        // Derives the keys of the keyed hash; these constants are not secret.
        let mut hasher = SipHasher13::new_with_keys(0x656e_666f, 0x7263_6500);
        hasher.write(text.as_bytes());
        let key = hasher.finish128();
        (text.len() >= Self::MIN_BYTES).then_some(Self(key.h1, key.h2))
    }
}

/// Does not print the secret.
impl fmt::Debug for EnforceSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EnforceSecret(..)")
    }
}

impl Share {
    /// Every key.
    pub const ALL: Self = Self(10_000);

    /// Parses `25%` or `0.5%`.
    pub(in crate::policy) fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 3 || part.len() > 2 || !digits(whole) || !digits(part)
        {
            return None;
        }
        let part: u16 = format!("{part:0<2}").parse().ok()?;
        let share = whole.parse::<u16>().ok()? * 100 + part;
        (share <= Self::ALL.0).then_some(Self(share))
    }

    /// Whether the share includes the key `text` of the limit `id`. A larger share includes all
    /// keys of a smaller one, because a key's rank depends on the key alone.
    pub fn holds(self, secret: Option<&EnforceSecret>, id: &str, text: &[u8]) -> bool {
        let rank = || match secret {
            Some(secret) => keyed_rank(secret, id, text),
            None => rank(id, text),
        };
        self == Self::ALL || rank() < self.0
    }
}

/// A number below 10,000 that only nodes with the secret can compute.
fn keyed_rank(secret: &EnforceSecret, id: &str, text: &[u8]) -> u16 {
    let mut hasher = SipHasher24::new_with_keys(secret.0, secret.1);
    hasher.write(id.as_bytes());
    hasher.write(&[0xff]);
    hasher.write(text);
    (hasher.finish() % 10_000) as u16
}

/// A number below 10,000, the same on every node and in every release.
fn rank(id: &str, text: &[u8]) -> u16 {
    let bytes = id.bytes().chain([0xff]).chain(text.iter().copied());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // FNV alone gives similar hashes to keys that differ at the end only.
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((hash ^ (hash >> 31)) % 10_000) as u16
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match (part / 10, part % 10) {
            (0, 0) => write!(f, "{whole}%"),
            (tenths, 0) => write!(f, "{whole}.{tenths}%"),
            _ => write!(f, "{whole}.{part:02}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_in_percent() {
        for (text, share) in [("25%", 2_500), ("0%", 0), ("100%", 10_000), ("0.5%", 50)] {
            assert_eq!(Share::parse(text), Some(Share(share)), "{text}");
            assert_eq!(Share(share).to_string(), text);
        }
        for text in ["25", "101%", "-1%", "1.234%", "%", ".5%", "x%", "1e1%"] {
            assert_eq!(Share::parse(text), None, "{text}");
        }
    }

    /// Growing the number only adds keys.
    #[test]
    fn a_larger_share_includes_the_keys_of_a_smaller_one() {
        let mut held = 0;
        for key in 0..20_000_u32 {
            let text = format!("user:{key}");
            let holds = |share| Share(share).holds(None, "api/user#", text.as_bytes());
            assert!(!holds(0) && holds(10_000));
            assert!(holds(2_500) || !holds(1_000), "{text}");
            held += u32::from(holds(2_500));
        }
        assert!((4_700..5_300).contains(&held), "a quarter of 20,000, not {held}");
    }

    #[test]
    fn a_secret_chooses_other_keys() {
        let secret = |text| EnforceSecret::new(text).unwrap();
        let secrets = [secret("correct horse battery"), secret("correct horse batterz")];
        let keys: Vec<String> = (0..20_000).map(|key| format!("user:{key}")).collect();
        let held = |secret: Option<&EnforceSecret>, share: u16| -> Vec<bool> {
            keys.iter().map(|key| Share(share).holds(secret, "a#", key.as_bytes())).collect()
        };
        let [public, one, other] = [None, Some(&secrets[0]), Some(&secrets[1])].map(|secret| {
            let quarter = held(secret, 2_500);
            let count = quarter.iter().filter(|held| **held).count();
            assert!((4_700..5_300).contains(&count), "a quarter of 20,000, not {count}");
            let tenth = held(secret, 1_000);
            assert!(tenth.iter().zip(&quarter).all(|(tenth, quarter)| *quarter || !tenth));
            quarter
        });
        let both = |one: &[bool], other: &[bool]| {
            one.iter().zip(other).filter(|(one, other)| **one && **other).count()
        };
        // A sixteenth of 20,000 if the two are independent.
        for count in [both(&public, &one), both(&public, &other), both(&one, &other)] {
            assert!((1_050..1_450).contains(&count), "{count}");
        }
        assert_eq!(one, held(Some(&secret("correct horse battery")), 2_500));
        assert_eq!(EnforceSecret::new("fifteen letters"), None);
        assert_eq!(format!("{:?}", secrets[0]), "EnforceSecret(..)");
    }

    /// Nodes of different releases must agree. The numbers are those of a Python program.
    #[test]
    fn a_keyed_place_never_changes() {
        let secret = EnforceSecret::new("correct horse battery").unwrap();
        assert_eq!((secret.0, secret.1), (0x769a_4636_d8ec_48c7, 0x0035_a62b_4569_6333));
        assert_eq!(keyed_rank(&secret, "api/user#", b"bob"), 667);
    }

    /// Nodes of different releases must agree.
    #[test]
    fn a_place_never_changes() {
        assert_eq!(rank("api/user#", b"bob"), rank("api/user#", b"bob"));
        assert_ne!(rank("api/user#", b"bob"), rank("api/user#x", b"bob"));
    }
}
