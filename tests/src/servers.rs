//! Real servers, started for one test and stopped after it.
//!
//! Every server listens on the loopback only, works in a folder of its own, and is stopped by its
//! pid when it is dropped. If the test process is killed instead, a watcher stops it.

mod builder;
mod certificates;
mod clock;
mod cluster;
mod cpu_group;
mod daemon;
mod envoy;
mod folder;
mod outage;
mod ports;
mod process;
mod programs;
mod proxy;
mod sentinels;
mod server;
mod waiting;

pub use builder::Builder;
pub use certificates::{Certificates, Identity};
pub use cluster::Cluster;
pub use cpu_group::{CPU_PERIOD, CpuGroup, Priority};
pub use daemon::{Daemon, DaemonSetup};
pub use envoy::{Burst, Envoy, HttpAnswer, service};
pub use folder::Folder;
pub use ports::free as free_port;
pub use process::Process;
pub use programs::{
    by_debian, by_variable, chromium_program, earlier_program, envoy_program, old_redis_program,
    our_program, valkey_program,
};
pub use proxy::Proxy;
pub use sentinels::Sentinels;
pub use server::RedisServer;
pub use waiting::{Stop, comes_true, wait_until};
