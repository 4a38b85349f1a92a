//! The services behind the gateway.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The most addresses of a service.
pub const MAX_ADDRESSES: usize = 64;

/// A service, at one or several addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Its name in metrics and logs.
    pub name: String,
    /// The addresses of the service: at least one, at most [`MAX_ADDRESSES`].
    pub addresses: Vec<UpstreamAddress>,
    /// The protocol of all addresses.
    pub scheme: Scheme,
    /// Options of `https`.
    pub tls: UpstreamTls,
    /// Maximum number of connections to each address, for all workers together; rounded up to a multiple of the
    /// number of workers.
    pub max_connections: usize,
    /// Timeout for connecting.
    pub connect_timeout: Duration,
    /// Timeout for the head of a response.
    pub head_timeout: Duration,
    /// The longest pause within a response.
    pub idle_timeout: Duration,
    /// How long an address is not used after failures.
    pub eject_for: Duration,
    /// The health check; none if `None`.
    pub health: Option<HealthCheck>,
}

/// An address of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamAddress {
    /// The host name or IP address.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP/1.1.
    Http,
    /// TLS, with HTTP/2 if the upstream chooses it in the handshake, else HTTP/1.1.
    Https,
    /// HTTP/2 without TLS, from the first byte on.
    H2c,
}

/// Options of TLS to an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// CA certificates (PEM) for the certificate of the upstream, instead of the system's.
    pub authority: Option<PathBuf>,
    /// The name in the certificate, if it is not the host of the URL.
    pub server_name: Option<String>,
    /// Whether HTTP/2 is offered in the handshake.
    pub http2: bool,
}

/// Requests that show whether an address can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path, which a healthy address answers with a status from 200 to 399.
    pub path: String,
    /// The time between two checks.
    pub interval: Duration,
    /// Timeout for the head of the response.
    pub timeout: Duration,
    /// Number of failures in a row after which an address is not used.
    pub unhealthy_after: u32,
    /// Number of successes in a row after which an address is used again.
    pub healthy_after: u32,
}

impl Upstream {
    /// The service at these URLs.
    pub fn new(name: &str, urls: &[impl AsRef<str>]) -> Result<Self, InvalidUpstream> {
        let (mut addresses, mut scheme) = (Vec::new(), None);
        for url in urls {
            let url: UpstreamUrl = url.as_ref().parse()?;
            if *scheme.get_or_insert(url.scheme) != url.scheme {
                return Err(InvalidUpstream::Schemes);
            }
            addresses.push(url.address);
        }
        let Some(scheme) = scheme.filter(|_| addresses.len() <= MAX_ADDRESSES) else {
            return Err(InvalidUpstream::Addresses);
        };
        Ok(Self {
            name: name.into(),
            addresses,
            scheme,
            tls: UpstreamTls { authority: None, server_name: None, http2: true },
            max_connections: 1_024,
            connect_timeout: Duration::from_secs(3),
            head_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(60),
            eject_for: Duration::from_secs(10),
            health: None,
        })
    }
}

impl Upstream {
    /// The most connections of each of `workers` workers to an address; at least one.
    pub(crate) const fn connections_of_worker(&self, workers: usize) -> usize {
        self.max_connections.div_ceil(workers)
    }
}

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    /// The service at one URL.
    fn from_str(url: &str) -> Result<Self, InvalidUpstream> {
        Self::new("default", &[url])
    }
}

impl fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// `http://host:port`, `https://host:port` or `h2c://host:port`.
struct UpstreamUrl {
    scheme: Scheme,
    address: UpstreamAddress,
}

impl FromStr for UpstreamUrl {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let invalid = || InvalidUpstream::Url(text.into());
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let (scheme, default_port) = match scheme {
            "http" => (Scheme::Http, 80),
            "https" => (Scheme::Https, 443),
            "h2c" => (Scheme::H2c, 80),
            _ => return Err(invalid()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match authority.rsplit_once(':') {
            // The colons within brackets are part of the address.
            Some((host, port)) if !port.ends_with(']') => {
                (host, port.parse().map_err(|_| invalid())?)
            }
            _ => (authority, default_port),
        };
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address,
            None if host.contains(':') => return Err(invalid()),
            None => host,
        };
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
        if host.is_empty() || port == 0 || !host.bytes().all(is_part) {
            return Err(invalid());
        }
        Ok(Self { scheme, address: UpstreamAddress { host: host.into(), port } })
    }
}

/// Why a text is not an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidUpstream {
    /// The text is not a URL of an upstream.
    Url(String),
    /// The addresses differ in scheme.
    Schemes,
    /// There is no address, or there are more than [`MAX_ADDRESSES`].
    Addresses,
}

impl fmt::Display for InvalidUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(text) => write!(
                f,
                "a URL without a path, such as http://127.0.0.1:9000, https://app:9443 or \
                 h2c://127.0.0.1:50051, found {text:?}"
            ),
            Self::Schemes => f.write_str("URLs of one scheme; make an upstream of each scheme"),
            Self::Addresses => write!(f, "from 1 to {MAX_ADDRESSES} URLs"),
        }
    }
}

impl std::error::Error for InvalidUpstream {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_scheme_a_host_and_a_port() {
        let read = |text: &str| {
            let read = text.parse::<Upstream>().ok()?;
            let UpstreamAddress { host, port } = read.addresses.into_iter().next()?;
            Some((read.scheme, host, port))
        };
        let some = |scheme, host: &str, port| Some((scheme, host.to_owned(), port));
        assert_eq!(read("http://127.0.0.1:9000"), some(Scheme::Http, "127.0.0.1", 9_000));
        assert_eq!(read("http://app/"), some(Scheme::Http, "app", 80));
        assert_eq!(read("https://app"), some(Scheme::Https, "app", 443));
        assert_eq!(read("h2c://app:50051"), some(Scheme::H2c, "app", 50_051));
        assert_eq!(read("http://[::1]:9000"), some(Scheme::Http, "::1", 9_000));
        assert_eq!(read("http://[::1]"), some(Scheme::Http, "::1", 80));
        for text in [
            "",
            "app",
            "app:80",
            "ftp://app",
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
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_share_a_scheme() {
        let read = |urls: &[&str]| Upstream::new("a", urls).map(|it| it.addresses.len());
        assert_eq!(read(&["http://a", "http://b"]), Ok(2));
        assert_eq!(read(&["http://a", "https://b"]), Err(InvalidUpstream::Schemes));
        assert_eq!(read(&[]), Err(InvalidUpstream::Addresses));
        assert_eq!(read(&["http://a"; MAX_ADDRESSES + 1]), Err(InvalidUpstream::Addresses));
    }
}
