//! The gateway in front of Node.js: what real services do, and what they do when they fail.

mod backend;
mod browser;
mod curl;
mod faults;
mod large;
mod real_service;
mod restart;

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_server::{Gateway, RateLimitService, Server, Settings, serve};

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A gateway in this process.
fn gateway(gateway: Gateway) -> Server {
    let settings = Settings {
        proxy: Some(([127, 0, 0, 1], 0).into()),
        admin: Some(([127, 0, 0, 1], 0).into()),
        gateway: Some(gateway),
        drain: TIMEOUT,
        ..Settings::default()
    };
    let service = RateLimitService::new().expect("memory");
    serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"))
}

fn address(server: &Server) -> SocketAddr {
    server.gateway().expect("asked for")
}
