//! The gateway, between sockets that say what stands in the tests.

mod accept;
mod balancing;
mod bodies;
mod dying;
mod floods;
mod forwarding;
mod frames;
mod grpc;
mod http2;
mod http2_client;
mod http2_security;
mod http2_upstream;
mod interim;
mod limits;
mod odd_requests;
mod odd_responses;
mod proxy_protocol;
mod routes;
mod security;
mod service;
mod tonic_service;
mod upgrades;
mod upstream_tls;

use std::net::SocketAddr;
use std::time::Duration;

use tidegate::{Clock, ManualClock};
use tidegate_server::{Gateway, Listen, RateLimitService, Server, Settings, Upstream, serve};
use tidegate_tests::http::get;

use self::service::Service;
use crate::http::transport::{TIMEOUT, policy};

/// A gateway in this process, in front of a service.
struct Front {
    server: Server,
    clock: ManualClock,
    service: Service,
}

/// Five requests a minute for each user.
const FIVE: &str = "
domain: api
requests:
  rules:
    - descriptors: [{entries: [{key: user, header: x-user}]}]
descriptors:
  - {key: user, rate: 5/min}
";

impl Front {
    fn open(text: &str) -> Self {
        Self::with(text, |_| {})
    }

    fn with(text: &str, change: impl FnOnce(&mut Gateway)) -> Self {
        Self::set(text, change, |_| {})
    }

    fn at(listen: Listen, text: &str, change: impl FnOnce(&mut Gateway)) -> Self {
        Self::set(text, change, |settings| settings.proxy = Some(listen))
    }

    fn set(text: &str, change: impl FnOnce(&mut Gateway), set: impl FnOnce(&mut Settings)) -> Self {
        let service = Service::start();
        let upstream: Upstream = format!("http://{}", service.address()).parse().expect("a URL");
        let head_timeout = Duration::from_secs(2);
        let mut gateway = Gateway::new(Upstream { head_timeout, ..upstream });
        change(&mut gateway);
        let mut settings = Settings {
            proxy: Some(([127, 0, 0, 1], 0).into()),
            admin: Some(([127, 0, 0, 1], 0).into()),
            gateway: Some(gateway),
            drain: TIMEOUT,
            ..Settings::default()
        };
        set(&mut settings);
        let clock = ManualClock::new();
        let limits = RateLimitService::with_clock(Clock::from(clock.clone())).expect("memory");
        if !text.is_empty() {
            limits.replace(policy(text));
        }
        let server = serve(&settings, &limits).unwrap_or_else(|error| panic!("{error}"));
        Self { server, clock, service }
    }

    fn address(&self) -> SocketAddr {
        self.server.gateway().expect("asked for")
    }

    /// The value of a metric, by its name and labels.
    fn metric(&self, sample: &str) -> u64 {
        let page = get(self.server.admin().expect("asked for"), "/metrics", "").body;
        let line = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {sample} in {page}")).parse().expect("a number")
    }
}
