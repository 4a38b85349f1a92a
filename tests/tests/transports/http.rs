//! The HTTP transport, asked by sockets.

mod bounds;
mod conformance;
mod encryption;
mod proxies;
mod questions;
mod returns;
mod shared;
pub(crate) mod transport;

use std::time::Duration;

use tidegate::ManualClock;
use tidegate_tests::http::Answer;
use transport::{Json, TIMEOUT, Transport, policy, settings};

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
    limits:
      - name: per_minute
        rate: 2/min
        burst: 2
  - key: tenant
    descriptors:
      - key: user
        rate: 1/s
        burst: 1
---
domain: my api/v1
descriptors:
  - key: user
    rate: 1/s
";
