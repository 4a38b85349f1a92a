//! The gRPC transport: every conformance case, what is refused, and how connections live and end.

mod calls;
mod conformance;
mod life;
mod services;

use std::num::NonZeroUsize;
use std::time::Duration;

use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::grpc::GrpcClient;

/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const POLICY: &str = "
domain: api
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: token
    limits:
      - {name: tokens, rate: 2/min}
";

struct Transport {
    server: Server,
    service: RateLimitService,
    clock: ManualClock,
}

impl Transport {
    fn open() -> Self {
        Self::with(&Settings::default(), POLICY)
    }

    /// With these settings, but for where it listens.
    fn with(settings: &Settings, policy: &str) -> Self {
        let clock = ManualClock::new();
        let service = RateLimitService::with_clock(Clock::from(clock.clone())).expect("memory");
        let loaded = Policy::load(&[("policy.yaml", policy)], Merging::Refuse);
        service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
        Self { server: serve_grpc(settings, &service), service, clock }
    }

    fn client(&self) -> GrpcClient {
        GrpcClient::connect(self.server.grpc().expect("asked for"))
    }
}

fn serve_grpc(settings: &Settings, service: &RateLimitService) -> Server {
    let settings = Settings {
        grpc: Some(([127, 0, 0, 1], 0).into()),
        threads: NonZeroUsize::MIN,
        drain: TIMEOUT,
        ..settings.clone()
    };
    serve(&settings, service).unwrap_or_else(|error| panic!("{error}"))
}
