//! A server in this process whose time stands still, asked by sockets: what is sent is what stands in
//! the tests.

use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::Value;
use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock};
use tidegate_server::{RateLimitService, Server, Settings, serve};
use tidegate_tests::http::{self, Answer};

/// Far longer than anything here takes; only so that what hangs fails.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// A server whose HTTP transport is open.
pub(crate) struct Transport {
    pub(crate) server: Server,
    pub(crate) clock: ManualClock,
}

/// The body of an answer.
pub(crate) trait Json {
    fn json(&self) -> Value;
}

impl Json for Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Settings of a server that only speaks HTTP.
pub(crate) fn settings() -> Settings {
    let http = Some(([127, 0, 0, 1], 0).into());
    Settings { http, threads: NonZeroUsize::MIN, drain: TIMEOUT, ..Settings::default() }
}

/// The policy of a text.
pub(crate) fn policy(text: &str) -> Policy {
    let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

impl Transport {
    pub(crate) fn open(policy: &str) -> Self {
        Self::with(&settings(), policy)
    }

    pub(crate) fn with(settings: &Settings, policy: &str) -> Self {
        Self::at(ManualClock::new(), settings, self::policy(policy))
    }

    pub(crate) fn at(clock: ManualClock, settings: &Settings, policy: Policy) -> Self {
        let service = RateLimitService::with_clock(Clock::from(clock.clone())).expect("memory");
        service.replace(policy);
        let server = serve(settings, &service).unwrap_or_else(|error| panic!("{error}"));
        Self { server, clock }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.http().expect("asked for")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        http::connect(self.address())
    }

    /// Sends this and nothing more, and takes what comes back until the connection ends.
    pub(crate) fn send(&self, request: impl AsRef<[u8]>) -> Answer {
        http::send(self.address(), request)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, headers: &str) -> Answer {
        self.send(format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n"
        ))
    }

    pub(crate) fn get(&self, path: &str, headers: &str) -> Answer {
        self.ask("GET", path, headers)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Answer {
        http::ask(self.address(), &format!("POST {path}"), "", body)
    }

    pub(crate) fn check(&self, question: &Value) -> Answer {
        self.post("/v1/check", &question.to_string())
    }
}
