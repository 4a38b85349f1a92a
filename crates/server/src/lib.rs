//! The Tidegate daemon, as a library: threads, listeners and listeners.
//!
//! ```text
//!   listener ──socket──▶ worker (one per core) ──bytes──▶ listener ──▶ service ──▶ the store of the process
//!   server.rs            worker.rs                        transport/  service.rs
//! ```
//!
//! ```
//! use tidegate_server::{RateLimitService, Settings, serve};
//!
//! let settings = Settings { resp: Some(([127, 0, 0, 1], 0).into()), ..Settings::default() };
//! let server = serve(&settings, &RateLimitService::new()?)?;
//! println!("redis-cli -p {}", server.resp().expect("asked for").port());
//! server.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fd_limit;
mod findings;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod service;
mod hot_keys;
mod key_values;
mod listener;
mod log;
mod metrics;
mod server;
mod settings;
mod status;
mod store;
mod tls;
mod transport;
mod turns;
mod recovery_log;
mod worker;

pub use service::RateLimitService;
pub use log::{Event, Format, Level, Log, printable};
pub use server::{ServeError, Server, serve};
pub use settings::{
    Address, Answers, Body, EnvoyHeaders, KeyValues, Listen, ProxyHeaders, Settings, TlsFiles,
};
pub use status::{PolicyStatus, Status};
pub use tls::TlsError;
pub use transport::Protocol;
