//! Threads, sockets and connections of the daemon.

pub(crate) mod accept;
pub(crate) mod fd_limit;
pub(crate) mod listener;
pub(crate) mod proxy_header;
pub(crate) mod server;
pub(crate) mod tls;
pub(crate) mod turns;
pub(crate) mod worker;
