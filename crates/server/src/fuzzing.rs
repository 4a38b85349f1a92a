//! What fuzzers call: every parser of what strangers send, with what must hold for any bytes.
//!
//! No part of the interface; behind the feature `fuzzing`.

#![allow(clippy::expect_used, clippy::panic, reason = "a fuzzer is told by a panic")]

use std::sync::OnceLock;

use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock};

use crate::gate::{Gate, at_once};
use crate::settings::{Answers, ProxyHeaders};
use crate::transport::{http, resp, rls};

/// A policy whose rules are met by what the seeds ask.
const POLICY: &str = "
domain: api
requests:
  rules:
    - path: /items/{id}
      descriptors:
        - entries:
            - {key: api_key, header: x-api-key}
descriptors:
  - key: api_key
    rate: 5/s
  - key: user
    limits:
      - {name: fast, rate: 10/s, algorithm: gcra}
      - {name: day, rate: 100/day, algorithm: sliding_window}
  - key: legacy
    rate_limit: {unit: minute, requests_per_unit: 3}
";

/// One for all calls, in whose memory little fits: what is forgotten is part of what is tried.
fn gate() -> &'static Gate {
    static GATE: OnceLock<Gate> = OnceLock::new();
    GATE.get_or_init(|| {
        let clock = Clock::from(ManualClock::new());
        let gate = Gate::in_memory(1 << 20, clock).expect("a megabyte");
        gate.replace(
            Policy::load(&[("policy.yaml", POLICY)], Merging::Refuse).policy.expect(POLICY),
        );
        gate
    })
}

/// Bytes that a client of Redis sends: the first says where they are torn apart.
pub fn redis(bytes: &[u8]) {
    let Some((split, bytes)) = bytes.split_first() else { return };
    resp::try_bytes(gate(), bytes, usize::from(*split));
}

/// The body of a question in JSON.
pub fn question(bytes: &[u8]) {
    at_once(http::try_body(gate(), bytes)).expect("memory keeps nobody waiting");
}

/// A message to the rate limit service. What is read is answered, in both spellings.
pub fn rate_limit(bytes: &[u8]) {
    for proxy_headers in [ProxyHeaders::Standard, ProxyHeaders::Envoy(Default::default())] {
        let answers = Answers { proxy_headers, dynamic_metadata: true, ..Answers::default() };
        at_once(rls::try_message(gate(), bytes, &answers)).expect("memory keeps nobody waiting");
    }
}

/// A document to `/json`.
pub fn json(bytes: &[u8]) {
    let answers = Answers { dynamic_metadata: true, ..Answers::default() };
    at_once(rls::json(gate(), bytes, &answers)).expect("memory keeps nobody waiting");
}
