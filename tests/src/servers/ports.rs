//! Free ports.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// Below the ports that Linux assigns to outgoing connections. Otherwise a client could be assigned
/// the port of a server that is down, and keep it from restarting or connect to itself. The bus of
/// a cluster node, `BUS_OFFSET` higher, has to be below them too.
const PORTS: Range<u16> = 10_000..22_000;
/// Distance between the port of a node and its cluster bus, fixed by Redis.
const BUS_OFFSET: u16 = 10_000;
const MOST_TRIES: u32 = 1_000;

/// A port that is free now; it may be taken before it is used.
pub fn free() -> u16 {
    find(is_free)
}

/// A port that is free now, whose cluster bus port is free too.
pub(crate) fn free_with_bus() -> u16 {
    find(|port| is_free(port) && is_free(port + BUS_OFFSET))
}

fn find(mut is_free: impl FnMut(u16) -> bool) -> u16 {
    let mut tries = (0..MOST_TRIES).map(|_| fastrand::u16(PORTS));
    tries.find(|&port| is_free(port)).expect("of a thousand ports one is free")
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}
