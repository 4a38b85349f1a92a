//! Settings of the gateway for connections of clients.

use std::fmt;

use tidegate::{InFlight, InvalidLimit, Limit, Rate};

use super::Peers;

/// Settings of the gateway for connections of clients.
#[derive(Clone, Debug, Default)]
pub struct Edge {
    /// Limits of the connections of one address; none by default, because many clients may share one.
    pub per_address: AddressLimits,
    /// Load balancers that send a PROXY protocol header first. If the list is not empty, this
    /// includes every peer on a Unix socket.
    pub proxies: Vec<Peers>,
    /// The format of the access log; none by default.
    pub access_log: Option<AccessFormat>,
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessFormat {
    /// `name=value`.
    Text,
    /// One object for each line.
    Json,
}

/// Limits of the connections of one IPv4 address, or of one /64 of IPv6.
#[derive(Clone, Default)]
pub struct AddressLimits {
    pub(crate) connections: Option<Limit>,
    pub(crate) rate: Option<Limit>,
}

impl AddressLimits {
    /// Sets the maximum number of open connections; 0 means no limit.
    pub fn connections(mut self, most: u64) -> Result<Self, InvalidLimit> {
        self.connections = match most {
            0 => None,
            most => Some(Limit::in_flight(most, InFlight::NO_EXPIRY)?),
        };
        Ok(self)
    }

    /// Sets the maximum rate of new connections, and a burst; the default burst is the count of the
    /// rate.
    pub fn rate(mut self, rate: Rate, burst: Option<u64>) -> Result<Self, InvalidLimit> {
        let limit = Limit::token_bucket(rate);
        self.rate = Some(burst.map_or(limit, |burst| limit.burst(burst)).build()?);
        Ok(self)
    }
}

impl fmt::Debug for AddressLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressLimits")
            .field("connections", &self.connections.is_some())
            .field("rate", &self.rate.is_some())
            .finish()
    }
}
