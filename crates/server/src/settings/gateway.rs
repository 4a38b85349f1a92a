//! Where the gateway forwards requests.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use super::Edge;

/// Settings of the gateway.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The service that requests are forwarded to.
    pub upstream: Upstream,
    /// The domain of the policy; by default the only one with `requests`.
    pub domain: Option<String>,
    /// Proxies in front of the gateway, whose `X-Forwarded-*` and similar fields are kept. Those of all other
    /// peers are dropped.
    pub trusted: Vec<Peers>,
    /// How it faces its clients.
    pub edge: Edge,
}

impl Gateway {
    /// Whether fields that describe the client come from a proxy of the operator.
    pub(crate) fn is_trusted(&self, peer: Option<IpAddr>) -> bool {
        peer.is_some_and(|peer| self.trusted.iter().any(|peers| peers.contains(peer)))
    }
}

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its host name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The most connections to it, of all workers together.
    pub max_connections: usize,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long the head of a response may take.
    pub head_timeout: Duration,
}

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    /// Reads `http://host` or `http://host:port`.
    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let rest = text.strip_prefix("http://").ok_or(InvalidUpstream)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an address in brackets are its own.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| InvalidUpstream)?)
            }
            _ => (authority, 80),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address,
            None if host.contains(':') => return Err(InvalidUpstream),
            None => host,
        };
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || port == 0 || !host.bytes().all(is_part) {
            return Err(InvalidUpstream);
        }
        Ok(Self {
            host: host.into(),
            port,
            max_connections: 1_024,
            connect_timeout: Duration::from_secs(1),
            head_timeout: Duration::from_secs(30),
        })
    }
}

/// A text that is not the URL of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUpstream;

impl fmt::Display for InvalidUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a URL without a path, such as http://127.0.0.1:9000")
    }
}

impl std::error::Error for InvalidUpstream {}

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

/// An IPv4 address that a listener for IPv6 shows is an IPv4 address.
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

/// A text that is no range of addresses.
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
    fn an_upstream_is_a_host_and_a_port() {
        let read = |text: &str| text.parse::<Upstream>().map(|it| (it.host, it.port));
        assert_eq!(read("http://127.0.0.1:9000"), Ok(("127.0.0.1".into(), 9_000)));
        assert_eq!(read("http://app/"), Ok(("app".into(), 80)));
        assert_eq!(read("http://[::1]:9000"), Ok(("::1".into(), 9_000)));
        assert_eq!(read("http://[::1]"), Ok(("::1".into(), 80)));
        for text in [
            "",
            "app",
            "app:80",
            "https://app",
            "http://",
            "http://:80",
            "http://app:x",
            "http://app:0",
            "http://app:70000",
            "http://app/path",
            "http://a b",
            "http://u@app",
            "http://::1:80",
        ] {
            assert_eq!(read(text), Err(InvalidUpstream), "{text}");
        }
    }

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
