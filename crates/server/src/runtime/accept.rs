//! Limits of the connections of one address, decided before TLS.

use std::net::IpAddr;

use tidegate::{Admission, BuildError, Clock, Limiter, Permit};
use tracing::warn;

use crate::observability::log::Log;
use crate::observability::status::Counters;
use crate::observability::throttle::{Admitted, Frequent};
use crate::settings::{Edge, Gateway, Peers};
use crate::transport::Protocol;

/// Maximum memory for the states of addresses.
const MAX_BYTES: u64 = 16 << 20;

const CONNECTIONS: &str = "connections";
const RATE: &str = "rate";

/// The limits of a listener's connections.
#[derive(Debug)]
pub(crate) struct Accept {
    limiter: Option<Limiter>,
    /// Peers that send a PROXY protocol header.
    proxies: Vec<Peers>,
    /// Peers that forward the requests of many clients and have no limits of their own.
    exempt: Vec<Peers>,
}

/// Why a connection is closed before it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The listener or the process has reached its maximum number of connections.
    Full,
    /// The address has reached its maximum number of connections.
    AddressConnections,
    /// The address opens connections too fast.
    AddressRate,
    /// The PROXY protocol header is missing, malformed or late.
    ProxyHeader,
}

impl Refusal {
    pub(crate) const ALL: [Self; 4] =
        [Self::Full, Self::AddressConnections, Self::AddressRate, Self::ProxyHeader];

    /// The name in metrics and in the log.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::AddressConnections => "address_connections",
            Self::AddressRate => "address_rate",
            Self::ProxyHeader => "proxy_header",
        }
    }
}

impl Accept {
    /// The limits in the settings of the gateway.
    pub(crate) fn new(gateway: &Gateway, clock: &Clock) -> Result<Self, BuildError> {
        let Edge { per_address, proxies, .. } = &gateway.edge;
        let limits = [(CONNECTIONS, per_address.connections), (RATE, per_address.rate)];
        let limits = limits.into_iter().filter_map(|(name, limit)| Some((name, limit?)));
        let builder = Limiter::builder().max_bytes(MAX_BYTES).clock(clock.clone());
        let has_limits = per_address.connections.is_some() || per_address.rate.is_some();
        let builder = limits.fold(builder, |builder, (name, limit)| builder.limit(name, limit));
        let limiter = has_limits.then(|| builder.build()).transpose()?;
        Ok(Self { limiter, proxies: proxies.clone(), exempt: gateway.trusted.clone() })
    }

    /// Whether a peer must send a PROXY protocol header first.
    pub(crate) fn expects_header(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            Some(peer) => self.proxies.iter().any(|peers| peers.contains(peer)),
            None => !self.proxies.is_empty(),
        }
    }

    /// Admits a connection of this client, and returns its place; `None` if the client is not
    /// limited.
    pub(crate) fn admit(&self, client: Option<IpAddr>) -> Result<Option<Permit>, Refusal> {
        let (Some(limiter), Some(client)) = (&self.limiter, client) else { return Ok(None) };
        if self.exempt.iter().any(|peers| peers.contains(client)) {
            return Ok(None);
        }
        match limiter.acquire(key(client)) {
            Admission::Granted(permit) => Ok(Some(permit)),
            Admission::Denied(verdict) => {
                let name = verdict.binding().and_then(|number| limiter.limit_name(number));
                Err(match name.as_deref() {
                    Some(CONNECTIONS) => Refusal::AddressConnections,
                    _ => Refusal::AddressRate,
                })
            }
        }
    }
}

/// The address, or the /64 of an IPv6 address, because a customer has at least a /64.
fn key(client: IpAddr) -> [u8; 9] {
    let mut key = [0; 9];
    match client.to_canonical() {
        IpAddr::V4(address) => {
            key[0] = 4;
            key[1..5].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            key[0] = 6;
            key[1..].copy_from_slice(&address.octets()[..8]);
        }
    }
    key
}

