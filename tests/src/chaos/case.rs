//! Every row of the failure table that is measured.

use super::figure::Figure;
use super::pace::Pace;
use super::{
    failover, far, fleet, herd, hot_key, hung, node_clock, pause, places, refusal, shard, slow,
    starved, store_clock, unreachable, upgrade,
};

/// One failure.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The id in the failure table, with a letter if one row has several cases.
    pub id: &'static str,
    /// The failure, in words.
    pub outage: &'static str,
    /// Causes the failure, and measures its effect.
    pub run: fn(&Pace) -> Vec<Figure>,
}

const fn case(id: &'static str, outage: &'static str, run: fn(&Pace) -> Vec<Figure>) -> Case {
    Case { id, outage, run }
}

/// Every case.
pub const CASES: &[Case] = &[
    case("F1", "Redis is killed and started again (SIGKILL)", unreachable::killed),
    case("F1b", "connections are reset, lost, half-closed, truncated, delayed", slow::broken),
    case("F2", "Redis hangs (SIGSTOP)", hung::stopped),
    case("F2b", "Redis pauses all commands (CLIENT PAUSE)", hung::client_pause),
    case("F2c", "Redis stops for a moment: three daemons, load at the limit", pause::pauses),
    case("F3", "three of ten replies are 20 ms late", slow::lossy),
    case("F4", "one node of a cluster hangs (SIGSTOP)", shard::hangs),
    case("F5", "failover to a replica that missed the last writes", failover::loses_writes),
    case("F5b", "Redis forgets its scripts (SCRIPT FLUSH), every 50 ms", failover::loses_scripts),
    case("F6", "split brain: both sides have a primary", failover::splits),
    case("F7", "the clock of a node is stepped by an hour, forth and back", node_clock::steps),
    case("F8", "the clock of Redis is stepped by an hour, forth and back", store_clock::steps),
    case("F9", "a process that holds 100 in-flight leases is killed", places::holder_dies),
    case("F10", "8 processes, one killed 4 times a second, leased tier", fleet::crashes),
    case("F12", "Redis refuses commands when the daemon starts", refusal::at_start),
    case("F12b", "Redis is full while the daemon runs", refusal::under_load),
    case("F13", "Redis is available again, and all clients return at once", unreachable::herd),
    case("F13b", "Redis is unavailable, and 200 clients follow Retry-After", herd::waits),
    case("F14", "one key at ten times its limit on 8 nodes, exact tier", hot_key::exact),
    case("F14b", "one key at ten times its limit in 8 processes, leased tier", fleet::overload),
    case("F14c", "one key at its limit in 8 processes, leased tier", fleet::at_the_limit),
    case("F22", "every reply arrives after its deadline", slow::late),
    case("F23", "8 processes, one stopped (SIGSTOP) at a time, leased tier", fleet::suspended),
    case("F23b", "8 processes killed and stopped at random, leased tier", fleet::leased),
    case("F23c", "8 processes killed and stopped at random, exact tier", fleet::exact),
    case("F24", "four daemons are replaced one after the other, under load", upgrade::rolling),
    case("starved", "three daemons are starved of CPU, Redis is not", starved::starved),
    case("far", "Redis is far away: three daemons with default settings", far::far),
];
