//! Reads the gateway's settings for connections of clients.

use tidegate_core::Rate;
use tidegate_server::{AccessFormat, AddressLimits, Edge, Peers};

use crate::settings::Chosen;

/// The gateway's settings for connections of clients.
pub(super) fn edge(chosen: &Chosen) -> Result<Edge, String> {
    Ok(Edge {
        per_address: per_address(chosen)?,
        proxies: peers(chosen, "gateway.proxy_protocol_peers")?,
        access_log: access_log(chosen),
    })
}

/// The format of the access log.
fn access_log(chosen: &Chosen) -> Option<AccessFormat> {
    match &*chosen.text("gateway.access_log")? {
        "text" => Some(AccessFormat::Text),
        "json" => Some(AccessFormat::Json),
        _ => None,
    }
}

fn per_address(chosen: &Chosen) -> Result<AddressLimits, String> {
    let connections = chosen.number("gateway.per_address.connections").unwrap_or(0);
    let limits = AddressLimits::default()
        .connections(connections)
        .map_err(|error| format!("gateway.per_address.connections: {error}"))?;
    let burst = chosen.number("gateway.per_address.burst");
    match chosen.text("gateway.per_address.rate") {
        Some(text) => {
            let wrong = |why| {
                format!(
                    "gateway.per_address.rate: expected a rate such as 50/s, found {text:?}: {why}"
                )
            };
            let rate: Rate = text.parse().map_err(wrong)?;
            limits.rate(rate, burst).map_err(wrong)
        }
        None if burst.is_some() => Err("gateway.per_address.burst: a burst needs a rate; set \
                                        gateway.per_address.rate, for example to 50/s"
            .into()),
        None => Ok(limits),
    }
}

/// A list of addresses and networks.
pub(super) fn peers(chosen: &Chosen, setting: &str) -> Result<Vec<Peers>, String> {
    let peers = chosen.list(setting);
    let read = peers.iter().map(|peers| {
        peers.parse().map_err(|expected| format!("{setting}: expected {expected}, found {peers:?}"))
    });
    read.collect()
}