/// Counts a refused connection, and logs it unless another one was logged within the last second.
pub(crate) fn refuse(
    refusal: Refusal,
    protocol: Protocol,
    client: Option<IpAddr>,
    (counters, log): (&Counters, &Log),
) {
    counters.count_refused(protocol, refusal);
    let (kind, why) = match refusal {
        Refusal::Full => (Frequent::ConnectionRefused, "too many connections"),
        Refusal::AddressConnections => {
            (Frequent::AddressRefused, "too many connections from this address")
        }
        Refusal::AddressRate => {
            (Frequent::AddressRefused, "too many new connections from this address")
        }
        Refusal::ProxyHeader => (Frequent::HeaderRefused, "no valid PROXY protocol header"),
    };
    if let Some(Admitted { suppressed }) = log.admit(kind) {
        let (event, listener, reason) = ("connection_refused", protocol.name(), refusal.name());
        let client = client.map(|client| client.to_string());
        warn!(event, listener, reason, client, suppressed, "connection refused: {why}");
    }
}

#[cfg(test)]
mod tests {
    use tidegate::{ManualClock, Rate, Span};

    use super::*;
    use crate::settings::{AddressLimits, Upstream};

    fn accept(change: impl FnOnce(&mut Gateway)) -> (Accept, ManualClock) {
        let upstream: Upstream = "http://127.0.0.1:9000".parse().unwrap();
        let mut gateway = Gateway::new(upstream);
        change(&mut gateway);
        let clock = ManualClock::new();
        (Accept::new(&gateway, &Clock::from(clock.clone())).unwrap(), clock)
    }

    fn admit(accept: &Accept, client: &str) -> Result<Option<Permit>, Refusal> {
        accept.admit(Some(client.parse().unwrap()))
    }

    #[test]
    fn a_64_of_ipv6_counts_as_one_address() {
        let (accept, clock) = accept(|gateway| {
            let rate = AddressLimits::default().rate(Rate::per_second(50), Some(3));
            gateway.edge.per_address = rate.unwrap();
        });
        for address in ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:0:0:3"] {
            assert!(admit(&accept, address).is_ok(), "{address}");
        }
        assert_eq!(admit(&accept, "2001:db8::4").unwrap_err(), Refusal::AddressRate);
        assert!(admit(&accept, "2001:db8:0:1::4").is_ok());
        // An IPv4 address in both spellings is one address; different addresses have separate
        // limits.
        for address in ["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"] {
            assert!(admit(&accept, address).is_ok(), "{address}");
        }
        assert_eq!(admit(&accept, "::ffff:192.0.2.1").unwrap_err(), Refusal::AddressRate);
        assert!(admit(&accept, "192.0.2.2").is_ok());
        clock.advance(Span::from_millis(20));
        assert!(admit(&accept, "2001:db8::4").is_ok());
        assert_eq!(admit(&accept, "2001:db8::4").unwrap_err(), Refusal::AddressRate);
    }

    #[test]
    fn a_connection_counts_until_it_ends() {
        let (accept, _) = accept(|gateway| {
            gateway.edge.per_address = AddressLimits::default().connections(2).unwrap();
            gateway.trusted = vec!["10.0.0.0/8".parse().unwrap()];
        });
        let held = [admit(&accept, "192.0.2.1"), admit(&accept, "192.0.2.1")];
        assert_eq!(admit(&accept, "192.0.2.1").unwrap_err(), Refusal::AddressConnections);
        drop(held);
        assert!(admit(&accept, "192.0.2.1").is_ok());
        let proxies: Vec<_> = (0..10).map(|_| admit(&accept, "10.0.0.1").unwrap()).collect();
        assert!(proxies.iter().all(Option::is_none), "trusted peers have no limit");
        assert!(accept.admit(None).unwrap().is_none());
    }
}
