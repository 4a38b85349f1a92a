//! The input and the output of a load generator.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Paths of the classes, most important first.
pub const CLASSES: [&str; 4] = ["critical", "write", "read", "test"];

/// One load on one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub address: SocketAddr,
    /// The address for control requests of phases; set when the server runs.
    #[serde(default)]
    pub backend: Option<SocketAddr>,
    pub phases: Vec<Phase>,
    /// Requests of each class, in per cent.
    pub mix: [u32; CLASSES.len()],
    pub deadline_ms: u64,
    /// Number of retries after a failure, each after up to 40 ms.
    pub retries: u32,
    pub connections: usize,
    /// The number of clients of a closed loop, each with one request after the other; the rates of
    /// the phases are ignored.
    pub closed: Option<usize>,
    pub sender: Sender,
    /// Clients that take a second to read the response, in per cent.
    pub slow_readers: u32,
    pub seed: u64,
}

/// How clients react to failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sender {
    /// Clients retry up to `retries` times.
    Naive,
    /// Clients use the client layers of this project, without settings.
    Client,
}

/// A part of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Requests per second.
    pub rate: f64,
    pub seconds: u32,
    /// Requested from the backend at the start of the phase.
    pub control: Option<String>,
}

impl Phase {
    pub const fn new(rate: f64, seconds: u32) -> Self {
        Self { rate, seconds, control: None }
    }

    pub fn with(self, control: &str) -> Self {
        Self { control: Some(control.to_owned()), ..self }
    }
}

impl Spec {
    pub fn new(address: SocketAddr, phases: Vec<Phase>) -> Self {
        Self {
            address,
            backend: None,
            phases,
            mix: [20, 20, 50, 10],
            deadline_ms: 100,
            retries: 0,
            connections: super::load::CONNECTIONS,
            closed: None,
            sender: Sender::Naive,
            slow_readers: 0,
            seed: 1,
        }
    }

    pub fn seconds(&self) -> u32 {
        self.phases.iter().map(|phase| phase.seconds).sum()
    }
}

/// What happened to the requests that were due in one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Requests, without retries.
    pub requests: [u32; CLASSES.len()],
    /// Requests answered within the deadline.
    pub served: [u32; CLASSES.len()],
    /// Attempts that got 503.
    pub shed: [u32; CLASSES.len()],
    /// Attempts, retries among them.
    pub attempts: u32,
    /// Attempts that ended in any other way than an answer: no connection was free, or it broke.
    pub broken: u32,
    /// The largest lateness of the generator, in microseconds.
    pub lateness_us: u32,
    /// Latencies of admitted requests that ended in this second, from when they were due.
    pub p50_us: u32,
    pub p99_us: u32,
    /// The limit, if the server reports it.
    #[serde(default)]
    pub limit: Option<u32>,
}

impl Second {
    pub fn served(&self) -> u32 {
        self.served.iter().sum()
    }

    pub fn requests(&self) -> u32 {
        self.requests.iter().sum()
    }
}
