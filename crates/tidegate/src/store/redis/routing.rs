//! Chooses the server for each key: single server, Sentinel or Cluster.

pub(super) mod cluster;
pub(super) mod reserve;
pub(super) mod route;
pub(super) mod sentinel;
pub(super) mod server_queue;
