//! The upstreams of the gateway, and its domain and trusted peers.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use hyper::header::HeaderName;

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
    /// Further headers that are dropped like `X-Forwarded-*`: the ones that a service trusts.
    pub drop_headers: HeaderNames,
    /// Maximum bytes of a request's body; no maximum if `None`.
    pub max_body: Option<u64>,
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
            drop_headers: HeaderNames::default(),
            max_body: None,
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
        let Some(one) = having_rules.next().map(Domain::name) else { return Ok(None) };
        match having_rules.next().map(Domain::name) {
            None => Ok(Some(one)),
            // In the order of the alphabet, because the domains have none.
            Some(other) => {
                Err(UnclearDomain::Several(one.min(other).into(), one.max(other).into()))
            }
        }
    }

    /// Whether the peer is a trusted proxy of the operator. A peer on a Unix socket has no address,
    /// unless it sends a PROXY protocol header.
    pub(crate) fn is_trusted(&self, peer: Option<IpAddr>, is_unix: bool) -> bool {
        match peer {
            Some(peer) => self.trusted.iter().any(|peers| peers.contains(peer)),
            None => is_unix && self.trusted.contains(&Peers(Range::Unix)),
        }
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

/// A range of addresses, or all peers on Unix sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers(Range);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Range {
    Unix,
    Addresses { address: IpAddr, length: u8 },
}

impl Peers {
    pub(crate) fn contains(&self, peer: IpAddr) -> bool {
        let Range::Addresses { address, length } = self.0 else { return false };
        let (own, bits) = bits(address);
        let (peer, peer_bits) = bits_of_peer(peer);
        let shift = bits - u32::from(length);
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

    /// Reads an address, an address and a length such as `10.0.0.0/8`, or `unix`.
    fn from_str(text: &str) -> Result<Self, InvalidPeers> {
        if text == "unix" {
            return Ok(Self(Range::Unix));
        }
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
        let length = length.ok_or(InvalidPeers)?;
        Ok(Self(Range::Addresses { address, length }))
    }
}

/// The error for a text that is neither a range of addresses nor `unix`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPeers;

impl fmt::Display for InvalidPeers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address or a network such as 10.0.0.0/8, or unix")
    }
}

impl std::error::Error for InvalidPeers {}

/// The most names in [`HeaderNames`].
const MAX_NAMES: usize = 64;

/// Names of headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderNames(Option<Arc<[HeaderName]>>);

impl HeaderNames {
    /// No names.
    pub(crate) const NONE: Self = Self(None);

    /// Reads at most 64 names, without underscores. Headers that delimit or route a message, or that
    /// concern one connection, cannot be dropped.
    pub fn new(names: &[impl AsRef<str>]) -> Result<Self, InvalidHeaderNames> {
        const NEEDED: [&str; 14] = [
            "close",
            "connection",
            "content-length",
            "content-type",
            "expect",
            "host",
            "http2-settings",
            "keep-alive",
            "proxy-authorization",
            "proxy-connection",
            "te",
            "trailer",
            "transfer-encoding",
            "upgrade",
        ];
        let is_allowed = |name: &HeaderName| {
            let name = name.as_str();
            !name.contains('_') && !NEEDED.contains(&name)
        };
        if names.is_empty() {
            return Ok(Self(None));
        }
        let names = names.iter().map(|name| name.as_ref().parse().ok());
        let names = names.map(|name| name.filter(is_allowed));
        let names: Option<Arc<[HeaderName]>> = names.collect();
        let names = names.filter(|names| names.len() <= MAX_NAMES).ok_or(InvalidHeaderNames)?;
        Ok(Self(Some(names)))
    }

    /// Whether a name in lower case is one of them.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.as_ref().is_some_and(|names| names.iter().any(|own| own == name))
    }
}

/// The error for names that are none of headers that can be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHeaderNames;

impl fmt::Display for InvalidHeaderNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "at most {MAX_NAMES} names of headers such as X-User-Id, without underscores; Host, \
             Content-Type, Expect and those of the connection cannot be dropped"
        )
    }
}

impl std::error::Error for InvalidHeaderNames {}

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
        assert!(!contains("unix", "127.0.0.1"));
        for text in ["", "10.0.0.0/33", "10.0.0.0/", "10.0.0/8", "::/129", "a"] {
            assert_eq!(text.parse::<Peers>(), Err(InvalidPeers), "{text}");
        }
    }

    #[test]
    fn peers_on_unix_sockets_are_trusted_only_if_they_are_listed() {
        let gateway = |trusted: &[&str]| {
            let trusted = trusted.iter().map(|peers| peers.parse().unwrap()).collect();
            Gateway { trusted, ..Gateway::new("http://a".parse().unwrap()) }
        };
        assert!(gateway(&["unix"]).is_trusted(None, true));
        // The address of a TCP peer may be unknown.
        assert!(!gateway(&["unix"]).is_trusted(None, false));
        assert!(!gateway(&["unix"]).is_trusted(Some([127, 0, 0, 1].into()), true));
        assert!(!gateway(&["0.0.0.0/0", "::/0"]).is_trusted(None, true));
    }

    #[test]
    fn names_of_headers_are_read_in_any_case() {
        let names = HeaderNames::new(&["X-User-Id", "x-role"]).unwrap();
        assert!(names.contains("x-user-id") && names.contains("x-role"));
        assert!(!names.contains("x-user") && !HeaderNames::NONE.contains("x-user"));
        for wrong in [
            "",
            "a b",
            "x-ä",
            "Host",
            "content-length",
            "Transfer-Encoding",
            "Keep-Alive",
            "close",
            "Expect",
            "Trailer",
            "X_User_Id",
        ] {
            assert_eq!(HeaderNames::new(&[wrong]), Err(InvalidHeaderNames), "{wrong}");
        }
        let many: Vec<String> = (0..=MAX_NAMES).map(|number| format!("x-{number}")).collect();
        assert_eq!(HeaderNames::new(&many), Err(InvalidHeaderNames));
    }
}
