//! A share of all keys, the same keys on every node.

use std::fmt;

/// In hundredths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u16);

impl Share {
    /// Every key.
    pub const ALL: Self = Self(10_000);

    /// Reads `25%` or `0.5%`.
    pub(super) fn parse(text: &str) -> Option<Self> {
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

    /// Whether the key `text` of the limit `id` is in it. A larger share holds all keys that a smaller
    /// one does, because a key's place is a matter of the key alone.
    pub fn holds(self, id: &str, text: &[u8]) -> bool {
        self == Self::ALL || place(id, text) < self.0
    }
}

/// A number below 10,000, the same on every node and in every release.
fn place(id: &str, text: &[u8]) -> u16 {
    let bytes = id.bytes().chain([0xff]).chain(text.iter().copied());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // FNV alone leaves keys that differ at the end close together.
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

    /// Decision 18: growing the number only adds keys.
    #[test]
    fn a_larger_share_holds_what_a_smaller_one_does() {
        let mut held = 0;
        for key in 0..20_000_u32 {
            let text = format!("user:{key}");
            let holds = |share| Share(share).holds("api/user#", text.as_bytes());
            assert!(!holds(0) && holds(10_000));
            assert!(holds(2_500) || !holds(1_000), "{text}");
            held += u32::from(holds(2_500));
        }
        assert!((4_700..5_300).contains(&held), "a quarter of 20,000, not {held}");
    }

    /// Nodes of different releases must agree.
    #[test]
    fn a_place_never_changes() {
        assert_eq!(place("api/user#", b"bob"), place("api/user#", b"bob"));
        assert_ne!(place("api/user#", b"bob"), place("api/user#x", b"bob"));
    }
}
