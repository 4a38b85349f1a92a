//! The HTTP door, asked by sockets.

#[path = "door_http/bounds.rs"]
mod bounds;
#[path = "door_http/conformance.rs"]
mod conformance;
#[path = "door_http/door.rs"]
mod door;
#[path = "door_http/proxies.rs"]
mod proxies;
#[path = "door_http/questions.rs"]
mod questions;
#[path = "door_http/shared.rs"]
mod shared;

use std::time::Duration;

use door::{Door, Json, PATIENCE, policy, settings};
use tidegate::ManualClock;
use tidegate_tests::http::Answer;

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
