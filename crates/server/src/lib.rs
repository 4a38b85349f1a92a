//! The Tidegate daemon, as a library: threads, listeners and transports.
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

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod observability;
mod runtime;
mod service;
mod settings;
mod store;
mod transport;

pub use observability::log::{Format, Level, Log, printable};
pub use observability::status::{PolicyStatus, Status};
pub use runtime::listener::Inherited;
pub use runtime::server::{ServeError, Server, serve, serve_on};
pub use runtime::tls::TlsError;
pub use service::RateLimitService;
pub use settings::{
    AccessFormat, Address, AddressLimits, Answers, Body, Edge, EnvoyHeaders, Gateway, HeaderNames,
    HealthCheck, InvalidHeaderNames, InvalidPeers, InvalidRoute, InvalidUpstream, KeyValues,
    Listen, MAX_ADDRESSES, Peers, ProxyHeaders, Route, Scheme, Settings, TlsFiles, UnclearDomain,
    Upstream, UpstreamAddress, UpstreamTls,
};
pub use transport::Protocol;
