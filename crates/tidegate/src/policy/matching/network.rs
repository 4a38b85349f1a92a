//! Finds the longest network that contains an address.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use foldhash::quality::RandomState;

/// A network: the leading bits of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::policy) struct Network {
    /// Left-aligned in 128 bits; all other bits are zero.
    bits: u128,
    length: u8,
    is_v6: bool,
}

impl Network {
    /// The network of `length` bits that contains `address`; `None` if the address is shorter.
    pub(in crate::policy) fn of(address: IpAddr, length: u8) -> Option<Self> {
        let (bits, most, is_v6) = match address {
            IpAddr::V4(v4) => (u128::from(v4.to_bits()) << 96, 32, false),
            IpAddr::V6(v6) => (v6.to_bits(), 128, true),
        };
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        (length <= most).then_some(Self { bits: bits & mask, length, is_v6 })
    }

    /// Whether the network contains all addresses of its kind.
    pub(in crate::policy) const fn is_everything(&self) -> bool {
        self.length == 0
    }

    /// Whether the network contains the address.
    pub(in crate::policy) fn contains(&self, address: IpAddr) -> bool {
        Self::of(address.to_canonical(), self.length) == Some(*self)
    }

    /// Parses `10.0.0.0/8`, `2001:db8::/32`, or a single address.
    pub(in crate::policy) fn parse(text: &str) -> Result<Self, &'static str> {
        let (address, length) = text.split_once('/').map_or((text, None), |(a, l)| (a, Some(l)));
        let address: IpAddr = address.parse().map_err(|_| "an address such as 10.0.0.0/8")?;
        if address.to_canonical() != address {
            return Err(
                "an IPv4 network in IPv4 notation, because IPv4-mapped addresses count as IPv4",
            );
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(length) => length.parse().map_err(|_| "a length such as the 8 of 10.0.0.0/8")?,
        };
        let network =
            Self::of(address, length).ok_or("a length of at most 32 for IPv4 or 128 for IPv6")?;
        match Self::of(address, most) == Some(Self { length: most, ..network }) {
            true => Ok(network),
            false => Err("an address whose bits after the length are zero"),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address: IpAddr = match self.is_v6 {
            true => IpAddr::V6(self.bits.into()),
            false => IpAddr::V4(((self.bits >> 96) as u32).into()),
        };
        write!(f, "{address}/{}", self.length)
    }
}

/// How many leading bits of an address identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) struct Prefixes {
    pub(in crate::policy) v4: u8,
    pub(in crate::policy) v6: u8,
}

impl Prefixes {
    /// The full address.
    pub(in crate::policy) const WHOLE: Self = Self { v4: 32, v6: 128 };

    /// The network of an address in any spelling; `None` if the value is no address.
    pub(in crate::policy) fn of(self, value: &str) -> Option<Network> {
        let address = address(value)?;
        let length = if address.is_ipv4() { self.v4 } else { self.v6 };
        Network::of(address, length)
    }
}

/// Parses an address as proxies write it: with or without brackets and port; IPv4 in IPv6 becomes
/// IPv4.
pub(in crate::policy) fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let address = text.parse::<IpAddr>().ok().or_else(|| {
        text.parse::<std::net::SocketAddr>()
            .ok()
            .map(|socket| socket.ip())
            .or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse().ok())
    })?;
    Some(address.to_canonical())
}

/// Networks, each with a value.
#[derive(Clone, Debug, Default)]
pub(in crate::policy) struct Networks<T> {
    /// Prefix lengths, longest first.
    lengths: Vec<u8>,
    networks: HashMap<Network, T, RandomState>,
}

impl<T: Copy> Networks<T> {
    pub(in crate::policy) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Adds a network; false if it was present.
    pub(in crate::policy) fn add(&mut self, network: Network, leads_to: T) -> bool {
        if let Err(place) = self.lengths.binary_search_by(|length| network.length.cmp(length)) {
            self.lengths.insert(place, network.length);
        }
        self.networks.insert(network, leads_to).is_none()
    }

    /// The value of the longest network that contains the address.
    pub(in crate::policy) fn longest(&self, address: IpAddr) -> Option<T> {
        self.lengths
            .iter()
            .filter_map(|length| Network::of(address, *length))
            .find_map(|network| self.networks.get(&network).copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_network_wins() {
        let mut networks = Networks::default();
        for (number, text) in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "2001:db8::/32", "::/0"]
            .into_iter()
            .enumerate()
        {
            assert!(networks.add(Network::parse(text).unwrap(), number), "{text}");
        }
        assert!(!networks.add(Network::parse("10.0.0.0/8").unwrap(), 9));
        let find = |text: &str| networks.longest(address(text).unwrap());
        assert_eq!(find("10.1.2.3"), Some(2));
        assert_eq!(find("10.1.2.4"), Some(1));
        assert_eq!(find("10.2.0.1:443"), Some(9));
        assert_eq!(find("11.0.0.1"), None);
        assert_eq!(find("[2001:db8::7]:80"), Some(3));
        assert_eq!(find("2001:db9::7"), Some(4));
        // An IPv4 address mapped into IPv6 counts as IPv4.
        assert_eq!(find("::ffff:10.1.2.3"), Some(2));
    }

    #[test]
    fn an_invalid_network_names_the_expected_form() {
        for (text, expected) in [
            ("10.0.0.1/8", "an address whose bits after the length are zero"),
            ("10.0.0.0/33", "a length of at most 32 for IPv4 or 128 for IPv6"),
            ("10.0.0/8", "an address such as 10.0.0.0/8"),
            ("10.0.0.0/x", "a length such as the 8 of 10.0.0.0/8"),
        ] {
            assert_eq!(Network::parse(text), Err(expected), "{text}");
        }
        assert!(Network::parse("0.0.0.0/0").is_ok());
    }
}
