//! The upstreams of the gateway, and its domain and trusted peers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use tidegate::policy::{Domain, Policy};

use super::{Edge, Route, Upstream};

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The services that requests are forwarded to.
    pub upstreams: Vec<Upstream>,
    /// Rules that choose the upstream of a request.
    pub routes: Vec<Route>,
    /// The domain of the policy; by default the only domain with `requests`.
    pub domain: Option<String>,
    /// Proxies in front of the gateway, whose `X-Forwarded-*` and similar fields are kept. The
    /// fields of all other peers are dropped.
    pub trusted: Vec<Peers>,
    /// Settings for connections of clients.
    pub edge: Edge,
}

impl Gateway {
    /// A gateway that forwards all requests to one service.
    pub fn new(upstream: Upstream) -> Self {
        let routes = vec![Route::all(0)];
        Self {
            upstreams: vec![upstream],
            routes,
            domain: None,
            trusted: Vec::new(),
            edge: Edge::default(),
        }
    }

    /// The domain of a policy whose `requests` rules apply; `None` if no domain has any.
    pub fn domain_in<'p>(&'p self, policy: &'p Policy) -> Result<Option<&'p str>, UnclearDomain> {
        let mut having_rules = policy.domains().filter(|domain| !domain.requests().is_empty());
        if let Some(name) = &self.domain {
            return match having_rules.any(|domain| domain.name() == name) {
                true => Ok(Some(name)),
                false => Err(UnclearDomain::Missing(name.clone())),
            };
        }
        match (having_rules.next(), having_rules.next()) {
            (domain, None) => Ok(domain.map(Domain::name)),
            (Some(one), Some(other)) => {
                Err(UnclearDomain::Several(one.name().into(), other.name().into()))
            }
            (None, Some(_)) => Ok(None),
        }
    }

    /// Whether the peer is a trusted proxy of the operator.
    pub(crate) fn is_trusted(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.trusted.iter().any(|peers| peers.contains(peer)))
    }
}

/// The error for a policy that does not tell which of its domains the gateway enforces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnclearDomain {
    /// The domain of `gateway.domain` is missing or has no `requests`.
    Missing(String),
    /// More than one domain has `requests`, for example these two.
    Several(String, String),
}

impl fmt::Display for UnclearDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(name) => write!(
                f,
                "gateway.domain: the policy has no domain {name:?} with `requests`, so the gateway \
                 would limit nothing"
            ),
            Self::Several(one, other) => write!(
                f,
                "the domains {one:?} and {other:?} both have `requests`; name the one that the \
                 gateway enforces in gateway.domain"
            ),
        }
    }
}

impl std::error::Error for UnclearDomain {}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    address: IpAddr,
    length: u8,
}

impl Peers {
    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        let (own, bits) = bits(self.address);
        let (peer, peer_bits) = bits_of_peer(peer);
        let shift = bits - u32::from(self.length);
        // Shifting by all bits would overflow.
        bits == peer_bits && (shift == bits || own >> shift == peer >> shift)
    }
}

fn bits(address: IpAddr) -> (u128, u32) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// An IPv4 address on an IPv6 listener is treated as an IPv4 address.
fn bits_of_peer(peer: IpAddr) -> (u128, u32) {
    bits(peer.to_canonical())
}

impl FromStr for Peers {
    type Err = InvalidPeers;

    /// Reads an address, or an address and a length: `10.0.0.0/8`.
    fn from_str(text: &str) -> Result<Self, InvalidPeers> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| InvalidPeers)?;
        let (_, most) = bits(address);
        let length = match length {
            Some(length) => length.parse().ok().filter(|it| u32::from(*it) <= most),
            None => u8::try_from(most).ok(),
        };
        Ok(Self { address, length: length.ok_or(InvalidPeers)? })
    }
}

/// The error for a text that is not a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPeers;

impl fmt::Display for InvalidPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address or a network, such as 10.0.0.0/8")
    }
}

impl std::error::Error for InvalidPeers {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_addresses_and_networks() {
        let contains = |peers: &str, peer: &str| {
            peers.parse::<Peers>().unwrap().contains(peer.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.200.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(contains("127.0.0.1", "127.0.0.1"));
        assert!(!contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("0.0.0.0/0", "192.0.2.1"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("::/0", "2001:db8::1"));
        assert!(contains("2001:db8::/32", "2001:db8:1::1"));
        for text in ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::/129", "a"] {
            assert_eq!(text.parse::<Peers>(), Err(InvalidPeers), "{text}");
        }
    }
}
