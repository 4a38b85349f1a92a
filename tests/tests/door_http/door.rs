//! A server in this process whose time stands still, asked by sockets: what is sent is what stands in
//! the tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::time::Duration;

use serde_json::Value;
use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock};
use tidegate_server::{Gate, Server, Settings, serve};

/// Far longer than anything here takes; only so that what hangs fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server whose HTTP door is open.
pub(crate) struct Door {
    pub(crate) server: Server,
    pub(crate) clock: ManualClock,
}

/// An answer, taken apart.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head ends with an empty line");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Self { status: status.expect("a status"), head: head.to_lowercase(), body: body.into() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Settings of a server that only speaks HTTP.
pub(crate) fn settings() -> Settings {
    let http = Some(([127, 0, 0, 1], 0).into());
    Settings { http, threads: NonZeroUsize::MIN, drain: PATIENCE, ..Settings::default() }
}

impl Door {
    pub(crate) fn open(policy: &str) -> Self {
        Self::with(&settings(), policy)
    }

    pub(crate) fn with(settings: &Settings, policy: &str) -> Self {
        let loaded = Policy::load(&[("policy.yaml", policy)], Merging::Refuse);
        let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
        Self::at(ManualClock::new(), settings, policy)
    }

    pub(crate) fn at(clock: ManualClock, settings: &Settings, policy: Policy) -> Self {
        let gate = Gate::with_clock(Clock::from(clock.clone())).expect("memory");
        gate.replace(policy);
        let server = serve(settings, &gate).unwrap_or_else(|error| panic!("{error}"));
        Self { server, clock }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.http().expect("asked for")
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address()).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("not zero");
        socket.set_write_timeout(Some(PATIENCE)).expect("not zero");
        socket
    }

    /// Sends this and nothing more, and takes what comes back until the connection ends.
    pub(crate) fn send(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut socket = self.connect();
        // It may be closed before all of it is sent.
        let _ = socket.write_all(request.as_ref());
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        Answer::read(&String::from_utf8_lossy(&answer))
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
        let length = body.len();
        self.send(format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        ))
    }

    pub(crate) fn check(&self, question: &Value) -> Answer {
        self.post("/v1/check", &question.to_string())
    }
}
